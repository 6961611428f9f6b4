"""K that adapts, in simulated engines: published step times, made-up and drifting acceptance.

A run is scored by the tokens and the time that its K are worth on average, so that chance
shows in what the controller sees and not in the score.
"""

import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from specworker.adaptive_k import BUDGET, AdaptiveK
from specworker.step_times import bucket, nearest, usual_choices

#: Milliseconds of a step of Llama-3.1-8B on an H100, by batch and by K.
CHOICES = (0, 1, 3, 4, 5, 7)
TABLES = {
    batch: dict(zip(CHOICES, row, strict=True))
    for batch, row in {
        1: (6.87, 7.97, 9.41, 9.91, 10.8, 12.29),
        4: (6.87, 7.97, 9.41, 9.91, 10.8, 12.29),
        16: (7.3, 8.39, 9.95, 10.8, 11.59, 13.11),
        32: (7.64, 8.97, 10.78, 11.79, 12.81, 14.86),
        64: (8.53, 10.44, 13.16, 15.7, 17.54, 120.57),
    }.items()
}
#: By position, the share of drafts that are accepted there.
ACCEPTANCE = {
    "E1": (0.68, 0.39, 0.20, 0.10, 0.06, 0.03, 0.02),
    "E3": (0.76, 0.54, 0.39, 0.28, 0.21, 0.15, 0.12),
    "low": (0.17, 0.15, 0.12, 0.01, 0.01, 0.01, 0.01),
    "copy": tuple(0.95**i for i in range(1, 8)),
    "prose": tuple(0.2**i for i in range(1, 8)),
    "none": tuple(0.02**i for i in range(1, 8)),
}
STEPS, WARM_UP = 2000, 300
SEEDS = (1, 2, 3, 4)
#: Milliseconds of a step by K where verifying many drafts is as dear as decoding each: of four
#: requests, and of twelve.
DEAR = {
    4: dict(enumerate((86.0, 142.0, 195.0, 246.0, 303.0))),
    12: dict(enumerate((119.0, 249.0, 372.0, 499.0, 614.0))),
}


def rising(cost: float, most: int = 4) -> dict[int, float]:
    """Milliseconds by K where a drafted token costs a share of a step."""
    return {k: 10 * (1 + cost * k) for k in range(most + 1)}


class Engine:
    """Requests that decode, and a controller that chooses their K.

    A draft reads nothing while K is 0, and takes `catches_up` milliseconds for each token that
    it missed. A share of the steps, `held_up`, takes much longer than usual.
    """

    def __init__(
        self,
        times: dict[int, float],
        batch: int,
        seed: int,
        *,
        most: int | None = None,
        limits: Sequence[int] | None = None,
        choices: Sequence[int] | None = None,
        catches_up: float = 0.0,
        held_up: float = 0.01,
    ) -> None:
        self.catches_up, self.unread = catches_up, 0
        self.held_up = held_up
        self.times, self.batch = times, batch
        self.random = np.random.default_rng(seed)
        self.now = self.tokens = self.seconds = 0.0
        self.asked = 0
        self.chosen: Counter[int] = Counter()
        self.changes: list[str] = []
        self.controller = AdaptiveK(
            most or max(times),
            limits,
            choices=choices or tuple(sorted(times)),
            clock=lambda: self.now,
            on_change=self.changes.append,
        )

    def step(self, accepted: Sequence[float]) -> int:
        """Choose K, have the last step's drafts verified, and say what came of it."""
        k, asked = self.controller.choose(self.batch, self.unread), self.asked
        kept = (self.random.random((self.batch, 1)) < np.array(accepted[:asked])).sum(1)
        milliseconds = usual = (self.times[asked] + self.times[k]) / 2
        missed = self.unread * self.catches_up if k else 0.0
        milliseconds, usual = milliseconds + missed, usual + missed
        self.unread = 0 if k or not self.catches_up else self.unread + self.batch
        milliseconds *= self.random.uniform(0.8, 1.2)
        if self.random.random() < self.held_up:
            milliseconds *= self.random.uniform(3, 8)
        self.controller.verifies(asked * self.batch)
        self.now += milliseconds / 1000
        self.controller.observe_drafts(asked, kept.tolist())
        self.tokens += 1 + sum(accepted[:asked])
        self.seconds += usual
        self.chosen[k] += 1
        self.asked = k
        return k

    def goodput(self, k: int, accepted: Sequence[float]) -> float:
        """Of a K that stays."""
        return (1 + sum(accepted[:k])) / self.times[k]


