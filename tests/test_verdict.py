from dataclasses import replace
from typing import Any

import pytest

from specworker import verdict
from specworker.acceptance import Acceptance
from specworker.adaptation import Adaptation
from specworker.live import Finished, Live, Setup, Window
from specworker.verdict import Verdict
from tests.clocks import Clock

NGRAM = Setup(method="ngram", tokens=3)
DRAFT = Setup(method="draft_model", draft="small", tokens=3, cost=0.2)
UP_TO_TWO = Setup(method="ngram", tokens=3, schedule=(0, 3, 3, 0, 0))


def window(accepted: int, drafts: int = 100, drafted: int = 300, generated: int = 400) -> Window:
    return Window(60.0, Acceptance(generated, drafts, drafted, accepted))


def of(setup: Setup, seen: Window, running: int = 1, **known: Any) -> verdict.Verdict:
    return verdict.of(setup, setup.tokens, running, seen, **known)


# Estimates.


def test_a_lookup_pays_from_little_more_than_a_token_a_step_on() -> None:
    found = of(NGRAM, window(190))
    assert found == verdict.Verdict("paying", "2.9 tokens per step: paying off", True)
    assert of(NGRAM, window(11)).kind == "paying"
    found = of(NGRAM, window(9))
    text = "1.1 tokens per step: turn it off or change the method"
    assert found == verdict.Verdict("not_paying", text, True)


def test_a_draft_model_must_make_up_for_what_it_costs() -> None:
    # A step with three drafted tokens costs 1 + 3 x 0.2 steps, and must win by a tenth.
    assert of(DRAFT, window(77)).kind == "paying"
    found = of(DRAFT, window(74))
    assert found.kind == "not_paying"
    assert "1.7 tokens per step, but a drafted one is taken to cost 20% of a step: " in found.text
    assert found.is_estimate


def test_drafts_cut_short_cost_less() -> None:
    assert of(DRAFT, window(40, drafted=100)).kind == "paying"
    assert of(DRAFT, window(40, drafted=300)).kind == "not_paying"


def test_a_draft_as_large_as_the_model_never_pays() -> None:
    itself = Setup(method="draft_model", tokens=8, cost=1.0)
    assert of(itself, window(800, drafted=800)).kind == "not_paying"


# Without drafts.


def test_nothing_that_matched_is_told_from_a_draft_that_had_no_room() -> None:
    none = window(0, drafts=0, drafted=0)
    assert of(NGRAM, none) == verdict.Verdict("no_drafts", "no drafts: nothing matched")
    assert "beyond the draft's window" in of(DRAFT, none).text
    assert of(UP_TO_TWO, none).text.endswith("nothing matched, or the batch was above 2")


def test_an_engine_that_generated_nothing_is_idle() -> None:
    assert of(NGRAM, Window(60.0, Acceptance())).kind == "idle"
    # Before that: what is off is off, with or without traffic.
    assert verdict.of(NGRAM, 0, 0, Window(60.0, Acceptance())).kind == "off"


@pytest.mark.parametrize(
    ("setup", "tokens", "running", "text"),
    [
        (Setup(), 0, 1, "off: no speculation is set"),
        (Setup(fallback="it did not load"), 0, 1, "off: it did not load"),
        (NGRAM, 0, 1, "off: K is set to 0"),
        (
            Setup("eagle", None, 3, at_zero="its layer runs"),
            0,
            1,
            "off: K is set to 0, but its layer runs",
        ),
        (UP_TO_TWO, 3, 3, "off above batch 2"),
        (Setup("ngram", None, 3, (0, 3, 0, 3)), 3, 2, "off at batch 2"),
    ],
)
def test_what_is_off_says_why(setup: Setup, tokens: int, running: int, text: str) -> None:
    assert verdict.of(setup, tokens, running, window(190)) == verdict.Verdict("off", text)


def test_a_batch_within_the_limit_is_judged() -> None:
    assert of(UP_TO_TWO, window(190), running=2).kind == "paying"
    assert of(UP_TO_TWO, window(190), running=0).kind == "paying"


# K that adapts.

#: 2.1 tokens in 1.4 times the time of a step without drafts.
KNOWN = Adaptation(3, 2, 12, reason="K 0 → 2: 2.1 tokens per step", gain=1.5)


def adapting(seen: Window, setup: Setup = NGRAM, running: int = 1, **known: Any) -> Verdict:
    return verdict.adapting(setup, replace(KNOWN, **known), running, seen)


def test_a_k_that_adapts_is_compared_by_the_times_of_its_steps() -> None:
    text = "2.9 tokens per step, K adapts and is 2, about 1.5 times as fast as at K = 0: paying off"
    assert adapting(window(190)) == Verdict("paying", text, True)
    found = adapting(window(190), gain=1.05)
    assert (found.kind, found.is_estimate) == ("not_paying", True)
    assert "about 1.1 times as fast as at K = 0: hardly worth it" in found.text
    assert verdict.ADVICE not in found.text


