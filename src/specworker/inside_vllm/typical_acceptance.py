"""Typical acceptance (arXiv 2401.10774), by the rule of vLLM's V0 engine. LOSSY.

A drafted token is accepted where the target finds it plausible, so the text does not come
from the target's distribution. Requests with temperature 0 are verified as ever.

vLLM's kernels go through the drafts and draw all tokens. Here they are shown a target that
is certain: of the drafted token where that is accepted, of the token after it otherwise.
"""

from copy import copy
from typing import Any

import torch
from vllm.distributed.parallel_state import get_pp_group
from vllm.logger import init_logger
from vllm.v1.sample import rejection_sampler as v1
from vllm.v1.worker.gpu.spec_decode import rejection_sampler as v2

from specworker.acceptance_rule import AcceptanceRule

logger = init_logger(f"vllm.{__name__}")

#: What V0 adds to a probability before it takes the logarithm.
EPSILON = 1e-5
#: Rows whose probabilities are held at a time: a batch's fill gigabytes.
ROWS = 128


def plausible(
    probabilities: torch.Tensor, drafted: torch.Tensor, rule: AcceptanceRule
) -> torch.Tensor:
    """Whether each drafted token is accepted: booleans [tokens].

    It is where its probability is above min(threshold, alpha · exp(−H)), H being the
    entropy of the target in nats.

    Args:
        probabilities: of the target, after temperature, top_k and top_p: [tokens, vocabulary].
        drafted: token ids [tokens]; what is said of ids below 0 means nothing.
        rule: threshold and alpha.
    """
    entropy = -(probabilities + EPSILON).log_().mul_(probabilities).sum(-1)
    bound = (rule.alpha * torch.exp(-entropy)).clamp_(max=rule.threshold)
    return probabilities.gather(-1, _column(drafted)).squeeze(-1) > bound


def accepts(logits: torch.Tensor, drafted: torch.Tensor, rule: AcceptanceRule) -> torch.Tensor:
    """`plausible` of logits [tokens, vocabulary]."""
    blocks = zip(logits.split(ROWS), drafted.split(ROWS), strict=True)
    return torch.cat(
        [plausible(rows.softmax(-1, dtype=torch.float32), ids, rule) for rows, ids in blocks]
    )


def make_certain(logits: torch.Tensor, marked: torch.Tensor, ids: torch.Tensor) -> None:
    """Leave the `marked` rows of `logits` only the token that `ids` names, in place."""
    column, marked = _column(ids), marked.unsqueeze(-1)
    kept = logits.gather(-1, column).masked_fill_(marked, 0.0)
    logits.masked_fill_(marked, float("-inf")).scatter_(-1, column, kept)


def _column(ids: torch.Tensor) -> torch.Tensor:
    return ids.clamp(min=0).long().unsqueeze(-1)


