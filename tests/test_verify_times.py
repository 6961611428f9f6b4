"""What steps take by their drafts, measured often, seldom and never."""

import numpy as np
import pytest

from specworker.verify_times import AHEAD, UNMEASURED, VerifyTimes


def times(measured: dict[int, tuple[float, int]]) -> VerifyTimes:
    """By drafts, milliseconds and how often they were measured."""
    found = VerifyTimes(4, 2)
    for drafted, (milliseconds, count) in measured.items():
        for _ in range(count):
            found.add(1, drafted, milliseconds / 1000, 1)
    return found


def at(found: VerifyTimes, *drafts: float, best: bool = False) -> list[float]:
    """Milliseconds."""
    curve = found.curve(1, 1)
    seconds = curve.seconds_at_best if best else curve.seconds
    return [float(time) * 1000 for time in seconds(np.array(drafts))]


def test_between_numbers_that_were_measured_times_lie_on_a_line() -> None:
    found = times({0: (10, 48), 4: (30, 48)})
    assert at(found, 0, 1, 2, 3, 4) == pytest.approx([10, 15, 20, 25, 30], rel=0.01)


def test_a_time_of_few_measurements_is_drawn_to_the_line_and_one_of_many_is_not() -> None:
    line = {0: (10.0, 48), 1: (12.0, 48), 3: (16.0, 48), 4: (18.0, 48)}
    few, many = times(line | {2: (15.5, 2)}), times(line | {2: (15.5, 48)})
    assert at(few, 2)[0] == pytest.approx((15.5 * 2 + 14 * 4) / 6)
    assert at(many, 2)[0] == pytest.approx(15.5, rel=0.01)


def test_what_was_not_measured_may_be_shorter_and_what_was_is_not() -> None:
    found = times({0: (10, 48), 4: (40, 48)})
    assert at(found, 0, 4, best=True) == pytest.approx([10, 40], rel=0.01)
    assert at(found, 3, best=True)[0] == pytest.approx(32.5 * (1 - UNMEASURED), rel=0.01)


def test_a_step_goes_a_little_beyond_what_was_measured() -> None:
    found = times({0: (10, 48)})
    assert found.curve(1, 1).reach == AHEAD
    found.add(1, 4, 0.030, 1)  # once: it may have been held up
    assert found.curve(1, 1).reach == AHEAD
    found.add(1, 4, 0.030, 1)
    assert found.curve(1, 1).reach > 4


def test_before_anything_was_measured_nothing_is_known() -> None:
    assert VerifyTimes(4, 2).curve(1, 1).usual == []