def ratios(engine: Engine, accepted: Sequence[float]) -> tuple[float, float]:
    """Goodput as a share of that of the best K that stays: of the whole run, and of its rest."""
    best = max(engine.goodput(k, accepted) for k in engine.times)
    for _ in range(WARM_UP):
        engine.step(accepted)
    tokens, seconds = engine.tokens, engine.seconds
    for _ in range(STEPS - WARM_UP):
        engine.step(accepted)
    warm = (engine.tokens - tokens) / (engine.seconds - seconds)
    return engine.tokens / engine.seconds / best, warm / best


def check_cell(engines: list[Engine], accepted: Sequence[float]) -> None:
    found = [ratios(engine, accepted) for engine in engines]
    whole, warm = np.mean(found, axis=0)
    trials = max(engine.controller.state().trials for engine in engines)
    changes = max(len(engine.changes) for engine in engines)
    assert whole >= 0.97
    assert warm >= 0.97
    assert min(found)[0] >= 0.95
    assert trials < 0.02
    assert changes <= STEPS // 40


@pytest.mark.parametrize("text", ACCEPTANCE)
@pytest.mark.parametrize("batch", TABLES)
def test_published_step_times_come_to_the_best_k(batch: int, text: str) -> None:
    check_cell([Engine(TABLES[batch], batch, seed) for seed in SEEDS], ACCEPTANCE[text])


@pytest.mark.parametrize("text", ["copy", "prose", "none"])
@pytest.mark.parametrize("batch", [1, 12])
@pytest.mark.parametrize("cost", [0.05, 0.2, 1.0])
def test_a_draft_of_any_cost_comes_to_the_best_k(cost: float, batch: int, text: str) -> None:
    check_cell([Engine(rising(cost), batch, seed) for seed in SEEDS], ACCEPTANCE[text])


@pytest.mark.parametrize("text", ["copy", "prose", "none"])
@pytest.mark.parametrize("batch", [1, 12])
def test_a_draft_that_has_to_catch_up_is_tried_when_that_is_not_too_dear(
    batch: int, text: str
) -> None:
    # A token that was missed costs as much as one that is drafted: resting has put it off.
    catches_up = 10 * 0.2 / batch
    engines = [Engine(rising(0.2), batch, seed, catches_up=catches_up) for seed in SEEDS]
    check_cell(engines, ACCEPTANCE[text])


@pytest.mark.parametrize("between", ["prose", "none"])
@pytest.mark.parametrize(
    ("times", "batch"),
    [
        (rising(0.05), 1),
        (rising(0.05), 12),
        (rising(0.2), 1),
        (rising(0.2), 12),
        (TABLES[1], 1),
        (TABLES[16], 16),
        (TABLES[64], 64),
    ],
    ids=["cheap-1", "cheap-12", "dear-1", "dear-12", "H100-1", "H100-16", "H100-64"],
)
def test_what_drifts_is_served_faster_than_by_any_k_that_stays(
    times: dict[int, float], batch: int, between: str
) -> None:
    for seed in SEEDS:
        engine = Engine(times, batch, seed)
        fixed = dict.fromkeys(times, 0.0)
        for text in ("copy", between, "copy"):
            accepted = ACCEPTANCE[text]
            until = engine.tokens + 1000
            while engine.tokens < until:
                engine.step(accepted)
            for k in times:
                fixed[k] += 1000 / engine.goodput(k, accepted)
        gain = min(fixed.values()) / engine.seconds
        assert gain >= 1.0
        assert fixed[0] >= engine.seconds
        assert engine.controller.state().trials < 0.02


