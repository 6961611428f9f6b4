"""What is chosen of what was measured, and why the rest lost."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple

import pytest

from specworker import tuning
from specworker.acceptance import Acceptance
from specworker.comparison import Row, Spread
from specworker.measured import OFF, Answered, MeasuringError, Round
from specworker.speedup import Speedup
from specworker.tuning import Cell, Confirmed, Setting, Tried

TOKENS = 81


def measured(k: int, size: int, steps: int, seconds: float, *, position: float = 0.0) -> Round:
    """A round of one answer that took so many steps, and 0.5 s to read the prompt."""
    decoded = TOKENS - 1
    accepted = (int(position * steps),) * k
    counts = Acceptance(TOKENS, steps if k else 0, k * steps, decoded - steps, accepted)
    answer = Answered(0, TOKENS, 0.5, 0.5 + steps * seconds, "text")
    variant = f"m K={k}" if k else OFF
    return Round(variant, size, 0, answer.elapsed, (answer,), counts, "m")


def tried(rounds: Sequence[Round], *, left_to_right: bool = False) -> Tried:
    variants = {OFF: 0, "m K=1": 1, "m K=4": 4}
    return tuning.tried("m", variants, rounds, 0.1, left_to_right=left_to_right)


def gaining(name: str, gains: Mapping[int, Mapping[int, float]], margin: float = 0.1) -> Tried:
    """A candidate by how many times as fast each K is, at each concurrency."""
    cells = {
        size: {0: Cell(1.0, 1.0), **{k: Cell(gain, 1.0) for k, gain in found.items()}}
        for size, found in gains.items()
    }
    return Tried(name, cells, margin)


def beside_off(
    setting: Setting, medians: Mapping[int, float], *, spread: float = 0.05, narrows: bool = True
) -> Confirmed:
    speedups = {
        size: Speedup(it, it, it, 3, it - spread, it + spread) for size, it in medians.items()
    }
    return Confirmed(setting, speedups, narrows, 0.1)


def test_a_step_has_its_tokens_and_its_time_without_the_reading_of_the_prompt() -> None:
    found = tried([measured(0, 1, 80, 0.01), measured(1, 1, 50, 0.012), measured(4, 1, 20, 0.02)])
    assert astuple(found.cells[1][0]) == pytest.approx((1.0, 0.01))
    assert astuple(found.cells[1][1]) == pytest.approx((1.6, 0.012))
    assert astuple(found.cells[1][4]) == pytest.approx((4.0, 0.02))
    assert found.gains == {1: {1: pytest.approx(1.6 / 1.2), 4: pytest.approx(2.0)}}
    assert (found.choices[1].tokens, found.highest[:2]) == (4, (1, 4))


def test_acceptance_at_the_largest_k_tells_that_of_all_where_drafts_grow_to_the_right() -> None:
    rounds = [
        measured(0, 1, 80, 0.01),
        measured(1, 1, 50, 0.01),
        measured(4, 1, 20, 0.02, position=0.5),
    ]
    found = tried(rounds, left_to_right=True)
    assert astuple(found.cells[1][1]) == pytest.approx((1.5, 0.01))
    assert found.cells[1][4].length == 3.0


def test_answers_of_one_token_tell_no_time_of_a_step() -> None:
    one = Round(OFF, 1, 0, 0.5, (Answered(0, 1, 0.5, 0.5, "a"),), Acceptance(1), "m")
    with pytest.raises(MeasuringError, match="no answer has a second token"):
        tried([one])


def test_no_drafts_win_unless_the_gain_passes_the_margin() -> None:
    assert gaining("m", {1: {3: 1.09}, 4: {3: 1.05}}).settings == []
    assert gaining("m", {1: {3: 1.09}, 4: {3: 1.05}}, margin=0.05).settings != []


def test_a_k_that_is_best_everywhere_is_one_setting() -> None:
    (setting,) = gaining("m", {1: {1: 1.4, 3: 1.8}, 4: {1: 1.3, 3: 1.5}}).settings
    assert setting == Setting("m", {1: 3, 4: 3})
    assert (setting.is_fixed, setting.name) == (True, "m K=3")


def test_where_batch_matters_the_schedule_is_confirmed_beside_the_best_fixed_k() -> None:
    found = gaining("m", {1: {1: 1.4, 3: 1.8}, 4: {1: 1.3, 3: 1.2}, 16: {1: 0.9, 3: 0.6}})
    assert found.settings == [
        Setting("m", {1: 1, 4: 1, 16: 1}),
        Setting("m", {1: 3, 4: 1, 16: 0}),
    ]
    assert found.settings[1].name == "m K=3,1,0 by batch"


def test_the_best_few_are_confirmed() -> None:
    found = [
        gaining(name, {1: {3: gain}})
        for name, gain in {"a": 1.5, "b": 2.0, "c": 1.9, "d": 1.0}.items()
    ]
    assert [one.name for one in tuning.worth_confirming(found, 3)] == ["b", "c"]
    assert [one.name for one in tuning.worth_confirming(found, 1)] == ["b"]
    assert tuning.worth_confirming(found[3:], 2) == []


def test_the_fastest_beside_off_wins() -> None:
    slow = beside_off(Setting("a", {1: 3, 4: 3}), {1: 1.5, 4: 1.4})
    fast = beside_off(Setting("b", {1: 2, 4: 2}), {1: 1.9, 4: 1.3})
    assert tuning.winner([slow, fast]) is fast
    assert tuning.winner([]) is None


@pytest.mark.parametrize(("median", "spread"), [(1.05, 0.01), (1.3, 0.4)])
def test_what_does_not_pay_beside_off_or_not_surely_does_not_win(
    median: float, spread: float
) -> None:
    one = beside_off(Setting("a", {1: 3}), {1: median}, spread=spread)
    assert tuning.winner([one]) is None
    assert "did not pay" in tuning.why_lost(gaining("a", {1: {3: 2.0}}), [one], None)


def test_drafts_end_where_they_did_not_pay_when_it_was_tried() -> None:
    one = beside_off(Setting("a", {1: 3, 4: 3, 16: 3}), {1: 1.6, 4: 1.2, 16: 0.9})
    assert one.kept.tokens == {1: 3, 4: 3, 16: 0}
    assert one.worth == pytest.approx((1.6 * 1.2) ** (1 / 3))
    gap = beside_off(Setting("a", {1: 3, 4: 3, 16: 3}), {1: 1.6, 4: 0.9, 16: 1.5})
    assert gap.kept.tokens == {1: 3, 4: 0, 16: 0}


def test_a_size_without_drafts_does_not_end_those_of_larger_ones() -> None:
    one = beside_off(Setting("a", {1: 0, 4: 3, 16: 0}), {1: 1.0, 4: 1.5, 16: 1.0})
    assert one.kept.tokens == {1: 0, 4: 3, 16: 0}
    assert one.worth == pytest.approx(1.5 ** (1 / 3))


def test_a_k_that_was_to_be_the_same_everywhere_stays_so_or_does_not_win() -> None:
    setting = Setting("a", {1: 3, 16: 3})
    slower = beside_off(setting, {1: 2.0, 16: 0.9}, narrows=False)
    assert slower.kept == setting
    assert not slower.is_worth_it
    unsure = beside_off(setting, {1: 2.0, 16: 1.3}, spread=0.4, narrows=False)
    assert not unsure.is_worth_it
    little = beside_off(setting, {1: 1.12, 16: 1.07}, narrows=False)
    assert not little.is_worth_it
    assert beside_off(setting, {1: 1.15, 16: 1.07}, narrows=False).is_worth_it


def test_the_largest_k_of_a_setting_is_what_its_engine_needs() -> None:
    assert Setting("a", {1: 4, 16: 0}).largest == 4


def test_why_the_better_of_two_settings_lost_is_said() -> None:
    found = gaining("a", {1: {3: 1.5}, 16: {3: 1.2}})
    fixed = beside_off(Setting("a", {1: 3, 16: 3}), {1: 1.4, 16: 1.3}, narrows=False)
    narrow = beside_off(Setting("a", {1: 3, 16: 0}), {1: 1.2, 16: 1.0})
    won = beside_off(Setting("b", {1: 2, 16: 2}), {1: 1.9, 16: 1.9})
    assert tuning.why_lost(found, [narrow, fixed, won], won) == (
        "1.35 times as fast as off, b 1.90"
    )


def test_a_schedule_wins_only_against_the_best_fixed_k() -> None:
    settings = [Setting("a", {1: 2, 16: 2}), Setting("a", {1: 4, 16: 0})]

    def won(fixed: dict[int, float], scheduled: dict[int, float]) -> Setting:
        rows = [
            Row("t", one.name, size, 4, flat, flat, (), (), Acceptance(), Speedup.of([it] * 3))
            for one, speedups in zip(settings, (fixed, scheduled), strict=True)
            for size, it in speedups.items()
        ]
        found = tuning.winner(tuning.confirmed(settings, rows, 0.1))
        assert found
        return found.kept

    flat = Spread(1, 1, 1, 3)
    assert won({1: 1.5, 16: 1.2}, {1: 1.6, 16: 0.95}) == settings[0]
    assert won({1: 1.5, 16: 0.9}, {1: 1.8, 16: 1.0}) == settings[1]


def test_why_each_lost_is_said() -> None:
    found = [
        gaining(name, {1: {3: gain}}) for name, gain in {"a": 1.5, "b": 2.0, "c": 1.04}.items()
    ]
    seen = [beside_off(Setting("b", {1: 3}), {1: 1.9})]
    won = tuning.winner(seen)
    reasons = [tuning.why_lost(one, seen, won) for one in found]
    assert reasons == [
        "1.50 times as fast where first measured, which others surpass",
        "",
        "1.04 times as fast at best, with K=3 at 1 at once: below the 1.10 that it must gain",
    ]
    both = [beside_off(Setting("a", {1: 3}), {1: 1.4}), *seen]
    assert tuning.why_lost(found[0], both, won) == "1.40 times as fast as off, b 1.90"
