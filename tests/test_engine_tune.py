"""Tuning for the demo model: real engines and prompts. The choice is asserted, and no time."""

import json
from pathlib import Path
from typing import Any

import pytest

from specworker import __main__, main
from specworker.rounds_file import NAME

pytestmark = pytest.mark.engine("of its own")

#: What keeps it short; beside an engine without speculation test_engine_compare.py measures.
SMALL = {
    "--concurrency": "1",
    "--rounds": "5",
    "--ngrams": "2-4",
    "--confirm": "1",
    "--off": "same",
    "--tokens": "24",
    "--seed": "6",  # of answers that copy from the first line on
}


@pytest.fixture(autouse=True)
def small_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_MODEL_LEN", "1024")
    monkeypatch.setenv("KV_CACHE_MEMORY_BYTES", "268435456")


def tune(*options: str) -> int:
    return __main__.main(["tune", *[word for pair in SMALL.items() for word in pair], *options])


def test_a_copying_method_is_chosen_where_answers_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], demo_folder: Path
) -> None:
    out = tmp_path / "out"
    options = ("--workload", "copy", "--methods", "ngram,suffix", "--limit", "2", "--max-k", "4")
    assert tune(*options, "--out", str(out)) == 0
    block, told = capsys.readouterr()
    chosen = dict(line.split("=", 1) for line in block.splitlines() if not line.startswith("#"))
    assert chosen["SPECULATIVE_METHOD"] in ("ngram", "suffix")
    found: dict[str, Any] = json.loads((out / "tune.json").read_text())
    assert found["environment"] == chosen
    assert (out / "tune.env").read_text() == block
    _, decided, _ = main.configure({"MODEL_NAME": str(demo_folder), **chosen})
    assert decided.config
    assert decided.config["num_speculative_tokens"] == found["schedule"][0][2] > 0
    # Both were tried, each K at the cost and with the yield of its own steps.
    assert {one["name"] for one in found["tried"]} == {"ngram 2-4", "suffix"}
    assert [one["lost"] is None for one in found["tried"]].count(True) == 1
    for one in found["tried"]:
        lengths = {cell["num_speculative_tokens"]: cell["tokens_per_step"] for cell in one["cells"]}
        assert lengths[0] == 1.0
        assert 1.5 < lengths[2] < lengths[4] <= 5
    assert "ngram 2-4 K=2, concurrency 1, round 1 of 1" in told

    # A run that is whole has nothing left to measure, and finds the same.
    rounds = (out / NAME).read_bytes()
    assert tune(*options, "--resume", str(out)) == 0
    assert capsys.readouterr().out == block
    assert (out / NAME).read_bytes() == rounds


def test_no_speculation_is_chosen_where_drafts_miss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--workload", "chat", "--methods", "ngram", "--limit", "3", "--max-k", "2")
    assert tune(*options, "--out", str(tmp_path / "out"), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["environment"], found["schedule"]) == ({}, None)
    assert found["verdict"].startswith("no speculation: nothing gains enough")
    ((one,),) = [found["tried"]]
    assert one["lost"]
    assert one["cells"][1]["tokens_per_step"] < 1.3