def test_steps_of_many_sizes_share_what_is_known_of_drafts() -> None:
    engine = Engine(rising(0.2), 1, 1)
    for step in range(STEPS):
        engine.batch = 1 + step // 25 % 12
        engine.step(ACCEPTANCE["copy"])
    assert engine.tokens / engine.seconds > 0.97 * engine.goodput(4, ACCEPTANCE["copy"])
    assert engine.controller.state().trials < 0.02


def test_what_is_dear_in_a_large_batch_is_tried_in_a_small_one() -> None:
    for seed in SEEDS:
        engine = Engine(rising(1.5), 12, seed)
        for _ in range(500):
            engine.step(ACCEPTANCE["copy"])
        assert engine.controller.state().tokens == 0
        engine.batch, engine.times = 1, rising(0.1)
        for _ in range(60):
            engine.step(ACCEPTANCE["copy"])
        before = engine.tokens, engine.seconds
        for _ in range(100):
            engine.step(ACCEPTANCE["copy"])
        reached = (engine.tokens - before[0]) / (engine.seconds - before[1])
        assert reached > 0.9 * engine.goodput(4, ACCEPTANCE["copy"])


def test_a_batch_of_another_size_gets_at_once_the_k_that_pays_for_it() -> None:
    for seed in SEEDS:
        engine = Engine(rising(0.1), 1, seed)
        first = []
        for turn in range(12):
            engine.batch, engine.times = [(1, rising(0.1)), (12, rising(1.5))][turn % 2]
            steps = 100 if turn < 8 else 6
            first.append([engine.step(ACCEPTANCE["copy"]) for _ in range(steps)][:4])
        assert first[8:] == [[4] * 4, [0] * 4] * 2


def test_a_trial_ends_when_the_batch_is_of_another_size() -> None:
    engine = Engine(rising(0.1), 1, 1)
    for _ in range(40):
        k = engine.step(ACCEPTANCE["copy"])
        if k > (settled := engine.controller.state().tokens):
            break
    assert k > settled
    engine.batch = 12
    assert engine.step(ACCEPTANCE["copy"]) == engine.controller.state().tokens == settled


def test_what_was_never_tried_with_so_many_requests_is_tried_before_what_was() -> None:
    for seed in range(24):
        engine = Engine(DEAR[4], 4, seed)
        for _ in range(300):
            engine.step(ACCEPTANCE["copy"])
        engine.batch, engine.times = 12, DEAR[12]
        engine.chosen.clear()
        for _ in range(60):
            engine.step(ACCEPTANCE["copy"])
        assert engine.chosen[0] > 0


def test_what_would_not_soon_make_up_for_its_trial_is_not_tried() -> None:
    tried = 0
    for seed in SEEDS:
        engine = Engine(DEAR[12], 12, seed, held_up=0)
        for _ in range(WARM_UP):
            engine.step(ACCEPTANCE["prose"])
        engine.chosen.clear()
        for _ in range(3000):
            engine.step(ACCEPTANCE["prose"])
        tried += 3000 - engine.chosen[0]
    assert tried / len(SEEDS) < 16


def test_no_batch_gets_a_larger_k_than_its_limit() -> None:
    limits = [4, 4, 4, 2, 0]
    engine = Engine(rising(0.05), 1, 1, limits=limits)
    chosen: dict[int, set[int]] = {}
    for step in range(STEPS):
        engine.batch = 1 + step // 40 % 5
        chosen.setdefault(engine.batch, set()).add(engine.step(ACCEPTANCE["copy"]))
    assert {batch: max(ks) for batch, ks in chosen.items()} == {1: 4, 2: 4, 3: 2, 4: 0, 5: 0}


