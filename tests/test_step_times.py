"""What steps usually take, from few measurements and from many."""

import pytest

from specworker.step_times import SPREAD, StepTimes


def times(*measured: float, choice: int = 1, least: int = 1) -> StepTimes:
    found = StepTimes(4, least)
    for _ in range(10):
        found.add(1, 0, 0.010, 1)
    for seconds in measured:
        found.add(1, choice, seconds, 1)
    return found


@pytest.mark.parametrize("measured", [(0.5, 0.012), (0.012, 0.5), (0.5, 0.4, 0.012)])
def test_of_few_steps_the_shortest_counts(measured: tuple[float, ...]) -> None:
    assert times(*measured).curve(1)[1] == pytest.approx(0.012)


def test_of_many_steps_the_median_counts() -> None:
    assert times(0.012, 0.013, 0.014, 0.5, 0.011).curve(1)[1] == pytest.approx(0.013)


def test_with_too_few_measurements_a_time_is_as_if_it_had_none() -> None:
    found = times(0.5, choice=2, least=2)
    assert found.curve(1) == pytest.approx([0.010] * 4)
    assert found.largest == 0
    found.add(1, 2, 0.030, 1)
    assert found.curve(1) == pytest.approx([0.010, 0.020, 0.030, 0.030])
    assert found.largest == 2


def test_where_all_have_too_few_what_there_is_counts() -> None:
    found = StepTimes(3, least=2)
    found.add(1, 0, 0.010, 1)
    assert found.curve(1) == pytest.approx([0.010] * 3)


def test_few_measurements_are_doubted_the_more_the_older_they_are() -> None:
    found = times(0.5, 0.5)
    assert found.doubt(1, 1, 1) == pytest.approx(SPREAD)
    assert found.doubt(1, 1, 10_000) > 0.9


def test_many_measurements_are_never_doubted_by_much() -> None:
    found = times(*[0.012] * 20)
    assert found.doubt(1, 1, 1) < SPREAD / 4
    # After so long nothing is left of them, by any number that a computer can tell.
    assert found.doubt(1, 1, 10_000_000) == pytest.approx(SPREAD)


def test_what_was_not_measured_below_takes_time_all_the_same() -> None:
    found = StepTimes(4)
    for choice in range(4):
        found.add(12, choice, 0.010 * (1 + choice), 1)
    found.add(4, 2, 0.090, 1)
    found.add(4, 3, 0.200, 1)
    # On the line through these it would be less than nothing.
    assert found.curve(4) == pytest.approx([0.030, 0.060, 0.090, 0.200])


def test_where_all_times_change_the_old_ones_are_soon_forgotten() -> None:
    found = times(*[0.012] * 40)
    for step in (2000, 2001, 2002):
        found.add(1, 1, 0.024, step)
    assert found.curve(1)[1] == pytest.approx(0.024)
