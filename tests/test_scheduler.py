"""A K that changes while the scheduler runs."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore

from specworker.inside_vllm.scheduler import (
    ADAPT,
    SET_TOKENS,
    tells_drafter,
)
from tests.machine import MOST, SCHEDULE, Machine, Making, both


def begun(machine: Machine, *names: str, **asked: Any) -> None:
    """Ask, and run until every request has had drafts verified, if there are any."""
    machine.ask(*names, **asked)
    for _ in range(4):
        machine.step()


@both
def test_the_class_is_that_of_the_configuration(machine: Making, overlaps: bool) -> None:
    scheduler = machine(overlaps=overlaps).scheduler
    assert isinstance(scheduler, AsyncScheduler) == overlaps
    assert isinstance(scheduler, Scheduler)


@both
def test_k_is_what_was_set_from_the_next_step_on(machine: Making, overlaps: bool) -> None:
    running = machine(overlaps=overlaps)
    begun(running, "a", "b", tokens=400)
    assert running.step() == ({MOST}, MOST)
    for tokens in (2, 0, 3, 1, 0):
        before = running.step()[1]
        assert running.set_tokens(tokens) == before
        drafts, told = running.step()
        assert told == tokens
        # Raised, K waits for the drafts of the step; lowered, it drops what is there.
        assert max(drafts) <= tokens
        assert running.step() in [({tokens}, tokens), ({min(before, tokens)}, tokens)]
        assert running.step() == ({tokens}, tokens)
    running.set_tokens(MOST)
    running.step()
    running.step()
    assert running.step() == ({MOST}, MOST)
    running.run()
    assert running.tokens == {"a": 400, "b": 400}


@both
def test_there_is_no_draft_to_fetch_where_none_was_asked_for(
    machine: Making, overlaps: bool
) -> None:
    running = machine(overlaps=overlaps, **SCHEDULE)
    for name, nothing in (("a", False), ("b", False), ("c", False), ("d", True)):
        begun(running, name, tokens=400)
        assert running.scheduler.drafted_nothing is nothing
    running.run()
    running.ask("e")
    running.set_tokens(0)
    running.step()
    assert running.scheduler.drafted_nothing


@both
def test_its_core_fetches_drafts_by_that(machine: Making, overlaps: bool) -> None:
    assert not hasattr(EngineCore.post_step, "corrects")
    machine(overlaps=overlaps)
    assert hasattr(EngineCore.post_step, "corrects")


@both
def test_at_the_largest_k_all_is_as_vllm_has_it(machine: Making, overlaps: bool) -> None:
    running = machine(overlaps=overlaps)
    for tokens in (MOST, 1, MOST):
        running.set_tokens(tokens)
        running.step()
        assert (running.scheduler.dynamic_sd_lookup is None) == (tokens == MOST)
    scheduled = machine(overlaps=overlaps, **SCHEDULE)
    scheduled.step()
    assert scheduled.scheduler.dynamic_sd_lookup == [0, 4, 4, 1, 0, 0, 0, 0, 0]


@both
def test_under_a_schedule_the_smaller_k_holds(machine: Making, overlaps: bool) -> None:
    running = machine(overlaps=overlaps, **SCHEDULE)
    begun(running, "a", "b", tokens=100)
    assert running.step() == ({4}, 4)
    running.set_tokens(2)
    running.step()
    running.step()
    assert running.step() == ({2}, 2)
    begun(running, "c", tokens=20)
    assert running.step() == ({1}, 1)
    running.set_tokens(0)
    running.step()
    assert running.step() == ({0}, 0)
    running.set_tokens(MOST)
    running.step()
    running.step()
    assert running.step() == ({1}, 1)
    running.run()
    assert running.tokens == {"a": 100, "b": 100, "c": 20}


@both
def test_a_request_that_comes_while_nothing_is_drafted_has_no_drafts(
    machine: Making, overlaps: bool
) -> None:
    running = machine(overlaps=overlaps)
    running.set_tokens(0)
    running.ask("a", tokens=20)
    running.run()
    assert running.figures["a"]["num_spec_steps"] == 0
    assert running.tokens == {"a": 20}


@both
def test_what_a_drafter_that_is_not_told_drafts_too_many_is_dropped(
    machine: Making, overlaps: bool
) -> None:
    running = machine(overlaps=overlaps, told=False)
    begun(running, "a", "b", tokens=200)
    for tokens in (1, 0, 2):
        running.set_tokens(tokens)
        running.step()
        running.step()
        assert running.step() == ({tokens}, MOST)
    running.run()
    assert running.tokens == {"a": 200, "b": 200}


# K that adapts.

#: As it is handed over where K adapts from the start: the user's limits by the batch apart from
#: vLLM's, which name every K.
EVERY_K = {"num_speculative_tokens_per_batch_size": [[1, 1, 4], [2, 2, 3], [3, 3, 2], [4, 64, 0]]}
ADAPTIVE = {"steering": {"adaptive": True}}
LIMITED = {"steering": {"adaptive": True, "by_batch": [[1, 2, MOST], [3, 3, 1], [4, 64, 0]]}}


def told(machine: Machine, steps: int) -> list[int]:
    """What the drafter is told in each of the next steps."""
    return [machine.step()[1] for _ in range(steps)]


def verified(machine: Machine, steps: int) -> list[int]:
    """The most drafts that a request has verified in each of the next steps."""
    return [max(machine.step()[0], default=0) for _ in range(steps)]


@both
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_k_adapts_to_what_is_accepted(machine: Making, overlaps: bool, method: str) -> None:
    running = machine(overlaps=overlaps, method=method, handed_over=ADAPTIVE, **EVERY_K)
    running.ask("a", "b", tokens=1900)
    running.accepts = True
    told(running, 100)
    assert verified(running, 40).count(MOST) > 30
    state = running.state()
    assert state
    assert (state["most"], state["tokens"], state["batch"]) == (MOST, MOST, 2)
    assert dict(state["yields"])[MOST] == pytest.approx(5.0, abs=0.05)
    assert state["reason"].startswith("K ")
    running.accepts = False
    told(running, 100)
    assert verified(running, 60).count(0) > 40
    state = running.state()
    assert state
    assert state["tokens"] == 0
    assert state["reason"].endswith("tokens per step at batch 2 does not pay")
    running.accepts = True
    running.run()
    assert running.tokens == {"a": 1900, "b": 1900}


@both
def test_k_adapts_until_it_is_set_and_goes_on_by_what_it_knew(
    machine: Making, overlaps: bool
) -> None:
    running = machine(overlaps=overlaps)
    assert running.state() is None
    running.accepts = True
    running.ask("a", tokens=1900)
    assert running.adapt(MOST) == MOST
    told(running, 100)
    known = running.state()
    assert known
    assert known["tokens"] == MOST
    assert running.set_tokens(1) == MOST
    assert running.state() is None
    assert set(told(running, 20)) == {1}
    assert running.adapt(MOST) == 1
    assert running.state() == known | {"batch": 0, "seconds": running.state()["seconds"]}
    assert running.step()[1] == MOST
    assert running.adapt(2) == MOST
    assert running.state()["changes"] == 0
    assert max(told(running, 100)) == 2
    assert running.adapt(0) == 2
    assert running.state() is None
    assert set(told(running, 3)) == {0}


@both
def test_k_adapts_within_the_limits_of_the_batch(machine: Making, overlaps: bool) -> None:
    running = machine(overlaps=overlaps, handed_over=LIMITED, **EVERY_K)
    running.accepts = True
    running.ask("a", "b", tokens=1900)
    told(running, 100)
    assert max(told(running, 20)) == MOST
    running.ask("c", tokens=150)
    running.step()
    assert max(told(running, 20)) == 1
    running.ask("d", tokens=20)
    running.step()
    assert running.step()[1] == 0
    while "d" in running.scheduler.requests:
        k = running.step()[1]
        assert k == 0 or "d" not in running.scheduler.requests
    running.run()
    assert running.tokens == {"a": 1900, "b": 1900, "c": 150, "d": 20}


@both
def test_what_no_request_can_take_before_its_end_is_not_drafted(
    machine: Making, overlaps: bool
) -> None:
    running = machine(overlaps=overlaps, handed_over=ADAPTIVE, **EVERY_K)
    running.accepts = True
    running.ask("first", tokens=1000)
    running.run()
    assert running.state()["tokens"] == MOST
    for tokens in range(1, 40):
        name = f"of {tokens} tokens"
        running.ask(name, tokens=tokens)
        asked = []
        while name in running.scheduler.requests:
            left = tokens - running.tokens[name]
            drafts, k = running.step()
            if drafts:  # with steps that overlap the last ones are empty
                asked.append((left, k))
        # The step that is made gives a token, and so does the next one.
        assert all(k <= max(0, left - 2) for left, k in asked)
        assert tokens < 15 or max(k for _, k in asked) == MOST
        assert running.tokens[name] == tokens


@both
def test_one_that_is_near_its_end_does_not_keep_others_from_drafting(
    machine: Making, overlaps: bool
) -> None:
    running = machine(overlaps=overlaps, handed_over=ADAPTIVE, **EVERY_K)
    running.accepts = True
    running.ask("a", tokens=1900)
    running.ask("b", tokens=600)
    ks = []
    while running.tokens["b"] < 600:
        ks += told(running, 1)
    assert ks[-3:] == [MOST] * 3


@both
def test_of_a_drafter_that_is_not_told_k_is_what_is_verified(
    machine: Making, overlaps: bool
) -> None:
    running = machine(overlaps=overlaps, told=False)
    running.accepts = True
    running.ask("a", tokens=1900)
    running.adapt(2)
    for _ in range(100):
        drafts, k = running.step()
        assert (max(drafts, default=0) <= 2, k) == (True, MOST)
    assert running.state()["tokens"] == 2
    running.run()
    assert running.tokens == {"a": 1900}


@pytest.mark.parametrize("operation", [SET_TOKENS, ADAPT])
@pytest.mark.parametrize("value", [-1, MOST + 1])
def test_no_other_k_is_taken(machine: Making, value: int, operation: str) -> None:
    running = machine(overlaps=False)
    with pytest.raises(ValueError, match=f"from 0 to {MOST}"):
        running.scheduler(operation, value)
    with pytest.raises(ValueError, match="another"):
        running.scheduler("another", 1)
    assert running.set_tokens(MOST) == MOST


@both
def test_figures_are_sent_before_the_end_where_a_stop_string_may_be_it(
    machine: Making, overlaps: bool
) -> None:
    running = machine(overlaps=overlaps)
    begun(running, "a", tokens=100)
    begun(running, "b", tokens=100, stop=["x"])
    assert "a" not in running.figures
    assert running.figures["b"]["num_spec_steps"] > 0
    running.run()
    for name in ("a", "b"):
        figures = running.figures[name]
        assert figures["num_draft_tokens"] >= figures["num_accepted_draft_tokens"] > 0


@pytest.mark.parametrize(
    ("method", "parallel", "v2", "told"),
    [
        ("ngram", False, False, True),
        ("draft_model", False, False, True),
        ("custom_class", False, False, False),
        ("ngram_gpu", False, False, False),
        ("eagle", True, False, False),
        ("dflash", True, True, True),
    ],
)
def test_a_drafter_is_told_where_it_can_be(
    method: str, parallel: bool, v2: bool, told: bool
) -> None:
    speculative = SimpleNamespace(method=method, parallel_drafting=parallel)
    config = SimpleNamespace(speculative_config=speculative, use_v2_model_runner=v2)
    assert tells_drafter(config) == told
    assert tells_drafter(SimpleNamespace(speculative_config=None))
