"""Requests with terms of their own: with real schedulers of vLLM and no model."""

from typing import Any

import pytest

from specworker.terms import PREDICTION, TOKENS
from tests.machine import MOST, SCHEDULE, Machine, Making, both

#: What the machine writes, as it was predicted and otherwise.
WRITTEN, OTHER = [7] * 200, [*range(10, 200)]
ONLY_PREDICTIONS = {"steering": {"only_predictions": True}}


def drafted(running: Machine, steps: int = 12) -> dict[str, set[int]]:
    """How many drafts of each request were verified in the steps after its first."""
    found: dict[str, set[int]] = {}
    scheduled: list[Any] = []
    schedule = running.scheduler.schedule

    def noted(*args: Any, **kwargs: Any) -> Any:
        scheduled.append(schedule(*args, **kwargs))
        return scheduled[-1]

    running.scheduler.schedule = noted
    for _ in range(steps):
        running.step()
    running.scheduler.schedule = schedule
    for output in scheduled[4:]:
        for name in output.num_scheduled_tokens:
            drafts = output.scheduled_spec_decode_tokens.get(name, [])
            found.setdefault(name, set()).add(len(drafts))
    return found


@both
def test_each_request_has_its_own_bound_in_one_batch(machine: Making, overlaps: bool) -> None:
    running = machine(overlaps=overlaps)
    running.ask("off", extra_args={TOKENS: 0})
    running.ask("two", extra_args={TOKENS: 2})
    running.ask("usual")
    found = drafted(running)
    assert found == {"off": {0}, "two": {2}, "usual": {MOST}}
    running.run()
    assert running.tokens == {"off": 100, "two": 100, "usual": 100}
    assert running.figures["off"]["num_draft_tokens"] == 0
    assert running.figures["off"]["num_spec_steps"] == 0


@both
def test_requests_that_all_opt_out_have_nothing_drafted(machine: Making, overlaps: bool) -> None:
    running = machine(overlaps=overlaps)
    running.ask("a", "b", extra_args={TOKENS: 0})
    running.step()
    assert running.step()[1] == 0
    running.ask("c")
    running.step()
    assert running.step()[1] == MOST
    assert drafted(running) == {"a": {0}, "b": {0}, "c": {MOST}}


@both
def test_a_request_cannot_raise_what_is_set_for_all(machine: Making, overlaps: bool) -> None:
    running = machine(overlaps=overlaps)
    running.set_tokens(1)
    running.ask("three", extra_args={TOKENS: 3})
    running.ask("usual")
    assert drafted(running) == {"three": {1}, "usual": {1}}
    scheduled = machine(overlaps=overlaps, **SCHEDULE)
    scheduled.ask("a", "b", "c", extra_args={TOKENS: 3})
    assert drafted(scheduled) == {"a": {1}, "b": {1}, "c": {1}}


@both
def test_long_prompts_draft_nothing(machine: Making, overlaps: bool) -> None:
    running = machine(overlaps=overlaps, handed_over={"steering": {"max_prompt_len": 4}})
    running.ask("long")  # of five tokens
    assert drafted(running) == {"long": {0}}
    longer = machine(overlaps=overlaps, handed_over={"steering": {"max_prompt_len": 5}})
    longer.ask("short")
    assert drafted(longer) == {"short": {MOST}}


def test_a_prediction_is_verified_in_the_place_of_drafts(machine: Making) -> None:
    running = machine(overlaps=False)
    running.accepts = True
    running.ask("a", extra_args={PREDICTION: WRITTEN})
    running.ask("b", extra_args={PREDICTION: OTHER})
    running.ask("c")
    running.step()
    output = running.scheduler.schedule()
    assert output.scheduled_spec_decode_tokens["a"] == WRITTEN[:MOST]
    assert output.scheduled_spec_decode_tokens["c"] == [7] * MOST


def test_nothing_else_drafts_where_only_predictions_do(machine: Making) -> None:
    running = machine(overlaps=False, handed_over=ONLY_PREDICTIONS)
    running.accepts = True
    running.ask("predicted", extra_args={PREDICTION: WRITTEN})
    running.ask("usual")
    running.step()
    assert running.step() == ({0, MOST}, 0)
    assert running.scheduler.drafted_nothing
    running.run()
    assert running.tokens == {"predicted": 100, "usual": 100}
    assert running.figures["usual"]["num_draft_tokens"] == 0
    assert running.figures["predicted"]["num_accepted_draft_tokens"] >= 75


def test_a_prediction_keeps_to_every_bound(machine: Making) -> None:
    running = machine(overlaps=False, **SCHEDULE)
    running.accepts = True
    asked = {PREDICTION: WRITTEN}
    running.ask("two", extra_args={**asked, TOKENS: 2})
    running.ask("off", extra_args={**asked, TOKENS: 0})
    assert drafted(running, 8) == {"two": {2}, "off": {0}}
    running.ask("third", "fourth", extra_args=asked)  # for so many nothing is drafted
    assert drafted(running, 8) == {"two": {0}, "off": {0}, "third": {0}, "fourth": {0}}
    running.set_tokens(0)
    running.run()
    assert running.tokens == dict.fromkeys(("two", "off", "third", "fourth"), 100)


def test_where_steps_overlap_a_prediction_changes_nothing(machine: Making) -> None:
    running = machine(overlaps=True)
    running.ask("a", extra_args={PREDICTION: OTHER})
    assert drafted(running) == {"a": {MOST}}
    running.run()
    assert running.tokens == {"a": 100}


@both
def test_a_request_that_comes_whole_from_the_cache_is_not_filled_up(
    machine: Making, overlaps: bool
) -> None:
    """vLLM verifies drafts of nothing in such a request's first step."""
    running = machine(overlaps=overlaps)
    running.ask("usual")
    for _ in range(3):
        running.step()
    running.ask("off", extra_args={TOKENS: 0}, prompt=1)
    found = drafted(running)
    assert found["off"] == {0}
    running.run()
    assert running.figures["off"]["num_draft_tokens"] == 0


@both
def test_cancelled_requests_leave_nothing_behind(machine: Making, overlaps: bool) -> None:
    from vllm.v1.request import RequestStatus

    running = machine(overlaps=overlaps)
    running.ask("a", "b", extra_args={TOKENS: 1, PREDICTION: WRITTEN})
    for _ in range(5):
        running.step()
    running.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    running.run()
    assert running.tokens["b"] == 100
    running.ask("c")
    assert drafted(running) == {"c": {MOST}}
    assert not running.scheduler._own


@pytest.mark.parametrize("most", [0, 1, MOST])
def test_the_same_name_may_come_again_with_other_terms(machine: Making, most: int) -> None:
    running = machine(overlaps=False)
    running.ask("a", extra_args={TOKENS: 2}, tokens=20)
    running.run()
    running.ask("a", extra_args={TOKENS: most})
    assert drafted(running) == {"a": {most}}