class TypicalSampler(v1.RejectionSampler):  # type: ignore[misc]
    """Typical acceptance for vLLM's V1 model runner."""

    def __init__(self, rule: AcceptanceRule, *args: Any) -> None:
        super().__init__(*args)
        self.rule = rule
        self._processed: torch.Tensor | None = None

    def forward(self, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
        """vLLM's own; drafts count as certain, whatever they were drawn from."""
        if not sampling_metadata.all_greedy:
            metadata, draft_probs = copy(metadata), None
        try:
            return super().forward(metadata, draft_probs, logits, sampling_metadata)
        finally:
            self._processed = None

    def apply_logits_processors(
        self, logits: torch.Tensor, sampling_metadata: Any, metadata: Any
    ) -> torch.Tensor:
        """Logits [tokens, vocabulary] from which vLLM's kernel reads the verdict."""
        logits = super().apply_logits_processors(logits, sampling_metadata, metadata)
        if sampling_metadata.all_greedy or not len(logits):
            return logits
        ends, drafted = metadata.cu_num_draft_tokens, metadata.draft_token_ids
        temperature = v1.expand_batch_to_tokens(sampling_metadata.temperature, ends, len(logits))
        judged = (temperature != v1.GREEDY_TEMPERATURE) & (drafted >= 0)  # below 0 is padding
        target = v1.apply_sampling_constraints(logits.clone(), ends, sampling_metadata)
        accepted = accepts(target, drafted, self.rule)
        recovered = self._recovered(target, sampling_metadata, metadata)
        make_certain(logits, judged, torch.where(accepted, drafted, recovered))
        # Any other token has no probability now, so that the kernel stops at this one even
        # where what was rejected is the target's first choice.
        other = (recovered + 1) % logits.shape[-1]
        metadata.draft_token_ids = torch.where(judged & ~accepted, other, drafted)
        if self.is_processed_logprobs_mode:
            self._processed = target
        return logits

    def _recovered(
        self, target: torch.Tensor, sampling_metadata: Any, metadata: Any
    ) -> torch.Tensor:
        """The token to emit in place of each drafted one: ids [tokens]."""
        drafted, first = metadata.draft_token_ids, target.argmax(-1)
        if self.rule.recovery == "sample":
            probabilities = target.softmax(-1, dtype=torch.float32)
            drawn = v1.sample_recovered_tokens(
                metadata.max_spec_len,
                metadata.num_draft_tokens,
                metadata.cu_num_draft_tokens,
                drafted,
                None,
                probabilities,
                sampling_metadata,
                target.device,
                self.use_fp64_gumbel,
            )
            # Nothing can be drawn where the target has no other token than the drafted one.
            possible = probabilities.gather(-1, _column(drawn)).squeeze(-1) > 0
            first = torch.where(possible, drawn, first)
        return first.to(drafted.dtype)

    def _get_logprobs_tensors(
        self, max_num_logprobs: int, metadata: Any, logits: Any, target_logits: Any, *rest: Any
    ) -> Any:
        if self._processed is not None:
            target_logits = self._processed
        return super()._get_logprobs_tensors(
            max_num_logprobs, metadata, logits, target_logits, *rest
        )


class TypicalSamplerV2(v2.RejectionSampler):  # type: ignore[misc]
    """Typical acceptance for vLLM's V2 model runner."""

    def __init__(self, rule: AcceptanceRule, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rule = rule

    def _verify(
        self,
        logits: torch.Tensor,
        draft_logits: torch.Tensor | None,
        draft_sampled: torch.Tensor,
        pos: torch.Tensor,
        cu_num_logits: torch.Tensor,
        idx_mapping: torch.Tensor,
        idx_mapping_np: Any,
        expanded_idx_mapping: torch.Tensor,
        expanded_local_pos: torch.Tensor,
        seq_lens_upper_bound_np: Any,
        verify_draft_sampled: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits as processed, tokens [requests, K + 1] and how many of them count."""
        del draft_logits  # drafts count as certain, whatever they were drawn from
        processed = self.sampler.apply_sampling_params(
            logits,
            expanded_idx_mapping,
            idx_mapping,
            idx_mapping_np,
            pos,
            draft_sampled,
            expanded_local_pos,
            seq_lens_upper_bound_np,
        )
        states = self.sampler.sampling_states
        # A request's rows verify the token of the row below; its last row verifies none.
        drafted = verify_draft_sampled.roll(-1)
        drafted.index_fill_(0, cu_num_logits[1:].long() - 1, -1)
        judged = (states.temperature.gpu[expanded_idx_mapping] != 0) & (drafted >= 0)
        rows = processed.to(torch.float32, copy=True)
        accepted = accepts(rows, drafted, self.rule)
        rejected = judged & ~accepted
        first = rows.argmax(-1)
        certain = judged
        if self.rule.recovery == "sample":
            column = _column(drafted)
            hidden = rows.gather(-1, column).masked_fill_(rejected.unsqueeze(-1), float("-inf"))
            rows.scatter_(-1, column, hidden)
            certain = judged & (accepted | (rows.amax(-1) == float("-inf")))
        make_certain(rows, certain, torch.where(accepted, drafted, first))
        # Below 0, a token ends the walk, and the next one is drawn from its row as it is.
        walked = verify_draft_sampled.masked_fill(rejected.roll(1), -1)
        sampled, count = v2.rejection_sample(
            rows,
            None,
            walked,
            cu_num_logits,
            pos,
            idx_mapping,
            expanded_idx_mapping,
            expanded_local_pos,
            states.temperature.gpu,
            states.seeds.gpu,
            self.num_speculative_steps,
            use_fp64=self.sampler.use_fp64_gumbel,
            **self._watermarking_kwargs(draft_sampled, expanded_idx_mapping, expanded_local_pos),
        )
        return processed, sampled, count


def install(runner: Any, rule: AcceptanceRule) -> None:
    """Have a model runner that has loaded its model verify by typical acceptance.

    Raises:
        RuntimeError: it verifies with something else than vLLM's two rejection samplers.
    """
    current: Any = getattr(runner, "rejection_sampler", None)
    if current is None and not get_pp_group().is_last_rank:
        return  # this rank samples nothing
    if type(current) in (v1.RejectionSampler, TypicalSampler):
        sampler = TypicalSampler(rule, current.sampler, runner.speculative_config, runner.device)
    elif type(current) in (v2.RejectionSampler, TypicalSamplerV2):
        sampler = TypicalSamplerV2(
            rule,
            current.sampler,
            runner.speculative_config,
            runner.device,
            watermark_key=current.watermark_key,
        )
    else:
        raise RuntimeError(
            "SPEC_DECODING_ACCEPTANCE_METHOD=typical_acceptance_sampler: cannot be installed, "
            f"{type(runner).__name__} verifies drafts with {type(current).__name__}; "
            "allowed: rejection_sampler"
        )
    runner.rejection_sampler = sampler
    logger.info("%s, in %s", rule.reason, type(sampler).__name__)
