"""Corrections of vLLM 0.32.0 where its faults make speculation wrong or deadly.

Each replaces one function of vLLM in a worker's or the core's process, on the version and
platform where the fault is, and nowhere else. An entry goes when vLLM mends its fault.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import torch
from vllm.logger import init_logger

logger = init_logger(f"vllm.{__name__}")

CORRECTED_VERSION = "0.32.0"
#: Methods whose drafters look at each request by itself, and leave room where none is left.
LOOK_ONLY = ("ngram", "suffix", "medusa")
#: Those of them that keep nothing from one step to the next.
STATELESS = ("ngram", "medusa")


@dataclass(frozen=True)
class Correction:
    """One fault and its correction.

    Attributes:
        fault: what goes wrong without it.
        owner: dotted path of the module or class that holds the function.
        name: the function's name there.
        cpu_only: whether only the CPU backend has the fault.
        correct: takes vLLM's function, returns the one to use.
    """

    fault: str
    owner: str
    name: str
    cpu_only: bool
    correct: Callable[[Callable[..., Any]], Callable[..., Any]]


def expand_batch_to_tokens(_: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Replace a kernel that fills a copy and returns uninitialised memory (vllm#55005)."""

    def corrected(
        x: torch.Tensor,
        cu_num_tokens: torch.Tensor,
        num_tokens: int,
        replace_from: int = 0,
        replace_to: int = 0,
    ) -> torch.Tensor:
        """Repeat `x` [batch] by each request's draft count: [num_tokens]."""
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        values = torch.where(x == replace_from, replace_to, x).to(x.dtype)
        return torch.repeat_interleave(values, counts.long(), output_size=num_tokens)

    return corrected


def rejection_sampler_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    """Sample a step without drafts as one without speculation.

    vLLM verifies none all the same, and takes the maximum of nothing for `top_k`.
    """

    def corrected(
        self: Any, metadata: Any, draft_probs: Any, logits: torch.Tensor, sampling_metadata: Any
    ) -> Any:
        if metadata.max_spec_len == 0:
            return self.sampler(logits=logits, sampling_metadata=sampling_metadata)
        return original(self, metadata, draft_probs, logits, sampling_metadata)

    return corrected


def sample(original: Callable[..., Any]) -> Callable[..., Any]:
    """Draw nothing from the seed of a request whose prompt is not yet whole.

    vLLM samples for it all the same, throws the token away and then rewinds the seeded
    generator, which a CPU generator cannot do. Here the generator sits out the step.
    """

    def corrected(self: Any, *args: Any, **kwargs: Any) -> Any:
        generators = self.input_batch.generators
        discarded = self.discard_request_mask.np[: self.input_batch.num_reqs].nonzero()[0]
        self.generators_sitting_out = {
            int(row): generators.pop(int(row)) for row in discarded if int(row) in generators
        }
        return original(self, *args, **kwargs)

    return corrected