def test_before_its_steps_were_timed_it_is_estimated_as_any_other() -> None:
    assert adapting(window(77), DRAFT, gain=None).kind == "paying"
    assert adapting(window(74), DRAFT, gain=None).kind == "not_paying"


def test_a_k_that_came_to_zero_says_what_did_not_pay() -> None:
    none = window(0, drafts=0, drafted=0)
    reason = "K 4 → 0: 1.1 tokens per step at batch 12 does not pay"
    found = adapting(none, tokens=0, reason=reason)
    assert found == Verdict("off", f"off for now, K adapts: {reason}")
    found = adapting(none, tokens=0, reason="")
    assert found.text == "off for now, K adapts: no larger K has been found to pay"


def test_a_k_that_adapts_may_have_nothing_to_say_of() -> None:
    assert adapting(Window(60.0, Acceptance())).kind == "idle"
    assert adapting(window(0, drafts=0, drafted=0)).text == "no drafts: nothing matched"
    assert adapting(window(190), UP_TO_TWO, running=3).text == "off above batch 2"
    assert adapting(window(190), UP_TO_TWO, running=2).kind == "paying"


def test_the_verdict_is_on_the_k_that_adapts_as_long_as_it_does(clock: Clock) -> None:
    def count() -> None:
        clock.now += 1
        live.count(Acceptance(32, 10, 30, 20), (1, 0))

    live = Live(NGRAM, clock)
    count()
    live.adapt(3)
    live.hear(KNOWN)
    count()
    assert "K adapts and is 2" in verdict.now(live).text
    live.change(2)
    count()
    assert "adapts" not in verdict.now(live).text


# Measurements.


def test_a_measurement_wins_over_an_estimate() -> None:
    found = of(DRAFT, window(50), measured=1.84)
    text = "1.5 tokens per step, 1.8 times as fast as at K = 0: paying off"
    assert found == verdict.Verdict("paying", text)
    found = of(NGRAM, window(190), measured=0.72)
    text = "2.9 tokens per step, 0.7 times as fast as at K = 0: turn it off or change the method"
    assert found == verdict.Verdict("not_paying", text)


def ended(k: int | None, tpot: float, times: int = 5, **changed: Any) -> list[Finished]:
    drafted = {"steps": 10, "drafted": 30, "accepted": 20} if k else {}
    known = {"tokens": 32, "running": 4, **drafted, **changed}
    return [Finished("", 0.0, tpot=tpot, k=k, **known) for _ in range(times)]


def test_a_measurement_is_the_ratio_of_the_medians() -> None:
    slow = [*ended(0, 0.03, times=2), *ended(0, 0.06, times=3)]
    assert verdict.speedup([*slow, *ended(3, 0.02)], 3) == pytest.approx(3.0)


@pytest.mark.parametrize(
    "others",
    [
        ended(3, 0.02, times=4),
        ended(2, 0.02),
        ended(None, 0.02),
        ended(3, 0.02, tokens=15),
        ended(3, 0.02, drafted=0),
        ended(3, 0.02, running=8),
        [],
    ],
    ids=[
        "too few",
        "another K",
        "K changed meanwhile",
        "too short",
        "none drafted",
        "a larger batch",
        "none",
    ],
)
def test_there_is_none_without_enough_like_requests(others: list[Finished]) -> None:
    assert verdict.speedup([*ended(0, 0.06), *others], 3) is None


def test_there_is_none_before_k_was_zero() -> None:
    assert verdict.speedup(ended(3, 0.02, times=50), 3) is None


def test_of_several_sizes_of_the_batch_the_usual_one_counts() -> None:
    few = [*ended(0, 0.03, running=1), *ended(3, 0.01, running=1)]
    many = [*ended(0, 0.06, running=7), *ended(3, 0.05, running=6, times=9)]
    assert verdict.speedup([*few, *many], 3) == pytest.approx(1.2)


def test_requests_at_k_zero_make_the_next_verdict_a_measurement(clock: Clock) -> None:
    live = Live(NGRAM, clock)

    def serve(tpot: float) -> None:
        for _ in range(5):
            clock.now += 2
            live.count(Acceptance(32, 10, 30, 20) if live.tokens else Acceptance(32), (1, 0))
            live.finish(Finished("", 0.0, 32, elapsed=1.0, tpot=tpot, drafted=30 * live.tokens))

    serve(0.02)
    assert verdict.now(live).is_estimate
    live.change(0)
    serve(0.03)
    assert verdict.now(live).text == "off: K is set to 0"
    live.change(3)
    assert verdict.now(live).kind == "idle"
    serve(0.02)
    found = verdict.now(live)
    assert (found.kind, found.is_estimate) == ("paying", False)
    assert "1.5 times as fast" in found.text
