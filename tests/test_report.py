"""The files of a comparison, read as their readers do."""

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from specworker import report, report_chart
from specworker.comparison import Comparison
from tests.rounds import PROVENANCE, TEXTS, compared, measured, side_by_side

SPEEDUPS: dict[str, dict[int, Sequence[float]]] = {
    "ngram": {1: [1.5, 1.6, 1.4], 4: [1.2, 1.3, 1.1]},
    "suffix $x_1$": {1: [2.0, 2.1, 1.9], 4: [0.9, 0.8, 0.85]},
}


def found(**others: Any) -> Comparison:
    rounds = side_by_side(SPEEDUPS)
    differing = measured("ngram", 16, texts=(TEXTS[0], "one <b>TWO</b>"))
    return compared([*rounds, measured("off", 16), differing], **others)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "new"
    written = report.write(folder, found())
    assert sorted(written) == sorted(folder.iterdir())
    return folder


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_json_has_everything_with_its_version(folder: Path) -> None:
    data = json.loads((folder / "comparison.json").read_text())
    assert (data["format"], data["model"], data["workload"]) == (1, "acme/model", "copy")
    assert data["provenance"] == PROVENANCE
    assert len(data["rounds"]) == 3 * 3 * 2 + 2
    assert data["verdict"][1].startswith("suffix $x_1$ pays with 1 request at once, and not")
    row = data["rows"][1]
    assert (row["variant"], row["concurrency"], row["rounds"]) == ("ngram", 1, 3)
    figures = {"median": 1.5, "low": 1.4, "high": 1.6, "lower": 1.34, "upper": 1.675, "rounds": 3}
    assert row["speedup"] == pytest.approx(figures, abs=0.005)
    single = next(row["speedup"] for row in data["rows"] if row["speedup"] and row["rounds"] == 1)
    assert (single["rounds"], single["lower"], single["upper"]) == (1, None, None)
    assert row["ttft_ms"] == pytest.approx({"p50": 100, "p95": 200})
    assert row["tpot_ms"]["p50"] == pytest.approx(10 / 1.5)
    assert (row["drafted"], row["accepted"], row["mean_acceptance_length"]) == (60, 45, 2.5)
    assert row["acceptance_by_position"] == [0.9, 0.6]
    assert row["verdict"]["kind"] == "pays"
    (differing,) = (one for one in data["texts"] if not one["identical"])
    assert (differing["concurrency"], differing["compared"]) == (16, 2)
    assert differing["differences"][0]["drafted"] == "one <b>TWO</b>"
    assert "fewer than 32 bits" in differing["reason"]


def test_csv_has_a_line_for_each_row_and_names_units(folder: Path) -> None:
    lines = table(folder / "comparison.csv")
    assert [(line["concurrency"], line["variant"]) for line in lines[:3]] == [
        ("1", "off"),
        ("1", "ngram"),
        ("1", "suffix $x_1$"),
    ]
    off, ngram = lines[:2]
    assert (off["speedup.median"], off["acceptance_by_position.1"]) == ("", "")
    assert float(ngram["speedup.low"]) == pytest.approx(1.4)
    assert float(ngram["speedup.upper"]) == pytest.approx(1.675, abs=0.005)
    assert float(ngram["ttft_ms.p95"]) == pytest.approx(200)
    assert float(ngram["acceptance_by_position.2"]) == 0.6
    assert ngram["verdict.kind"] == "pays"
    assert (ngram["model"], ngram["workload"]) == ("acme/model", "copy")


def test_each_round_is_a_line_of_its_own(folder: Path) -> None:
    lines = table(folder / "rounds.csv")
    assert len(lines) == 20
    assert [line["round"] for line in lines if line["variant"] == "ngram"][:3] == ["0", "1", "2"]
    assert float(lines[0]["tokens_per_second"]) == pytest.approx(100)


def test_provenance_is_in_every_line_of_csv(folder: Path) -> None:
    for name in ("comparison.csv", "rounds.csv"):
        for line in table(folder / name):
            assert line["provenance.versions"] == "specworker 0.1.0; vLLM 0.32.0"
            assert line["provenance.<b>marked & up</b>"] == PROVENANCE["<b>marked & up</b>"]


def test_the_picture_is_one_and_carries_the_provenance(folder: Path) -> None:
    with Image.open(folder / "comparison.png") as picture:
        picture.load()
        assert picture.width > 1500
        chunks = picture.info
    assert chunks["Title"] == "acme/model, workload copy"
    assert chunks["command"] == PROVENANCE["command"]
    assert chunks["versions"] == "specworker 0.1.0; vLLM 0.32.0"


def test_pictures_for_a_page_take_its_colours_and_share_no_names() -> None:
    names: list[str] = []
    for svg in report_chart.pictures(found()).values():
        names += re.findall(r' id="([^"]+)"', svg)
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= set(names)
        assert "var(--ink)" in svg
        assert not any(colour in svg for colour in report_chart.PAGE)
    assert len(names) == len(set(names)) > 0


def test_a_picture_is_the_same_every_time() -> None:
    assert report_chart.pictures(found()) == report_chart.pictures(found())
    assert report_chart.png(found()) == report_chart.png(found())


def test_without_drafts_there_are_pictures_of_speed_alone() -> None:
    plain = compared([measured(), measured("ngram", counts=measured().counts)])
    assert list(report_chart.pictures(plain)) == ["Tokens per second", "Times as fast as off"]
    assert len(report_chart.pictures(found())) == 3


def test_many_variants_and_one_round_are_drawn() -> None:
    names = [f"draft_model K={number} of a long name" for number in range(9)]
    rounds = [measured(), *(measured(name, draft_cost=None) for name in names)]
    assert report_chart.png(compared(rounds)).startswith(b"\x89PNG")


def test_files_are_replaced_in_one_piece(folder: Path) -> None:
    page = folder / "comparison.html"
    before = page.stat().st_ino
    report.write(folder, found(workload="chat"))
    assert page.stat().st_ino != before
    assert "workload chat" in page.read_text()
    assert len(list(folder.iterdir())) == 5