def bookkeeping_sync(original: Callable[..., Any]) -> Callable[..., Any]:
    """Give back the generators that `sample` took away."""

    def corrected(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        self.input_batch.generators.update(self.generators_sitting_out)
        return result

    return corrected


def suffix_propose(original: Callable[..., Any]) -> Callable[..., list[list[int]]]:
    """Cut the drafts to the step's K, which vLLM asserts to be the largest (vllm#46399)."""

    def corrected(self: Any, num_speculative_tokens: int, *args: Any, **kw: Any) -> list[list[int]]:
        drafts = original(self, self.num_speculative_tokens, *args, **kw)
        return [draft[:num_speculative_tokens] for draft in drafts]

    return corrected


def medusa_propose(original: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Cut the drafts to the step's K, which vLLM asserts to be the largest (vllm#46399)."""

    def corrected(self: Any, num_speculative_tokens: int, **kw: Any) -> torch.Tensor:
        drafts: torch.Tensor = original(self, self.num_speculative_tokens, **kw)
        return drafts[:, :num_speculative_tokens]

    return corrected


def input_fits_in_drafter(original: Callable[..., Any]) -> Callable[..., bool]:
    """Leave the question to the drafters that answer it for each request by itself.

    vLLM asks for the longest sequence of the batch, and where that does not fit has zeros
    verified as drafts of every request.
    """

    def corrected(self: Any, common_attn_metadata: Any) -> bool:
        by_row = hasattr(self.drafter, "drafts_row_by_row")
        alone = by_row or self.speculative_config.method in LOOK_ONLY
        if alone and not self.use_async_scheduling:
            return common_attn_metadata is not None
        fits: bool = original(self, common_attn_metadata)
        return fits

    return corrected


def propose_draft_token_ids(original: Callable[..., Any]) -> Callable[..., Any]:
    """Prepare nothing for drafts of which none is asked, where a drafter can do without.

    vLLM prepares the inputs of its drafters at K = 0 as at any other.
    """

    def corrected(
        self: Any, scheduler_output: Any, sampled_token_ids: Any, *args: Any, **kwargs: Any
    ) -> Any:
        drafter = self.drafter
        can_rest = hasattr(drafter, "rest") or self.speculative_config.method in STATELESS
        asked = scheduler_output.num_spec_tokens_to_schedule
        if asked or not can_rest or self.use_async_scheduling:
            return original(self, scheduler_output, sampled_token_ids, *args, **kwargs)
        if hasattr(drafter, "rest"):
            drafter.rest(scheduler_output.num_scheduled_tokens)
        return [[] for _ in range(self.input_batch.num_reqs)]

    return corrected


def post_step(original: Callable[..., Any]) -> Callable[..., None]:
    """Ask no worker for the drafts of a step that made none: that is a call between processes."""

    def corrected(self: Any, model_executed: bool) -> None:
        if not getattr(self.scheduler, "drafted_nothing", False):
            original(self, model_executed)

    return corrected


_RUNNER = "vllm.v1.worker.gpu_model_runner.GPUModelRunner"

#: What goes into the engine's core, which may be a process of its own.
IN_CORE = (
    Correction(
        "every step waits for drafts, also one that made none",
        "vllm.v1.engine.core.EngineCore",
        "post_step",
        cpu_only=False,
        correct=post_step,
    ),
)
#: What goes into the workers.
CORRECTIONS = (
    Correction(
        "a draft of nothing is prepared like any other",
        _RUNNER,
        "propose_draft_token_ids",
        cpu_only=False,
        correct=propose_draft_token_ids,
    ),
    Correction(
        "one request beyond the draft's window stops drafting for all",
        _RUNNER,
        "_input_fits_in_drafter",
        cpu_only=False,
        correct=input_fits_in_drafter,
    ),
    Correction(
        "sampled tokens under speculation ignore temperature, top_k and top_p",
        "vllm.v1.sample.rejection_sampler",
        "expand_batch_to_tokens",
        cpu_only=True,
        correct=expand_batch_to_tokens,
    ),
    Correction(
        "a step without drafts pays for verifying them, and top_k kills the engine there",
        "vllm.v1.sample.rejection_sampler.RejectionSampler",
        "forward",
        cpu_only=False,
        correct=rejection_sampler_forward,
    ),
    Correction(
        "a seeded request whose prompt takes several steps kills the engine",
        _RUNNER,
        "_sample",
        cpu_only=True,
        correct=sample,
    ),
    Correction(
        "a seeded request whose prompt takes several steps kills the engine",
        _RUNNER,
        "_bookkeeping_sync",
        cpu_only=True,
        correct=bookkeeping_sync,
    ),
    Correction(
        "a batch-size schedule with suffix decoding kills the engine",
        "vllm.v1.spec_decode.suffix_decoding.SuffixDecodingProposer",
        "propose",
        cpu_only=False,
        correct=suffix_propose,
    ),
    Correction(
        "a batch-size schedule with Medusa kills the engine",
        "vllm.v1.spec_decode.medusa.MedusaProposer",
        "propose",
        cpu_only=False,
        correct=medusa_propose,
    ),
)


def apply(
    version: str, *, on_cpu: bool, corrections: Sequence[Correction] = CORRECTIONS
) -> list[Correction]:
    """Put in the corrections that this version and platform need; returns those."""
    if version != CORRECTED_VERSION:
        logger.warning(
            "vLLM %s is not the version this worker corrects (%s): no corrections applied",
            version,
            CORRECTED_VERSION,
        )
        return []
    needed = [correction for correction in corrections if on_cpu or not correction.cpu_only]
    for correction in needed:
        owner = resolve_name(correction.owner)
        original = getattr(owner, correction.name)
        if not hasattr(original, "corrects"):
            replacement = correction.correct(original)
            replacement.corrects = correction.fault  # type: ignore[attr-defined]
            setattr(owner, correction.name, replacement)
    return needed
