from dataclasses import replace

import pytest

from specworker import live
from specworker.acceptance import Acceptance
from specworker.adaptation import Adaptation
from specworker.live import Finished, Live, Setup
from tests.clocks import Clock

SETUP = Setup(method="ngram", tokens=3)
#: A step of one request with three drafted tokens, two of which were accepted.
STEP = Acceptance(3, 1, 3, 2, (1, 1, 0), (1, 1, 1))
PLAIN = Acceptance(1)


@pytest.fixture
def engine(clock: Clock) -> Live:
    return Live(SETUP, clock)


def request(name: str = "cmpl-1", tokens: int = 20, tpot: float | None = 0.01) -> Finished:
    return Finished(name, 0.0, tokens, 1.0, tpot, 5, 15, 10)


# Windows.


def test_a_window_has_what_was_counted_in_it_and_nothing_older(engine: Live, clock: Clock) -> None:
    for _ in range(90):
        clock.now += 1
        engine.count(STEP, None)
    assert engine.window(10).counts == Acceptance(30, 10, 30, 20, (10, 10, 0), (10, 10, 10))
    assert engine.window(60).counts.drafts == 60
    assert engine.window().counts.drafts == engine.total.drafts == 90
    assert engine.counts(10) == engine.window(10).counts
    clock.now += 4
    assert engine.window(10).counts.drafts == 6
    clock.now += 1000
    assert engine.window(60).counts == Acceptance(accepted_by_position=(0,) * 3) + Acceptance(
        drafted_by_position=(0,) * 3
    )
    assert engine.window().counts.drafts == 90


def test_steps_close_to_one_another_are_all_counted_and_all_leave_the_window(
    engine: Live, clock: Clock
) -> None:
    for _ in range(1000):
        clock.now += 0.01
        engine.count(PLAIN, None)
    assert engine.window(5).counts.generated == pytest.approx(500, abs=live.RESOLUTION / 0.01)
    clock.now += 6
    assert engine.window(5).counts.generated == 0
    assert engine.window(60).counts.generated == 1000


def test_only_as_many_readings_are_kept_as_the_longest_window_needs(
    engine: Live, clock: Clock
) -> None:
    for _ in range(100_000):
        clock.now += 0.01
        engine.count(PLAIN, None)
    assert len(engine._readings) <= live.LONGEST / live.RESOLUTION * 2 + 3
    assert engine.window(live.LONGEST).counts.generated == pytest.approx(6000, abs=10)


def test_a_window_is_no_longer_than_the_engine_is_old(engine: Live, clock: Clock) -> None:
    clock.now += 4
    engine.count(STEP, None)
    assert engine.window(10).seconds == 4
    assert engine.window(10).tokens_per_second == 3 / 4
    clock.now += 96
    assert engine.window(10).seconds == 10
    assert engine.window().seconds == 100
    assert engine.window().tokens_per_second == 3 / 100


def test_at_its_first_moment_an_engine_has_made_nothing_a_second(engine: Live) -> None:
    assert engine.window(10).tokens_per_second == 0.0
    assert engine.window(10).tpot(0.5) is None


def test_positions_are_told_as_far_as_any_draft_went(engine: Live, clock: Clock) -> None:
    engine.count(Acceptance(3, 2, 3, 1, (1, 0, 0), (2, 1, 0)), None)
    assert engine.window(10).rate_by_position == (0.5, 0.0)
    engine.count(Acceptance(4, 2, 6, 2, (1, 1, 0), (2, 2, 2)), None)
    assert engine.window(10).rate_by_position == (0.5, 0.25, 0.0)
    assert Live(SETUP, clock).window(10).rate_by_position == ()


def test_requests_are_summed_over_the_replicas(engine: Live) -> None:
    engine.count(STEP, (3, 1), engine=0)
    engine.count(STEP, (2, 0), engine=1)
    assert (engine.running, engine.waiting) == (5, 1)
    engine.count(Acceptance(), None, engine=0)
    engine.count(Acceptance(), (0, 0), engine=1)
    assert (engine.running, engine.waiting) == (3, 1)


# Requests that have ended.


def test_the_times_of_the_requests_that_ended_in_a_window(engine: Live, clock: Clock) -> None:
    for tpot in (0.5, 0.4):
        engine.finish(request(tpot=tpot))
    clock.now += 20
    for tenths in range(1, 21):
        engine.finish(request(tpot=tenths / 100))
    engine.finish(request(tokens=1, tpot=None))
    window = engine.window(10)
    assert (window.tpot(0.5), window.tpot(0.95), window.tpot(1)) == (0.10, 0.19, 0.20)
    assert engine.window().tpot(1) == 0.5


def test_the_median_of_three_is_the_second(engine: Live) -> None:
    for tpot in (0.3, 0.1, 0.2):
        engine.finish(request(tpot=tpot))
    assert (engine.window().tpot(0.5), engine.window().tpot(0.95)) == (0.2, 0.3)


def test_the_last_request_comes_first(engine: Live) -> None:
    for number in range(3):
        engine.finish(request(f"cmpl-{number}"))
    assert [one.id for one in engine.finished()] == ["cmpl-2", "cmpl-1", "cmpl-0"]


