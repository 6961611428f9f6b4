import pytest

from specworker.acceptance import Acceptance


def test_figures_between_two_readings_are_their_difference() -> None:
    earlier = Acceptance(100, 10, 30, 12, (6, 4, 2))
    later = Acceptance(160, 20, 60, 33, (15, 11, 7))
    between = later - earlier
    assert between == Acceptance(60, 10, 30, 21, (9, 7, 5))
    assert between.rate == pytest.approx(0.7)
    assert between.rate_by_position == pytest.approx((0.9, 0.7, 0.5))
    assert between.mean_length == pytest.approx(3.1)


def test_before_anything_was_drafted_a_step_yields_one_token() -> None:
    nothing = Acceptance()
    assert (nothing.rate, nothing.mean_length, nothing.rate_by_position) == (0.0, 1.0, ())
    assert (Acceptance(5, 1, 3, 2, (1, 1, 0)) - nothing).accepted_by_position == (1, 1, 0)
