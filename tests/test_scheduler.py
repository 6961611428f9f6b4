"""A K that changes while the scheduler runs: with real schedulers of vLLM and no model.

A step's tokens are made up. With asynchronous scheduling a step is made while the one
before it still runs, which the CPU backend never does.
"""

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from builder import tiny
from specworker.inside_vllm.scheduler import (
    SET_TOKENS,
    ChangeableK,
    make_scheduler,
    tells_drafter,
)

MOST = 4
BLOCK = 16
NGRAM = {"method": "ngram", "num_speculative_tokens": MOST, "prompt_lookup_max": 3}
#: Four tokens for up to two requests, one for three, none for more.
SCHEDULE = {"num_speculative_tokens_per_batch_size": [[1, 2, MOST], [3, 3, 1], [4, 64, 0]]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("scheduler") / "model")


class Machine:
    """A scheduler, and in the place of the model one that accepts every second draft."""

    def __init__(self, model: Path, *, overlaps: bool, told: bool = True, **speculative: Any):
        config = EngineArgs(
            model=str(model),
            speculative_config=NGRAM | speculative,
            max_num_seqs=8,
            max_model_len=2048,
            per_request_spec_decode_metrics="summary",
            enable_prefix_caching=False,
        ).create_engine_config()
        config.scheduler_config.async_scheduling = overlaps
        config.cache_config.num_gpu_blocks = 1000
        if not told:
            config.speculative_config.method = "custom_class"
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        self.scheduler = make_scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(1000, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=True,
        )
        self._flies: deque[Any] = deque()
        self._overlaps = overlaps
        self._verified = 0
        #: Tokens of each request so far.
        self.tokens: dict[str, int] = {}
        #: What the scheduler sent of each request's figures.
        self.figures: dict[str, Any] = {}

    def ask(self, *names: str, tokens: int = 100, **sampling: Any) -> None:
        for name in names:
            asked = SamplingParams(max_tokens=tokens, ignore_eos=True, **sampling)
            self.scheduler.add_request(Request(name, [1] * 5, asked, None))
            self.tokens[name] = 0

    def set_tokens(self, tokens: int) -> int:
        assert isinstance(self.scheduler, ChangeableK)
        return self.scheduler(SET_TOKENS, tokens)

    def step(self) -> tuple[set[int], int]:
        """How many drafts each request had verified that has begun, and what a drafter was told."""
        output = self.scheduler.schedule()
        self._flies.append(output)
        drafts = {
            len(output.scheduled_spec_decode_tokens.get(name, ()))
            for name in output.num_scheduled_tokens
            if self.scheduler.requests[name].num_output_tokens
        }
        while len(self._flies) > int(self._overlaps):
            self._land(self._flies.popleft())
        return drafts, output.num_spec_tokens_to_schedule

    def _land(self, output: Any) -> None:
        """Have a step's tokens arrive, and with synchronous scheduling its drafts."""
        names = list(output.num_scheduled_tokens)
        sampled = []
        for name in names:
            accepted = 0
            for _ in output.scheduled_spec_decode_tokens.get(name, ()):
                self._verified += 1
                if self._verified % 2:
                    break
                accepted += 1
            sampled.append([7] * (accepted + 1))
        rows = {name: row for row, name in enumerate(names)}
        by_client = self.scheduler.update_from_output(
            output, ModelRunnerOutput(names, rows, sampled)
        )
        for outputs in by_client.values():
            for one in outputs.outputs:
                self.tokens[one.request_id] += len(one.new_token_ids)
                if one.spec_decode_metrics is not None:
                    self.figures[one.request_id] = one.spec_decode_metrics.to_dict()
        if not self._overlaps and not self.scheduler.drafted_nothing:
            told = output.num_spec_tokens_to_schedule
            drafts = DraftTokenIds(names, [[7] * told for _ in names])
            self.scheduler.update_draft_token_ids(drafts)

    def run(self) -> None:
        """Until every request has ended."""
        while self.scheduler.has_unfinished_requests():
            self.step()


Making = Callable[..., Machine]
both = pytest.mark.parametrize("overlaps", [False, True], ids=["sync", "async"])


@pytest.fixture
def machine(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Making]:
    # A scheduler that is made corrects the core of its process, here for the test alone.
    monkeypatch.setattr(EngineCore, "post_step", EngineCore.post_step)
    made: list[Machine] = []

    def make(**options: Any) -> Machine:
        made.append(Machine(model, **options))
        return made[-1]

    yield make
    for one in made:
        one.scheduler.shutdown()


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
    assert running.scheduler.dynamic_sd_lookup is None
    running.set_tokens(1)
    assert running.scheduler.dynamic_sd_lookup == [1] * 9
    running.set_tokens(MOST)
    assert running.scheduler.dynamic_sd_lookup is None
    scheduled = machine(overlaps=overlaps, **SCHEDULE).scheduler
    assert scheduled.dynamic_sd_lookup == [0, 4, 4, 1, 0, 0, 0, 0, 0]


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


@pytest.mark.parametrize("value", [-1, MOST + 1])
def test_no_other_k_is_taken(machine: Making, value: int) -> None:
    running = machine(overlaps=False)
    with pytest.raises(ValueError, match=f"from 0 to {MOST}"):
        running.scheduler(SET_TOKENS, value)
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
