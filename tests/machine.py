"""vLLM's real schedulers at work without a model.

A step's tokens are made up. With asynchronous scheduling a step is made while the one
before it still runs, which the CPU backend never does.
"""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from specworker.inside_vllm.rule_config import KEY
from specworker.inside_vllm.scheduler import (
    ADAPT,
    SET_TOKENS,
    STATE,
    Steered,
    make_scheduler,
)

MOST = 4
BLOCK = 16
#: The token that is always drafted, and one that comes where it is not accepted.
DRAFT, OTHER = 7, 8
NGRAM = {"method": "ngram", "num_speculative_tokens": MOST, "prompt_lookup_max": 3}
#: Four tokens for up to two requests, one for three, none for more.
SCHEDULE = {"num_speculative_tokens_per_batch_size": [[1, 2, MOST], [3, 3, 1], [4, 64, 0]]}


class Machine:
    """A scheduler, and in the place of the model one that accepts every second draft.

    Attributes:
        accepts: whether drafts are accepted instead, all of them or none.
        now: the time by the clock of a K that adapts: a step takes ten milliseconds, and a
            fifth more for each draft of a request.
    """

    def __init__(
        self,
        model: Path,
        *,
        overlaps: bool,
        told: bool = True,
        method: str = "ngram",
        handed_over: dict[str, Any] | None = None,
        **speculative: Any,
    ):
        config = EngineArgs(
            model=str(model),
            speculative_config=NGRAM | speculative,
            max_num_seqs=8,
            max_model_len=2048,
            per_request_spec_decode_metrics="summary",
            enable_prefix_caching=False,
            additional_config={KEY: handed_over or {}},
        ).create_engine_config()
        config.scheduler_config.async_scheduling = overlaps
        config.cache_config.num_gpu_blocks = 1000
        config.speculative_config.method = method if told else "custom_class"
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
        self.accepts: bool | None = None
        self.now = 0.0
        self._set_clock()
        #: Tokens of each request so far.
        self.tokens: dict[str, int] = {}
        #: What the scheduler sent of each request's figures.
        self.figures: dict[str, Any] = {}

    def ask(self, *names: str, tokens: int = 100, prompt: int = 5, **sampling: Any) -> None:
        for name in names:
            asked = SamplingParams(max_tokens=tokens, ignore_eos=True, **sampling)
            self.scheduler.add_request(Request(name, [1] * prompt, asked, None))
            self.tokens[name] = 0

    def set_tokens(self, tokens: int) -> int:
        assert isinstance(self.scheduler, Steered)
        before: int = self.scheduler(SET_TOKENS, tokens)
        return before

    def adapt(self, most: int) -> int:
        assert isinstance(self.scheduler, Steered)
        before: int = self.scheduler(ADAPT, most)
        self._set_clock()
        return before

    def state(self) -> Any:
        assert isinstance(self.scheduler, Steered)
        return self.scheduler(STATE)

    def _set_clock(self) -> None:
        if adapting := self.scheduler._adapting:
            adapting._controller._clock = lambda: self.now

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
        drafts = sum(map(len, output.scheduled_spec_decode_tokens.values()))
        self.now += 0.01 * (1 + 0.2 * drafts / max(len(names), 1))
        for name in names:
            accepted = 0
            drafted = output.scheduled_spec_decode_tokens.get(name, ())
            for _ in drafted:
                self._verified += 1
                if self._verified % 2 if self.accepts is None else not self.accepts:
                    break
                accepted += 1
            is_other = accepted < len(drafted) or self.accepts is False
            sampled.append([DRAFT] * accepted + [OTHER if is_other else DRAFT])
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
            drafts = DraftTokenIds(names, [[DRAFT] * told for _ in names])
            self.scheduler.update_draft_token_ids(drafts)

    def run(self) -> None:
        """Until every request has ended."""
        while self.scheduler.has_unfinished_requests():
            self.step()


Making = Callable[..., Machine]
both = pytest.mark.parametrize("overlaps", [False, True], ids=["sync", "async"])