def test_what_cannot_be_taken_is_not_drafted_and_changes_no_mind() -> None:
    engine = Engine(rising(0.05), 1, 1)
    for _ in range(200):
        engine.step(ACCEPTANCE["copy"])
    before = engine.controller.state()
    assert before.tokens == 4
    assert [engine.controller.choose(1, useful=useful) for useful in (5, 4, 3, 2, 1, 0)] == [
        4, 4, 3, 2, 1, 0
    ]  # fmt: skip
    assert engine.controller.state().tokens == 4
    assert engine.controller.state().changes == before.changes


def test_a_leap_in_cost_is_not_taken_for_the_cost_of_what_lies_before_it() -> None:
    engine = Engine(TABLES[64], 64, 1)
    for _ in range(STEPS):
        engine.step(ACCEPTANCE["copy"])
    assert engine.chosen[5] > STEPS / 2
    assert engine.chosen[7] <= 3


@pytest.mark.parametrize("text", ACCEPTANCE)
def test_no_k_is_left_out_on_the_way_up(text: str) -> None:
    for seed in range(5):
        engine = Engine(TABLES[64], 64, seed)
        for _ in range(WARM_UP):
            engine.step(ACCEPTANCE[text])
        assert list(engine.chosen) == sorted(engine.chosen)


@pytest.mark.parametrize("measured", [1, 2, 3])
@pytest.mark.parametrize("held_up", CHOICES)
def test_one_step_held_up_locks_no_k_out(held_up: int, measured: int) -> None:
    engine = Engine(TABLES[16], 16, 1, held_up=0)
    steps = 0
    for _ in range(600):
        k = engine.step(ACCEPTANCE["copy"])
        steps += k == held_up
        if k == held_up and steps == measured + 1:
            engine.now += 0.1
    assert engine.chosen[7] > 400


@pytest.mark.parametrize("held_up", CHOICES[1:])
def test_the_first_steps_held_up_lock_a_k_out_for_a_while_and_not_for_good(held_up: int) -> None:
    engine = Engine(TABLES[16], 16, 1, held_up=0)
    for _ in range(12_000):
        k = engine.step(ACCEPTANCE["copy"])
        if k == held_up and engine.chosen[k] <= 4:
            engine.now += 0.1
    assert engine.chosen[7] > 4000
    assert engine.controller.state().trials < 0.02


def test_a_step_that_does_more_than_decode_tells_nothing() -> None:
    now = [0.0]
    controller = AdaptiveK(4, clock=lambda: now[0])
    for _ in range(50):
        controller.choose(1)
        now[0] += 1
    assert controller.state().seconds == {}


def test_time_without_requests_is_no_steps() -> None:
    now, asked = [0.0], 0
    controller = AdaptiveK(4, clock=lambda: now[0])
    for step in range(200):
        drafted, asked = asked, controller.choose(1)
        controller.verifies(drafted)
        now[0] += 0.01
        if step % 10 == 9:
            controller.rest()
            now[0] += 60
    assert max(controller.state().seconds.values()) == pytest.approx(0.01)


@pytest.mark.parametrize(("settle", "known"), [(1, True), (4, False)])
def test_steps_that_a_change_overlaps_tell_nothing(settle: int, known: bool) -> None:
    now, asked = [0.0], 0
    controller = AdaptiveK(4, clock=lambda: now[0], settle=settle)
    for _ in range(5):
        drafted, asked = asked, controller.choose(1)
        controller.verifies(drafted)
        now[0] += 0.01
    assert bool(controller.state().seconds) == known


def test_a_change_is_told_in_words() -> None:
    engine = Engine(rising(0.5), 12, 1)
    for text in ("copy", "none"):
        for _ in range(300):
            engine.step(ACCEPTANCE[text])
    assert engine.changes[0].startswith("K 0 → 1: ")
    assert engine.changes[-1].endswith("tokens per step at batch 12 does not pay")
    state = engine.controller.state()
    assert (state.tokens, state.batch, state.reason) == (0, 12, engine.changes[-1])
    assert state.yields[0] == 1.0
    assert state.seconds[0] == pytest.approx(0.01, rel=0.05)
    assert state.changes == len(engine.changes)
    for _ in range(600):
        engine.step(ACCEPTANCE["copy"])
    assert "times as fast" in engine.changes[-1]


