"""The table in a terminal: everything is there, and nothing is cut short."""

from collections.abc import Sequence

import pytest
from rich.console import Console

from specworker import comparison_table
from specworker.acceptance import Acceptance
from specworker.measured import Round
from tests.rounds import compared, measured, side_by_side

SPEEDUPS: dict[str, dict[int, Sequence[float]]] = {
    "draft_model K=4": {1: [2.0, 2.1, 1.9], 16: [0.9, 0.91, 0.92]},
    "suffix": {1: [1.0, 1.05, 0.99], 16: [1.2, 1.3, 1.4]},
}
#: As many positions as suffix decoding has by default.
DEEP = Acceptance(820, 100, 2400, 2100, tuple(range(99, 75, -1)))


def shown(width: int, rounds: Sequence[Round]) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(comparison_table.of(compared(rounds)))
    return captured.get()


def rows(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_row_has_every_figure() -> None:
    found = rows(shown(120, side_by_side(SPEEDUPS)))
    off = "1 off 2.44 100 100 / 200 10.0 / 10.0 – –"
    assert off in found
    speed = "1 draft_model K=4 4.88 200 100 / 200 5.00 / 5.26 2.00 (1.84–2.17) 1.23"
    assert speed in found
    assert "1 draft_model K=4 60 45 75 2.50 90 60" in found


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_short(width: int) -> None:
    rounds = [*side_by_side(SPEEDUPS), measured("suffix", 32, counts=DEEP)]
    text = shown(width, rounds)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    words = text.split()
    for word in ("draft_model", "(1.84–2.17)", "100", "1.23", "76", "theory"):
        assert any(word in one for one in words), word


def test_a_narrow_terminal_has_two_figures_one_above_the_other() -> None:
    found = rows(shown(80, side_by_side(SPEEDUPS)))
    place = found.index("1 draft_model K=4 4.88 200 100 / 5.00 / 2.00 1.23")
    assert found[place + 1] == "200 5.26 (1.84–2.17)"


def test_the_verdict_comes_last() -> None:
    *_, last = shown(200, side_by_side(SPEEDUPS)).split("Verdict:")
    told = last.strip().splitlines()
    assert told[0].startswith("draft_model K=4 pays with 1 request at once, and not with 16")
    assert len(told) == 3


def test_notes_on_rounds_are_told_once() -> None:
    noted = [measured(number=number, notes=("other traffic",)) for number in range(2)]
    assert shown(80, noted).count("other traffic") == 1


def test_names_are_not_read_as_markup() -> None:
    assert "[bold]ngram[/]" in shown(120, side_by_side({"[bold]ngram[/]": {1: [1.0]}}))


def test_without_drafts_there_is_no_table_of_them() -> None:
    assert "drafted" not in shown(120, [measured()]).split("Rates are")[0]
