"""How long a measurement is expected to take."""

from specworker import estimate
from specworker.acceptance import Acceptance
from specworker.measured import OFF, Answered, Round
from specworker.places import Place
from specworker.trials import Manner, Trial
from specworker.workloads import Prompt, Workload

WORKLOAD = Workload("two", "", (Prompt("a", text="a", max_tokens=100), Prompt("b", text="b")))
OWN = Trial.of_engine("ngram", {}, {OFF: 0, "ngram": None})
THERE = Trial("ngram", OWN.arms, (Place(url="http://127.0.0.1"),))
MANNER = Manner((1, 4), rounds=2, limit=200)


def measured(variant: str, concurrency: int, number: int) -> Round:
    answers = (Answered(0, 60), Answered(1, 60))
    return Round(variant, concurrency, number, 2.0, answers, Acceptance(), "ngram")


def test_it_is_the_longest_answers_at_an_assumed_rate() -> None:
    found = estimate.of([THERE], WORKLOAD, MANNER)
    # Two variants, two rounds of 300 tokens at 1, and of four times as many requests at 4.
    assert found.seconds == (4 * 300) / 30 + (4 * 1200) / (30 * 4)
    assert "6000 tokens at 30 a second for each request in flight (assumed" in found.basis


def test_an_engine_that_starts_takes_its_time() -> None:
    without, own = (estimate.of([one], WORKLOAD, MANNER) for one in (THERE, OWN))
    assert own.seconds - without.seconds == estimate.START_SECONDS
    assert "1 starts of an engine of 60 s" in own.basis


def test_what_was_measured_is_not_to_come_and_tells_the_rate() -> None:
    done = [measured(variant, 1, number) for variant in (OFF, "ngram") for number in (0, 1)]
    found = estimate.of([THERE], WORKLOAD, MANNER, done)
    assert found.seconds == (4 * 1200) / (60 * 4)
    assert "at 60 a second for each request in flight (as measured so far)" in found.basis
    done += [measured(variant, 4, number) for variant in (OFF, "ngram") for number in (0, 1)]
    assert estimate.of([OWN], WORKLOAD, MANNER, done).seconds == 0


def test_it_is_told_in_minutes_or_seconds() -> None:
    assert str(estimate.Estimate(80, "so")) == "at most about 80 s: so"
    assert str(estimate.Estimate(300, "so")) == "at most about 5 min: so"
