"""vLLM's scheduler with a K, the tokens drafted a step, that can change while it runs.

Named by `scheduler_cls`. The API process reaches it through a utility call of the engine's
core, which looks up the attribute `scheduler` and calls it.
"""

from collections.abc import Iterable
from typing import Any

import vllm
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from specworker.inside_vllm import corrections

#: Methods whose drafters vLLM's V1 runner does not tell K, or that take no other than the most.
NEVER_TOLD = ("ngram_gpu", "extract_hidden_states", "custom_class")
#: The one operation that a call can name.
SET_TOKENS = "set_num_speculative_tokens"


class ChangeableK:
    """What vLLM's schedulers lack; stands before one of them among a class's bases.

    A smaller K is told to the drafter, as a batch-size schedule would tell it, and drafts
    beyond it are dropped before they are verified: those of drafters that are not told,
    and those already made when K changes. At the largest K all is as vLLM has it.
    """

    vllm_config: Any
    requests: dict[str, Any]
    num_spec_tokens: int
    max_num_running_reqs: int
    dynamic_sd_lookup: list[int] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tokens = self.num_spec_tokens
        self._schedule = self.dynamic_sd_lookup
        self._is_told = tells_drafter(self.vllm_config)
        #: Whether the last step asks no worker for a draft, so that there is none to fetch.
        self.drafted_nothing = False

    def __call__(self, operation: str, value: int) -> int:
        """Set K for the steps from the next one on. Returns what it was.

        Raises:
            ValueError: no such operation, or no such K.
        """
        if operation != SET_TOKENS or not 0 <= value <= self.num_spec_tokens:
            raise ValueError(
                f"{operation}={value}: allowed: {SET_TOKENS} from 0 to {self.num_spec_tokens}"
            )
        before, self._tokens = self._tokens, value
        self.dynamic_sd_lookup = self._lookup()
        self._drop_surplus(self.requests)
        return before

    def _lookup(self) -> list[int] | None:
        """What the drafter is told, by the number of requests in a step; None for the most.

        Where there is a list, vLLM does not fill up a request's first step with drafts of
        nothing.
        """
        if self._tokens == self.num_spec_tokens:
            return self._schedule
        told = self._tokens if self._is_told else self.num_spec_tokens
        usual = self._schedule or [self.num_spec_tokens] * (self.max_num_running_reqs + 1)
        return [min(told, tokens) for tokens in usual]

    def _drop_surplus(self, names: Iterable[str]) -> None:
        """Keep of the drafts of some requests, or of the places held for them, only K."""
        for name in names:
            request = self.requests.get(name)
            if request is not None and len(request.spec_token_ids) > self._tokens:
                request.spec_token_ids = request.spec_token_ids[: self._tokens]

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Take the drafts that a step made; with synchronous scheduling, these are tokens."""
        super().update_draft_token_ids(draft_token_ids)  # type: ignore[misc]
        if self._tokens < self.num_spec_tokens:
            self._drop_surplus(draft_token_ids.req_ids)

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        """Prepare the next step; with asynchronous scheduling, this holds places for drafts."""
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]
        asked = scheduler_output.num_spec_tokens_to_schedule
        self.drafted_nothing = not asked and not self.vllm_config.use_v2_model_runner
        if self._tokens < self.num_spec_tokens:
            self._drop_surplus(scheduler_output.num_scheduled_tokens)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Take a step's tokens, and send the figures of requests that others may end.

        vLLM sends a request's figures when the scheduler ends it. One that ends by a stop
        string is ended by the API process, which needs the figures before.
        """
        by_client = super().update_from_output(  # type: ignore[misc]
            scheduler_output, model_runner_output
        )
        for outputs in by_client.values():
            for output in outputs.outputs:
                request = self.requests.get(output.request_id)
                if request is not None and (asked := request.sampling_params) and asked.stop:
                    output.spec_decode_metrics = request.spec_decode_metrics
        return by_client


class SyncScheduler(ChangeableK, Scheduler):  # type: ignore[misc]
    """Each step knows the tokens of the step before."""


class OverlappingScheduler(ChangeableK, AsyncScheduler):  # type: ignore[misc]
    """A step is made while the one before still runs."""


def make_scheduler(*, vllm_config: Any, **kwargs: Any) -> Scheduler:
    """The scheduler for a configuration: vLLM calls what `scheduler_cls` names."""
    corrections.apply(
        vllm.__version__, on_cpu=current_platform.is_cpu(), corrections=corrections.IN_CORE
    )
    overlaps = vllm_config.scheduler_config.async_scheduling
    kind = OverlappingScheduler if overlaps else SyncScheduler
    return kind(vllm_config=vllm_config, **kwargs)


def tells_drafter(config: Any) -> bool:
    """Whether the drafter takes a K smaller than its largest.

    vLLM's V2 runner passes over what was drafted beyond it.
    """
    speculative = config.speculative_config
    if speculative is None or config.use_v2_model_runner:
        return True
    return speculative.method not in NEVER_TOLD and not speculative.parallel_drafting
