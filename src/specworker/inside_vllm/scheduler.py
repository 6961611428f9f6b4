"""vLLM's scheduler with a K, the tokens drafted a step, that changes while it runs.

Named by `scheduler_cls`. K is set from outside, or adapts to what pays; a request may have a
bound of its own, or bring the text that it expects as its draft. The API process reaches the
scheduler through a utility call of the engine's core, which looks up the attribute
`scheduler` and calls it.
"""

from typing import TYPE_CHECKING, Any

import vllm
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

from specworker import drafting, terms
from specworker.inside_vllm import corrections, steering, whole_batch
from specworker.inside_vllm.adapting import Adapting
from specworker.inside_vllm.adapting_lookup import AdaptingLookup
from specworker.terms import Terms

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Methods whose drafters vLLM's V1 runner does not tell K, or that take no other than the most.
NEVER_TOLD = ("ngram_gpu", "extract_hidden_states", "custom_class")
#: The operations that a call can name: a K that stays, one that adapts up to a bound, and a
#: question for what the controller of that knows.
SET_TOKENS, ADAPT, STATE = "set_num_speculative_tokens", "adapt", "state"


class Steered:
    """What vLLM's schedulers lack; stands before one of them among a class's bases.

    The K of a step is told to the drafter, as a batch-size schedule would tell it. Drafts
    beyond what a request may have are dropped before they are verified: those of drafters
    that are not told, those of a request with a bound of its own, and those already made
    when K is set. At the largest K, without any of this, all is as vLLM has it.
    """

    vllm_config: Any
    requests: dict[str, Any]
    running: list[Any]
    structured_output_manager: Any
    num_spec_tokens: int
    max_num_running_reqs: int
    dynamic_sd_lookup: "Sequence[int] | _Told | None"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steering = steering.handed_over(self.vllm_config)
        self._tokens = self.num_spec_tokens
        self._by_batch = self._limits()
        self._is_told = tells_drafter(self.vllm_config)
        self._is_alone = self.vllm_config.parallel_config.data_parallel_size == 1
        self._own: dict[str, Terms] = {}
        self._asked = 0  # K of the step made last
        self._adapting: Adapting | AdaptingLookup | None = None
        self._parked: Adapting | AdaptingLookup | None = None  # of a K that was set meanwhile
        #: Whether the last step asks no worker for a draft, so that there is none to fetch.
        self.drafted_nothing = False
        if self._steering.adaptive and self.num_spec_tokens:
            self._adapt(self.num_spec_tokens)

    def __call__(self, operation: str, value: int = 0) -> Any:
        """Do what `operation` names, from the next step on.

        Returns:
            What K was; of STATE, what the controller of K knows, None where K does not adapt.

        Raises:
            ValueError: no such operation, or no such K.
        """
        if operation == STATE:
            return self._adapting and self._adapting.state()
        if operation not in (SET_TOKENS, ADAPT) or not 0 <= value <= self.num_spec_tokens:
            raise ValueError(
                f"{operation}={value}: allowed: {SET_TOKENS} or {ADAPT}, "
                f"from 0 to {self.num_spec_tokens}"
            )
        before = self._adapting.state()["tokens"] if self._adapting else self._tokens
        self._parked, self._adapting = self._adapting or self._parked, None
        self._tokens = value
        if operation == ADAPT and value:
            self._adapt(value)
        return before

    def add_request(self, request: Any) -> None:
        """Take a request, and the terms that it brings."""
        super().add_request(request)  # type: ignore[misc]
        sampling = request.sampling_params
        own = terms.of(
            sampling and sampling.extra_args,
            request.num_prompt_tokens,
            self._steering.max_prompt_len,
            self.vllm_config.model_config.get_vocab_size(),
        )
        if own is not None and self.num_spec_tokens:
            self._own[request.request_id] = own

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Make a step."""
        if self._own:
            self._own = {name: own for name, own in self._own.items() if name in self.requests}
        as_vllm_has_it = (
            self._tokens == self.num_spec_tokens
            and not self._adapting
            and not self._own
            and not self._steering.only_predictions
        )
        self.dynamic_sd_lookup = self._by_batch if as_vllm_has_it else _Told(self)
        if self._adapting and not self.running:
            self._adapting.rest()
        if not as_vllm_has_it:
            self._settle_drafts()
        return super().schedule(*args, **kwargs)  # type: ignore[misc]

    def told(self, batch: int) -> int:
        """What the drafter is told for a step of `batch` requests, which is being made."""
        if self._steering.only_predictions:
            return 0
        asked = self._limit(batch)
        if self._adapting:
            useful = max(map(_takes, self.running), default=0)
            asked = min(asked, self._adapting.choose(batch, useful))
        # Whoever waits may be in the next step; replicas must draft alike.
        if len(self._own) == len(self.requests) and self._is_alone:
            asked = min(asked, max((self._bound(name) for name in self._own), default=asked))
        self._asked = asked
        return asked if self._is_told else self.num_spec_tokens

    def _limits(self) -> list[int] | None:
        """The largest K by the number of requests in a step; None where it is the same."""
        if not self._steering.adaptive:
            lookup: list[int] | None = self.dynamic_sd_lookup  # type: ignore[assignment]
            return lookup
        if not self._steering.by_batch:
            return None
        found: list[int] = build_dynamic_sd_schedule_lookup(
            [*map(list, self._steering.by_batch)], self.max_num_running_reqs, self.num_spec_tokens
        )
        return found

    def _limit(self, batch: int) -> int:
        """The largest K of a step of `batch` requests."""
        by_batch = self._by_batch
        limit = by_batch[min(batch, len(by_batch) - 1)] if by_batch else self.num_spec_tokens
        return min(limit, self._tokens)

    def _bound(self, name: str) -> int:
        """The largest K of a request."""
        own = self._own.get(name)
        return self.num_spec_tokens if own is None or own.most is None else own.most

    def _adapt(self, most: int) -> None:
        """Have K adapt, by what is known from the last time with the same bound."""
        if self._parked is not None and self._parked.most == most:
            self._adapting = self._parked
            self._adapting.resume()
            return
        config = self.vllm_config
        choices = steering.choices(self.num_spec_tokens, self.max_num_running_reqs)
        if config.speculative_config.method in drafting.LOOKUP_METHODS and self._holds_drafts:
            self._adapting = AdaptingLookup(most, self.max_num_running_reqs, choices=choices)
            return
        self._adapting = Adapting(
            most,
            self._by_batch,
            choices=choices,
            overlaps=config.scheduler_config.async_scheduling,
            rests=config.speculative_config.method == "draft_model"
            and whole_batch.reason(config) is None,
        )

    def _settle_drafts(self) -> None:
        """Decide what of each request is verified in the step that is about to be made.

        With synchronous scheduling drafts are tokens, of the step before; otherwise they are
        places held for them, which can only be fewer.
        """
        limit = self._limit(len(self.running))
        if self._adapting and not self._is_told:
            limit = min(limit, self._asked)
        for request in self.running:
            name = request.request_id
            most = min(limit, self._bound(name))
            if (own := self._own.get(name)) and own.follower and self._holds_drafts:
                request.spec_token_ids = self._predicted(request, own, most)
            elif len(request.spec_token_ids) > most:
                request.spec_token_ids = request.spec_token_ids[:most]
        if isinstance(self._adapting, AdaptingLookup):
            predicting = {name for name, own in self._own.items() if own.follower}
            self._adapting.settle(self.running, predicting)

    def _predicted(self, request: Any, own: Terms, most: int) -> list[int]:
        """Drafted tokens of a request that brings its prediction."""
        if request.num_tokens - request.num_computed_tokens != 1:  # its prompt is not yet whole
            return []
        drafted = own.draft(request.output_token_ids, request.spec_token_ids, most)
        valid: list[int] = self.structured_output_manager.validate_tokens(request, drafted)
        return valid

    @property
    def _holds_drafts(self) -> bool:
        """Whether drafts are token ids here, and what is verified is the scheduler's to choose."""
        config = self.vllm_config
        return not (config.scheduler_config.async_scheduling or config.use_v2_model_runner)

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        """Prepare the next step; with asynchronous scheduling, this holds places for drafts."""
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]
        asked = scheduler_output.num_spec_tokens_to_schedule
        self.drafted_nothing = not asked and not self.vllm_config.use_v2_model_runner
        if self._adapting:
            self._adapting.made(scheduler_output, self._own, self._asked)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Take a step's tokens, and send the figures of requests that others may end.

        vLLM sends a request's figures when the scheduler ends it. One that ends by a stop
        string is ended by the API process, which needs the figures before.
        """
        if self._adapting:
            output = model_runner_output
            self._adapting.landed(
                scheduler_output, output.sampled_token_ids, output.req_id_to_index
            )
        by_client = super().update_from_output(  # type: ignore[misc]
            scheduler_output, model_runner_output
        )
        for outputs in by_client.values():
            for output in outputs.outputs:
                request = self.requests.get(output.request_id)
                if request is not None and (asked := request.sampling_params) and asked.stop:
                    output.spec_decode_metrics = request.spec_decode_metrics
        return by_client


def _takes(request: Any) -> int:
    """The most drafts of the step being made that a request can use before its last token.

    That step gives it a token, and so does the next one without any draft; one that still runs
    gives it another.
    """
    there = int(request.num_output_tokens) + bool(request.num_output_placeholders)
    return max(0, int(request.max_tokens) - there - 2)


class _Told:
    """What vLLM's scheduler looks up K in, by the number of requests in a step."""

    def __init__(self, scheduler: Steered) -> None:
        self._scheduler = scheduler

    def __getitem__(self, batch: int) -> int:
        return self._scheduler.told(batch)


class SyncScheduler(Steered, Scheduler):  # type: ignore[misc]
    """Each step knows the tokens of the step before."""


class OverlappingScheduler(Steered, AsyncScheduler):  # type: ignore[misc]
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
