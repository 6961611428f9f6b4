"""What vLLM's API process knows of a running engine, on its way to `live`.

Each step's figures come as a stat logger gets them. Those of a request that has ended meet
in vLLM's output processor alone: its times, its tokens and what the scheduler counted.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

from specworker import drafting, model_size
from specworker.acceptance import Acceptance
from specworker.acceptance_rule import AcceptanceRule
from specworker.inside_vllm import rule_config, steering, whole_batch
from specworker.live import Finished, Live, Setup
from specworker.outgoing import public

#: vLLM's scheduler as `scheduler_cls` names it, with a K that can change.
SCHEDULER = "specworker.inside_vllm.scheduler.make_scheduler"
#: Why K stays as it is where several replicas serve.
REPLICAS = "replicas of data parallelism wait for one another, and must draft alike"
#: What drafting a token is taken to cost, in steps of the model, where sizes do not tell.
DRAFT_MODEL_COST, HEAD_COST = 0.1, 0.05
#: Names of requests that are parts of an answer, one of its prompts or turns, up to the number.
_PART = re.compile(r"(cmpl-.+(?=-\d+$)|resp_.+(?=_\d+$))")
#: Requests of one token each, of which beam search makes many.
_BEAM = re.compile(r"-beam-\d+$")


def setup(config: VllmConfig, method: str | None, draft: str | None, fallback: str | None) -> Setup:
    """What an engine of this configuration speculates with.

    Args:
        config: vLLM's whole configuration.
        method: as it was asked for; vLLM's own name where that is None.
        draft: the draft as it was named.
        fallback: why speculation that was set is off.
    """
    speculative = config.speculative_config
    dtype = str(config.model_config.dtype).removeprefix("torch.")
    if speculative is None:
        return Setup(fallback=fallback and public(fallback), dtype=dtype)
    schedule: list[int] = []
    steered = steering.handed_over(config)
    by_batch = speculative.num_speculative_tokens_per_batch_size
    if steered.adaptive:  # vLLM's own then names every K, and not the user's limits
        by_batch = steered.by_batch and [*map(list, steered.by_batch)]
    if by_batch:
        schedule = build_dynamic_sd_schedule_lookup(
            by_batch, config.scheduler_config.max_num_seqs, speculative.num_speculative_tokens
        )
    return Setup(
        method=method or speculative.method,
        draft=draft,
        tokens=speculative.num_speculative_tokens,
        schedule=tuple(schedule),
        cost=_cost(config),
        at_zero=whole_batch.at_zero(config),
        rule=_rule(config),
        fixed=_fixed(config),
        adaptive=steered.adaptive,
        dtype=dtype,
    )


def _cost(config: VllmConfig) -> float:
    """What drafting a token is taken to cost, as a share of a step of the model."""
    speculative = config.speculative_config
    if speculative.method in (*drafting.LOOKUP_METHODS, "ngram_gpu"):
        return 0.0
    if speculative.method != "draft_model":
        return HEAD_COST
    draft, target = (
        model_size.parameters(model.hf_text_config.to_dict())
        for model in (speculative.draft_model_config, config.model_config)
    )
    return draft / target if draft and target else DRAFT_MODEL_COST


def _rule(config: VllmConfig) -> AcceptanceRule:
    """The rule by which the engine accepts."""
    rule = rule_config.handed_over(config)
    if config.speculative_config.rejection_sample_method == "block":
        return AcceptanceRule("block")
    return rule


def _fixed(config: VllmConfig) -> str | None:
    """Why K cannot be changed while the engine runs; None where it can."""
    if config.parallel_config.data_parallel_size > 1:
        return REPLICAS
    if (named := config.scheduler_config.scheduler_cls) != SCHEDULER:
        return f"only the worker's own scheduler takes another K, and the engine has {named}"
    return None


def stat_logger(live: Live) -> Callable[[VllmConfig, int], StatLoggerBase]:
    """What vLLM makes a stat logger with, for each of its replicas."""

    class Observer(StatLoggerBase):  # type: ignore[misc]
        """Hands each step's figures on."""

        def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:  # noqa: ARG002
            self._engine = engine_index

        def record(
            self,
            scheduler_stats: Any,
            iteration_stats: Any,
            mm_cache_stats: Any = None,  # noqa: ARG002
            engine_idx: int = 0,  # noqa: ARG002
        ) -> None:
            requests = None
            if scheduler_stats is not None:
                waiting = scheduler_stats.num_waiting_reqs
                waiting += scheduler_stats.num_skipped_waiting_reqs
                requests = (scheduler_stats.num_running_reqs, waiting)
            live.count(_step(scheduler_stats, iteration_stats), requests, self._engine)

        def log_engine_initialized(self) -> None:
            """Nothing to say."""

    return Observer


def _step(scheduler_stats: Any, iteration_stats: Any) -> Acceptance:
    """What a step generated, drafted and accepted."""
    generated = iteration_stats.num_generation_tokens if iteration_stats else 0
    drafts = scheduler_stats.spec_decoding_stats if scheduler_stats else None
    if drafts is None:
        return Acceptance(generated)
    return Acceptance(
        generated,
        drafts.num_drafts,
        drafts.num_draft_tokens,
        drafts.num_accepted_tokens,
        tuple(drafts.num_accepted_tokens_per_pos),
        tuple(drafts.num_draft_tokens_per_pos),
    )


def watch_requests(client: AsyncLLM, live: Live) -> None:
    """Have every request that ends noted in `live`, but for those that were aborted."""
    processor = client.output_processor
    count = processor._update_stats_from_finished

    def counted(req_state: Any, finish_reason: Any, iteration_stats: Any) -> None:
        count(req_state, finish_reason, iteration_stats)
        generates = req_state.detokenizer is not None
        if iteration_stats is None or not generates or _BEAM.search(req_state.external_req_id):
            return
        metrics = req_state.spec_decode_metrics
        figures = metrics.to_dict() if metrics else None
        live.finish(finished(req_state, iteration_stats.iteration_timestamp, figures), figures)

    processor._update_stats_from_finished = counted


def finished(state: Any, now: float, figures: Mapping[str, Any] | None) -> Finished:
    """A request that has ended, as vLLM's output processor has it, and vLLM's figures of it."""
    tokens = state.detokenizer.num_output_tokens()
    elapsed = now - state.stats.arrival_time
    decoding = elapsed - state.stats.first_token_latency
    figures = figures or {}
    return Finished(
        id=answer_id(state.external_req_id),
        finished=now,
        tokens=tokens,
        elapsed=elapsed,
        tpot=decoding / (tokens - 1) if tokens > 1 else None,
        steps=figures.get("num_spec_steps"),
        drafted=figures.get("num_draft_tokens"),
        accepted=figures.get("num_accepted_draft_tokens"),
    )


def answer_id(request_id: str) -> str:
    """The id of the answer that a request of the engine belongs to."""
    part = _PART.match(request_id)
    return part[0] if part else request_id
