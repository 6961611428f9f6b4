"""What is expected of drafted tokens, by the run that they go on with."""

import pytest

from specworker.match_odds import CLASSES, PRIOR, REMEMBERED, MatchOdds

HALF_LIFE = 96.0
LONG = CLASSES[-1]


def test_before_anything_was_seen_each_token_is_expected_alike() -> None:
    chances = MatchOdds(HALF_LIFE).chances(3)
    assert chances.shape == (LONG + 1, 3)
    for row in chances.tolist():
        assert row == pytest.approx([PRIOR, PRIOR**2, PRIOR**3])


def test_a_token_within_a_run_is_likelier_than_one_that_begins_it() -> None:
    odds = MatchOdds(HALF_LIFE)
    for _ in range(200):
        odds.add(0, 0, ends=True)
        odds.add(0, 1, ends=False)
        odds.add(1, 20, ends=False)
    chances = odds.chances(2)
    assert chances[0, 0] == pytest.approx(0.5, abs=0.01)
    assert chances[1, 0] == pytest.approx(1.0, abs=0.01)
    # The second token of a draft that begins a run goes on with one of one token.
    assert chances[0, 1] == pytest.approx(0.5, abs=0.01)
    assert chances[LONG, 1] == pytest.approx(1.0, abs=0.01)


def test_what_came_after_the_last_right_token_is_unknown_unless_it_was_wrong() -> None:
    odds = MatchOdds(HALF_LIFE)
    for _ in range(200):
        odds.add(3, 2, ends=False)
    assert odds.chances(1)[3, 0] == pytest.approx(1.0, abs=0.01)
    assert odds.chances(1)[LONG, 0] == pytest.approx(PRIOR)
    for _ in range(200):
        odds.add(3, 2, ends=True)  # the wrong one went on with a run of five
    assert odds.chances(1)[1, 0] == pytest.approx(PRIOR)
    assert odds.chances(1)[4, 0] == pytest.approx(400 / 600, abs=0.01)


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_what_was_seen_counts_half_after_a_while_and_sooner_in_a_large_batch(batch: int) -> None:
    odds = MatchOdds(HALF_LIFE)
    for _ in range(1000):
        odds.add(0, 0, ends=True)
    odds.age(batch, round(HALF_LIFE / batch**0.5))
    for _ in range(500):
        odds.add(0, 1, ends=False)
    assert odds.chances(1)[0, 0] == pytest.approx(0.5, abs=0.01)


def test_after_a_long_time_one_lucky_token_decides_nothing_and_a_handful_does() -> None:
    odds = MatchOdds(HALF_LIFE)
    for _ in range(100):
        odds.add(0, 0, ends=True)
    odds.age(1, 100_000)
    odds.add(0, 1, ends=False)
    assert odds.chances(1)[0, 0] == pytest.approx(1 / (1 + REMEMBERED), abs=0.02)
    for _ in range(8):
        odds.add(0, 1, ends=False)
    assert odds.chances(1)[0, 0] > 0.6