def test_requests_that_are_new_are_tried_soon() -> None:
    def found(seed: int, *, told: bool) -> float:
        engine = Engine(TABLES[16], 16, seed)
        for _ in range(600):
            engine.step(ACCEPTANCE["none"])
        if told:
            engine.controller.renew(1.0)
        before = engine.tokens, engine.seconds
        for _ in range(60):
            engine.step(ACCEPTANCE["copy"])
        return (engine.tokens - before[0]) / (engine.seconds - before[1])

    best = Engine(TABLES[16], 16, 1).goodput(7, ACCEPTANCE["copy"])
    seeds = range(1, 13)
    told = float(np.mean([found(seed, told=True) for seed in seeds]))
    assert told > 0.7 * best
    assert np.mean([found(seed, told=False) for seed in seeds]) < 0.9 * told


def test_what_rested_for_very_long_is_still_known() -> None:
    controller = AdaptiveK(4)
    controller.observe_drafts(4, [0] * 50)
    for _ in range(100_000):
        controller._yield.age(64)
    assert controller.state().yields[4] == pytest.approx(1.0)


@pytest.mark.parametrize("choices", [(), (1, 2), (0, 2, 1), (0, 2, 2), (0, 5)])
def test_choices_that_make_no_sense_are_refused(choices: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="choices="):
        AdaptiveK(4, choices=choices)


def test_sizes_of_about_the_same_cost_are_measured_together() -> None:
    first = [size for size in range(1, 65) if bucket(size) != bucket(size - 1)]
    assert first == [1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49]


def test_only_steps_without_any_draft_are_taken_for_such() -> None:
    found = [nearest((0, 2, 4, 9), drafted) for drafted in (0, 1, 3, 5, 7, 50)]
    assert found == [0, 1, 1, 2, 3, 3]


def test_a_large_k_has_few_choices() -> None:
    assert usual_choices(1) == [0, 1]
    assert usual_choices(4) == [0, 1, 2, 3, 4]
    assert usual_choices(24) == [0, 1, 2, 3, 4, 6, 9, 13, 18, 24]
    assert len(usual_choices(128)) < 18


@pytest.mark.parametrize(("most", "batch"), [(4, 1), (7, 64), (24, 12), (24, 256), (128, 64)])
def test_a_step_costs_microseconds(most: int, batch: int) -> None:
    choices = usual_choices(most)
    engine = Engine(rising(0.05, most), batch, 1, choices=choices)
    for _ in range(300):
        engine.step([0.9**i for i in range(1, most + 1)])
    chooses, observes = [], []
    for _ in range(300):
        kept = [engine.asked] * batch
        times = [time.perf_counter()]
        k = engine.controller.choose(batch)
        times.append(time.perf_counter())
        engine.controller.verifies(sum(kept))
        engine.controller.observe_drafts(engine.asked, kept)
        times.append(time.perf_counter())
        chooses.append(times[1] - times[0])
        observes.append(times[2] - times[1])
        engine.now += 0.01 * (1 + 0.05 * k)
        engine.asked = k
    # Without the slowest calls: others may use the machine meanwhile.
    assert engine.asked > 0
    assert np.mean(sorted(chooses)[:270]) < 50e-6
    assert np.median(observes) < 50e-6 + batch * 0.2e-6


def test_what_trials_lose_is_earned_first() -> None:
    engine = Engine(rising(1.0), 1, 5)
    for _ in range(5 * STEPS):
        engine.step(ACCEPTANCE["none"])
    assert engine.controller.state().trials < BUDGET + 15 / (5 * STEPS)
