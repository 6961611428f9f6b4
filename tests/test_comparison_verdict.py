"""What is said of a comparison, and that it is no surer than the rounds."""

from collections.abc import Sequence

import pytest

from specworker import comparison_verdict as verdict
from specworker.acceptance import Acceptance
from specworker.speedup import Speedup
from tests.rounds import TEXTS, compared, measured, side_by_side

WIN, LOSE, EVEN = [1.5, 1.6, 1.4], [0.8, 0.9, 0.85], [0.98, 1.05, 1.01]


@pytest.mark.parametrize(
    ("times", "kind"),
    [
        (WIN, "pays"),
        (LOSE, "does_not_pay"),
        (EVEN, "unclear"),
        ([1.02, 1.05, 1.09], "unclear"),
        ([0.99, 1.5, 1.6], "unclear"),
        ([0.7, 0.8, 1.01], "unclear"),
        # Faster in both rounds, and by the margin: but these two rounds tell too little.
        ([1.05, 1.5], "unclear"),
        ([0.95, 0.6], "unclear"),
        ([3.0], "unsettled"),
    ],
)
def test_it_pays_where_it_is_surely_faster_and_the_median_passes_the_margin(
    times: list[float], kind: str
) -> None:
    assert verdict.kind_of(Speedup.of(times), 0.1) == kind


def test_another_margin_decides_otherwise() -> None:
    assert verdict.kind_of(Speedup.of([1.28, 1.3]), 0.5) == "unclear"
    assert verdict.kind_of(Speedup.of([1.02, 1.022]), 0.01) == "pays"


def said(**times: dict[int, Sequence[float]]) -> tuple[str, ...]:
    return verdict.conclusions(compared(side_by_side(times)))


def test_a_finding_gives_speed_spread_and_acceptance() -> None:
    (found,) = verdict.findings(compared(side_by_side({"ngram": {4: WIN}})))
    assert found.text == (
        "pays: 1.50 times as fast as off (90% interval 1.34 to 1.68, 3 rounds), 2.5 tokens per "
        "drafted step"
    )
    assert (found.concurrency, found.kind) == (4, "pays")


def test_a_gain_below_the_margin_is_named_as_such() -> None:
    (found,) = verdict.findings(compared(side_by_side({"ngram": {1: [1.02, 1.05, 1.04]}})))
    assert found.text.startswith("is too close to call: 1.04 times as fast")
    assert found.text.endswith("surely less than the 10% that would be worth it")
    assert found.falls_short


def test_a_gain_that_may_be_below_the_margin_is_not_surely_so() -> None:
    (found,) = verdict.findings(compared(side_by_side({"ngram": {1: [0.98, 1.15, 1.05]}})))
    assert found.text.endswith("step, less than the 10% that would be worth it")
    assert not found.falls_short
    (found,) = verdict.findings(compared(side_by_side({"ngram": {1: [0.98, 1.25, 1.15]}})))
    assert found.text.endswith("2.5 tokens per drafted step")


def test_nothing_drafted_is_named() -> None:
    rounds = [measured(), measured("ngram", counts=Acceptance(82))]
    assert "nothing was drafted" in verdict.findings(compared(rounds))[0].text


def test_what_pays_everywhere_is_kept() -> None:
    (told,) = said(ngram={1: WIN, 4: WIN})
    assert told == "ngram pays with 1 and 4 requests at once, all that was measured: keep it."


def test_what_stops_paying_gets_a_limit() -> None:
    (told,) = said(ngram={1: WIN, 8: WIN, 16: LOSE, 32: LOSE})
    assert told == (
        "ngram pays with 1 and 8 requests at once, and not with 16 and 32 requests at once: "
        "set SPECULATIVE_DISABLE_BY_BATCH_SIZE=8."
    )


def test_a_limit_before_what_is_too_close_to_call_is_called_that() -> None:
    (told,) = said(ngram={1: WIN, 4: EVEN, 16: LOSE})
    assert "too close to call with 4 requests at once and does not pay with 16" in told
    assert "set SPECULATIVE_DISABLE_BY_BATCH_SIZE=1 to keep what is sure" in told


def test_a_gain_that_comes_back_with_the_load_gets_no_limit() -> None:
    (told,) = said(ngram={1: LOSE, 4: EVEN, 16: WIN})
    assert "pays with 16 requests at once, but does not pay with 1 request at once" in told
    assert verdict.LIMIT not in told


def test_a_gain_under_load_alone_may_still_be_noise_without_it() -> None:
    (told,) = said(ngram={1: EVEN, 16: WIN})
    assert told.startswith(
        "ngram pays with 16 requests at once, but is too close to call with 1 request at once."
    )


def test_what_pays_nowhere_is_turned_off() -> None:
    (told,) = said(ngram={1: EVEN, 4: LOSE})
    assert told == (
        "ngram does not pay with 4 requests at once; with 1 request at once it is too close to "
        "call: turn it off."
    )


def test_no_sure_gain_is_no_verdict_against_it() -> None:
    (told,) = said(ngram={1: [0.9, 1.2, 1.05]})
    assert "no sure gain of 10%" in told
    assert "turn it off" not in told


def test_a_gain_that_is_surely_too_small_asks_for_no_more_rounds() -> None:
    (told,) = said(ngram={1: EVEN, 4: EVEN})
    assert told == (
        "ngram surely gains less than 10% with 1 and 4 requests at once: there is no reason to "
        "keep it on."
    )
    (told,) = said(ngram={1: EVEN, 4: [0.9, 1.2, 1.05]})
    assert "measure more rounds" in told


def test_one_round_decides_nothing() -> None:
    (told,) = said(ngram={1: [3.0], 4: [0.5]})
    assert "measure more rounds" in told
    assert "pays" not in told


def test_one_round_among_others_is_too_close_to_call() -> None:
    rounds = [*side_by_side({"ngram": {1: WIN}}), *side_by_side({"ngram": {4: [3.0]}})]
    (told,) = verdict.conclusions(compared(rounds))
    assert told.startswith("ngram pays with 1 request at once; it is too close to call with 4")


def test_of_several_the_fastest_is_named_where_intervals_do_not_overlap() -> None:
    *_, told = said(
        ngram={1: [1.5, 1.52], 4: [1.5, 1.52], 16: EVEN[:2]},
        # At 4 its rounds are above those of ngram, and the intervals are not.
        suffix={1: [2.5, 2.55], 4: [1.55, 1.6], 16: LOSE[:2]},
    )
    assert told == (
        "Of these, suffix gains most with 1 request at once; none is surely the fastest with 4 "
        "and 16 requests at once."
    )


def test_without_off_nothing_is_said() -> None:
    assert verdict.conclusions(compared([measured("ngram")])) == ()


# Texts.


def test_equal_texts_are_said_in_one_line() -> None:
    rounds = side_by_side({"ngram": {1: WIN, 4: WIN}, "suffix": {1: WIN, 4: WIN}})
    assert verdict.agreement_lines(compared(rounds)) == (
        "The same text as without drafts: ngram with 1 and 4 requests at once; suffix with 1 and "
        "4 requests at once.",
    )


def test_differing_texts_are_said_with_the_place_and_a_reason() -> None:
    texts = ("alpha beta GAMMA", TEXTS[1])
    rounds = [measured(dtype="float32"), measured("ngram", texts=texts, dtype="float32")]
    (told,) = verdict.agreement_lines(compared(rounds))
    assert told == (
        "ngram with 1 request at once: 1 of 2 answers differ from those of off, first at word 3 "
        "(prompt 1): in float32, one request at a time, this is a fault."
    )
