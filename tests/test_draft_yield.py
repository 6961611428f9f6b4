"""What is known of drafts, from few of them and from many."""

import pytest

from specworker.draft_yield import REMEMBERED, DraftYield

HALF_LIFE = 48.0


def test_nothing_known_is_the_same_hope_for_each_position() -> None:
    shares = DraftYield(4, HALF_LIFE).accepted()
    assert shares[1:] / shares[:-1] == pytest.approx([shares[0]] * 3)


def test_a_position_that_failed_once_is_still_like_the_one_before() -> None:
    known = DraftYield(8, HALF_LIFE)
    known.add(8, [4])
    assert known.accepted()[:4] == pytest.approx([1.0] * 4)
    assert known.accepted()[4] == pytest.approx(0.5)
    known.add(8, [4])
    assert known.accepted()[4] == pytest.approx(1 / 3)
    for _ in range(50):
        known.add(8, [4])
    assert known.accepted()[4] < 0.02


def test_a_position_beyond_the_drafts_is_like_the_last_of_them() -> None:
    known = DraftYield(4, HALF_LIFE)
    for accepted in (0, 2) * 30:
        known.add(2, [accepted])
    shares = known.accepted()
    assert shares[:2] == pytest.approx([0.5, 0.5], abs=0.01)
    assert shares[2:] == pytest.approx([shares[1]] * 2, abs=0.02)


def test_after_a_rest_one_lucky_draft_decides_nothing_and_a_handful_does() -> None:
    known = DraftYield(1, HALF_LIFE)
    for _ in range(100):
        known.add(1, [0])
    for _ in range(2000):
        known.age(1)
    known.add(1, [1])
    assert known.accepted()[0] == pytest.approx(1 / (1 + REMEMBERED))
    for _ in range(6):
        known.add(1, [1])
    assert known.accepted()[0] > 0.5


def test_what_was_seen_once_is_remembered_as_once() -> None:
    known = DraftYield(1, HALF_LIFE)
    known.add(1, [0])
    for _ in range(2000):
        known.age(1)
    known.add(1, [1])
    assert known.accepted()[0] == pytest.approx(0.5)