def test_the_k_of_a_request_is_known_where_it_did_not_change(engine: Live, clock: Clock) -> None:
    clock.now += 5
    engine.finish(request())
    engine.change(0)
    clock.now += 0.5
    engine.finish(request())  # it began half a second before the change
    clock.now += 0.5
    engine.finish(request())
    engine.change(0)  # to what it is
    engine.finish(request())
    assert [one.k for one in engine.finished()] == [0, 0, None, 3]


def test_a_request_that_ends_counts_itself_among_those_that_run(engine: Live) -> None:
    engine.finish(request())
    engine.count(STEP, (4, 0))
    engine.finish(request())
    assert [one.running for one in engine.finished()] == [4, 1]


def test_the_mean_length_of_a_request() -> None:
    assert request().mean_length == 1 + 10 / 5
    assert Finished("", 0.0, 3, steps=0, drafted=0, accepted=0).mean_length == 1.0
    assert Finished("", 0.0, 3).mean_length is None


def test_since_k_was_changed_only_what_came_after_it_counts(engine: Live, clock: Clock) -> None:
    clock.now += 100
    engine.count(STEP, None)
    assert engine.since_change().counts.drafts == 1
    clock.now += 1
    engine.change(2)
    clock.now += 1
    assert engine.since_change().counts.drafts == 0
    assert engine.since_change().seconds == 1
    assert engine.tokens == 2


# The figures of answers.


def figures(drafted: int, *histogram: int) -> dict[str, object]:
    steps, accepted = sum(histogram), sum(n * times for n, times in enumerate(histogram))
    return {
        "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_histogram": [*histogram],
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": 3,
    }


def test_an_answer_has_the_figures_of_all_its_sequences(engine: Live) -> None:
    engine.finish(request("a"), figures(9, 1, 0, 1, 1) | {"per_step_accepted": [0, 2, 3]})
    assert engine.answer("a") == figures(9, 1, 0, 1, 1) | {"per_step_accepted": [0, 2, 3]}
    engine.finish(request("b"), figures(3, 0, 0, 0, 1))
    engine.finish(request("a"), figures(6, 2, 0, 0, 0))
    assert engine.answer("a") == figures(15, 3, 0, 1, 1)
    assert engine.answer("b") == figures(3, 0, 0, 0, 1)
    assert engine.answer("c") is None


def test_several_sequences_without_drafts_have_figures_too() -> None:
    assert live.joined([figures(0, 0, 0, 0, 0)] * 2) == figures(0, 0, 0, 0, 0)


def test_figures_of_answers_long_sent_are_forgotten(
    engine: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "KEPT_ANSWERS", 2)
    for name in ("a", "b", "a", "c"):
        engine.finish(request(name), figures(3, 0, 0, 0, 1))
    assert [name for name in "abc" if engine.answer(name)] == ["a", "c"]


# What an engine speculates with.


@pytest.mark.parametrize(
    ("schedule", "limit"),
    [
        ((), None),
        ((0, 3, 3, 0, 0), 2),
        ((0, 3, 3, 3, 3), None),
        ((0, 3, 0, 1, 0), 3),
        ((0, 0, 0), 0),
    ],
)
def test_the_batch_above_which_nothing_is_drafted(
    schedule: tuple[int, ...], limit: int | None
) -> None:
    assert Setup("ngram", None, 3, schedule).disable_by_batch_size == limit


def test_a_schedules_k_for_a_batch() -> None:
    setup = Setup("ngram", None, 3, (0, 3, 1, 0))
    assert [setup.tokens_at(batch) for batch in (1, 2, 3, 99)] == [3, 1, 0, 0]
    assert Setup("ngram", None, 3).tokens_at(99) == 3


# K that adapts.


def test_k_is_what_was_last_heard_of_it_while_it_adapts(engine: Live) -> None:
    engine.hear(Adaptation(3, 1))
    assert (engine.tokens, engine.adaptation) == (3, None)  # it was set
    engine.adapt(3)
    assert (engine.tokens, engine.adaptation) == (3, Adaptation(3))
    engine.hear(Adaptation(3, 1, changes=2))
    assert (engine.tokens, engine.adaptation) == (1, Adaptation(3, 1, changes=2))
    engine.adapt(2)
    engine.hear(Adaptation(3, 3))  # of before the bound was another
    assert (engine.tokens, engine.adaptation) == (1, Adaptation(2))
    engine.change(1)
    assert (engine.tokens, engine.adaptation) == (1, None)


def test_where_it_adapts_from_the_start_it_starts_at_zero() -> None:
    live = Live(replace(SETUP, adaptive=True))
    assert (live.tokens, live.adaptation) == (0, Adaptation(3))


def test_a_request_has_no_k_of_its_own_while_it_adapts(engine: Live, clock: Clock) -> None:
    clock.now += 5
    engine.adapt(3)
    clock.now += 5
    engine.finish(request())
    engine.change(3)
    clock.now += 5
    engine.finish(request())
    assert [one.k for one in engine.finished()] == [3, None]


def test_what_k_adapts_to_does_not_start_the_time_since_a_change_anew(
    engine: Live, clock: Clock
) -> None:
    clock.now += 5
    engine.adapt(3)
    for tokens in (1, 2, 0):
        clock.now += 4
        engine.hear(Adaptation(3, tokens))
        engine.adapt(3)
    assert engine.since_change().seconds == 12
    engine.change(0)
    assert engine.since_change().seconds == 0
