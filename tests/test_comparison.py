"""Figures from rounds."""

from dataclasses import astuple, replace

import pytest

from specworker import comparison
from specworker.acceptance import Acceptance
from specworker.measured import Answered, MeasuringError
from tests.rounds import DRAFTED, TOKENS, compared, measured, side_by_side


def test_rates_are_medians_over_rounds_with_their_spread() -> None:
    rounds = [measured(number=number, rate=rate) for number, rate in enumerate((90, 100, 150))]
    (row,) = compared(rounds).rows
    assert astuple(row.tokens_per_second) == pytest.approx((100, 90, 150, 3))
    assert row.requests_per_second.median == pytest.approx(100 / TOKENS)
    assert (row.requests, row.speedup, row.predicted) == (6, None, None)


def test_latencies_are_those_of_all_requests_of_all_rounds() -> None:
    (row,) = compared([measured(number=0), measured(number=1, rate=50)]).rows
    assert [row.ttft(0.5), row.ttft(0.95)] == pytest.approx([0.1, 0.2])
    assert [row.tpot(0.5), row.tpot(0.95)] == pytest.approx([0.01, 0.02])


def test_a_single_token_has_no_time_per_token() -> None:
    one = replace(measured(), answers=(Answered(0, 1, 0.1, 0.1, "a"),))
    (row,) = compared([one]).rows
    assert (row.ttft(0.5), row.tpot(0.5)) == (0.1, None)


def test_speedups_are_taken_within_a_round() -> None:
    """The machine became slower, for both: what is between rounds does not count."""
    rounds = [
        measured(number=0, rate=100),
        measured("ngram", number=0, rate=200),
        measured(number=1, rate=10),
        measured("ngram", number=1, rate=21),
        measured(number=2, rate=1),
        measured("ngram", number=2, rate=2.5),
        measured("ngram", number=3, rate=1000),
    ]
    row = compared(rounds).rows[1]
    assert row.speedup is not None
    assert astuple(row.speedup)[:4] == pytest.approx((2.1, 2.0, 2.5, 3))


def test_a_round_without_an_answer_tells_no_speed_up() -> None:
    empty = replace(measured("ngram"), answers=(Answered(0),))
    assert compared([measured(), empty]).rows[1].speedup is None


def test_the_dtype_is_known_where_all_tell_the_same() -> None:
    single, half, silent = (measured(dtype=dtype) for dtype in ("float32", "bfloat16", ""))
    assert compared([single, single]).dtype == "float32"
    assert compared([single, half]).dtype == compared([single, silent]).dtype == ""


def test_each_trial_is_compared_with_its_own_off() -> None:
    rounds = [
        measured(rate=100, trial="a"),
        measured("ngram", rate=200, trial="a"),
        measured(rate=50, trial="b"),
        measured("suffix", rate=150, trial="b"),
        measured("other", rate=150, trial="c"),
    ]
    found = compared(rounds)
    speedups = {row.variant: row.speedup and row.speedup.median for row in found.rows}
    assert speedups == {"off": None, "ngram": 2, "suffix": pytest.approx(3), "other": None}
    assert [row.trial for row in found.rows] == ["a", "a", "b", "b", "c"]


def test_rows_go_by_concurrency_and_then_as_measured() -> None:
    rounds = side_by_side({"suffix": {16: [1], 4: [1]}, "ngram": {16: [1], 4: [1]}})
    found = compared(rounds)
    assert [(row.concurrency, row.variant) for row in found.rows] == [
        *((4, variant) for variant in ("off", "suffix", "ngram")),
        *((16, variant) for variant in ("off", "suffix", "ngram")),
    ]
    assert found.concurrencies == (4, 16)


def test_names_that_two_trials_share_are_told_apart() -> None:
    rounds = [measured(variant, trial=trial) for trial in "ab" for variant in ("off", "ngram")]
    found = compared([*rounds, measured("suffix", trial="b")])
    assert found.label("a", "ngram") == "ngram (a)"
    assert found.label("b", "suffix") == "suffix"


def test_counts_are_added_up() -> None:
    rounds = [measured("ngram", number=number) for number in range(3)]
    assert compared(rounds).rows[0].counts == DRAFTED + DRAFTED + DRAFTED


def test_failed_requests_are_named_and_nothing_is_concluded() -> None:
    good = measured()
    failed = tuple(replace(good.answers[0], prompt=n, error=f"HTTP {n}") for n in range(5))
    with pytest.raises(MeasuringError) as refused:
        compared([good, replace(measured("ngram", 4, 1), answers=failed)])
    told = str(refused.value)
    assert "ngram, 4 at once, round 2, prompt 1: HTTP 0" in told
    assert "and 2 more" in told


# What theory predicts.


def test_where_every_step_has_a_draft_it_is_the_published_formula() -> None:
    counts = Acceptance(126, 50, 150, 75)
    assert comparison.predicted(counts, 1, 0.0) == pytest.approx(counts.mean_length)
    assert comparison.predicted(counts, 1, 0.05) == pytest.approx(2.5 / (1 + 3 * 0.05))


def test_steps_without_a_draft_yield_one_token_and_cost_no_draft() -> None:
    counts = Acceptance(101, 25, 75, 50)  # 50 steps for 100 tokens, half of them with a draft
    assert comparison.predicted(counts, 1, 0.0) == pytest.approx(2)
    assert comparison.predicted(counts, 1, 0.1) == pytest.approx(2 / (1 + 1.5 * 0.1))


def test_what_is_accepted_beyond_the_end_of_an_answer_gains_nothing() -> None:
    assert comparison.predicted(Acceptance(11, 5, 40, 12), 1, 0.0) == pytest.approx(2)


def test_nothing_decoded_predicts_nothing() -> None:
    assert comparison.predicted(Acceptance(4), 4, 0.0) is None
    assert comparison.predicted(Acceptance(40), 4, 0.0) == 1


def test_a_cost_that_is_not_known_predicts_nothing() -> None:
    known, unknown = measured("ngram", draft_cost=0.05), measured("eagle", draft_cost=None)
    rows = compared([known, unknown]).rows
    assert [row.predicted is None for row in rows] == [False, True]


def test_the_prediction_does_not_look_at_the_speed() -> None:
    fast, slow = (compared([measured("ngram", rate=rate)]).rows[0] for rate in (1000, 10))
    assert fast.predicted == slow.predicted
