"""A run's rounds on the disk."""

import json
from pathlib import Path

import pytest

from specworker.acceptance import Acceptance
from specworker.errors import ConfigurationError
from specworker.measured import Answered, Round
from specworker.rounds_file import NAME, RoundsFile, has_rounds, opened

PLAN = {"model": "demo", "concurrency": [1, 4], "rounds": 3}
BEGUN = {"date": "2026-01-02"}
ROUND = Round(
    "ngram",
    4,
    1,
    2.5,
    (Answered(0, 12, 0.25, 1.5, "é\n\u2028\r"), Answered(1, 1, 0.5, 0.5)),
    Acceptance(13, 5, 10, 7, (4, 3)),
    "ngram",
    ("a note",),
    0.05,
)
OTHER = Round("off", 4, 1, 2.0, (), Acceptance(3), "ngram")


def begun(folder: Path, *rounds: Round) -> Path:
    file = RoundsFile.begin(folder, PLAN, BEGUN)
    for one in rounds:
        file.add(one)
    file.close()
    return file.path


def resumed(folder: Path, plan: dict[str, object] = PLAN) -> RoundsFile:
    file = RoundsFile.resume(folder, plan)
    file.close()
    return file


def test_rounds_are_read_as_they_were_written(tmp_path: Path) -> None:
    begun(tmp_path / "new" / "folder", ROUND, OTHER)
    file = resumed(tmp_path / "new" / "folder")
    assert file.rounds == [ROUND, OTHER]
    assert (file.provenance, file.notes) == (BEGUN, [])


def test_a_round_is_on_the_disk_once_it_is_added(tmp_path: Path) -> None:
    file = RoundsFile.begin(tmp_path, PLAN, BEGUN)
    file.add(ROUND)
    head, line = (tmp_path / NAME).read_text().split("\n")[:2]
    assert json.loads(head)["plan"] == PLAN
    assert json.loads(line)["variant"] == "ngram"
    file.close()


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_a_line_that_was_cut_off_is_dropped_and_named(cut: int, tmp_path: Path) -> None:
    path = begun(tmp_path, OTHER, ROUND)
    path.write_bytes(path.read_bytes()[:-cut])
    file = RoundsFile.resume(tmp_path, PLAN)
    assert file.rounds == [OTHER]
    assert file.notes == [f"{path}: its last line was cut off and is not used"]
    file.add(ROUND)
    file.close()
    assert resumed(tmp_path).rounds == [OTHER, ROUND]


def test_a_round_that_was_measured_again_counts_once(tmp_path: Path) -> None:
    again = Round("off", 4, 1, 9.0, (), Acceptance(3), "ngram")
    begun(tmp_path, OTHER, ROUND, again)
    assert {one.variant: one.seconds for one in resumed(tmp_path).rounds} == {
        "off": 9.0,
        "ngram": 2.5,
    }


def test_another_plan_is_refused_and_what_differs_is_named(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(ConfigurationError) as refused:
        RoundsFile.resume(tmp_path, {"model": "demo", "concurrency": [1], "seed": 2})
    assert [problem.partition("another ")[2] for problem in refused.value.problems] == [
        "concurrency: [1, 4]; allowed: the same, not [1]",
        "seed: none; allowed: the same, not 2",
        "rounds: 3; allowed: the same, not none",
    ]


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    begun(tmp_path, ROUND)
    with pytest.raises(ConfigurationError, match="there is a run in it; allowed: another folder"):
        RoundsFile.begin(tmp_path, PLAN, BEGUN)
    assert resumed(tmp_path).rounds == [ROUND]


@pytest.mark.parametrize("content", ["", "no JSON\n", '{"plan": {}}\n', '{"a": 1}\n{"b": 2}\n'])
def test_a_file_of_something_else_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(content)
    with pytest.raises(ConfigurationError, match=r"is no file of rounds .*; allowed: the folder"):
        RoundsFile.resume(tmp_path, PLAN)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be read \(No such file or directory\)"):
        RoundsFile.resume(tmp_path, PLAN)


def test_a_run_that_measured_nothing_leaves_no_file_to_go_on_with(tmp_path: Path) -> None:
    for _ in range(2):  # the same folder again
        with opened(tmp_path, PLAN, resumes=False, say=print) as file:
            assert file.path.is_file()
            assert not has_rounds(tmp_path)
        assert not file.path.exists()
    assert not has_rounds(tmp_path)


def test_a_run_that_goes_on_says_when_and_what_of_it_is_not_used(tmp_path: Path) -> None:
    with opened(tmp_path, PLAN, resumes=False, say=print) as file:
        file.add(ROUND)
    assert has_rounds(tmp_path)
    assert set(file.provenance) == {"date"}
    file.path.write_bytes(file.path.read_bytes() + b"cut")
    said: list[str] = []
    with opened(tmp_path, PLAN, resumes=True, say=said.append) as again:
        assert again.rounds == [ROUND]
    assert set(again.provenance) == {"date", "resumed"}
    assert said == [f"{file.path}: its last line was cut off and is not used"]
    assert has_rounds(tmp_path)
