"""MLP speculators (arXiv 2404.19124): vLLM 0.32.0 has the modules, but nothing drafts with them.

They draft where Medusa does, from the hidden state that the target ends a step with, and
need one thing more: the token that it sampled there. So to vLLM the method is `medusa`,
with a model and a proposer that are ours.
"""

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from vllm import ModelRegistry
from vllm.logger import init_logger
from vllm.model_executor.models.mlp_speculator import MLPSpeculator as MLPSpeculatorModules
from vllm.transformers_utils.configs.mlp_speculator import MLPSpeculatorConfig
from vllm.v1.spec_decode.medusa import MedusaProposer

from specworker.drafting import MLP_SPECULATOR

logger = init_logger(f"vllm.{__name__}")

#: The keys of such a draft's `config.json` that matter.
KEYS = ("vocab_size", "emb_dim", "inner_dim", "n_predict", "tie_weights", "scale_input")


class MLPSpeculator(MLPSpeculatorModules):  # type: ignore[misc]
    """The stages of an MLP speculator: H is the target's hidden size, B the batch's size."""

    head: nn.ModuleList

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        draft = vllm_config.speculative_config.draft_model_config.hf_config
        given = {key: getattr(draft, key) for key in KEYS if hasattr(draft, key)}
        config = MLPSpeculatorConfig(**given, top_k_tokens_per_head=[1] * draft.n_predict)
        config.num_lookahead_tokens = vllm_config.speculative_config.num_speculative_tokens
        own = SimpleNamespace(model_config=SimpleNamespace(hf_config=config))
        super().__init__(vllm_config=own, prefix=prefix)
        if self.tie_weights:  # vLLM ties all but these, and then misses them in the checkpoint
            self.head = nn.ModuleList([self.head[0]] * len(self.head))

    def forward(
        self, hidden_states: torch.Tensor, last_tokens: torch.Tensor, tokens: int
    ) -> torch.Tensor:
        """Draft greedily.

        Args:
            hidden_states: [B, H], from which the target sampled `last_tokens`.
            last_tokens: [B].
            tokens: how many to draft for each.

        Returns:
            The drafted tokens: [B, tokens].
        """
        state, drafted = hidden_states, [last_tokens]
        if self.scale_input:
            state = self.ln0(state) / math.sqrt(2)
        weight = self.emb_weight / self.state_weight
        for stage in range(tokens):
            state = self.proj[stage](state) + weight * self.emb[stage](drafted[-1])
            state = self.activation(self.ln[stage](state))
            drafted.append(self.logits_processor(self.head[stage], state).argmax(dim=-1))
        return torch.stack(drafted, dim=1)[:, 1:]


class MLPSpeculatorProposer(MedusaProposer):  # type: ignore[misc]
    """Drafts with an MLP speculator for the batch of a model runner."""

    def __init__(self, runner: Any) -> None:
        super().__init__(vllm_config=runner.vllm_config, device=runner.device)
        self._runner = runner

    def propose(
        self,
        num_speculative_tokens: int,
        target_hidden_states: torch.Tensor,
        sampling_metadata: Any,  # noqa: ARG002
        slot_mappings: Any = None,  # noqa: ARG002
    ) -> torch.Tensor:
        """Draft as many tokens as the step asks for: [B, num_speculative_tokens]."""
        batch, rows = self._runner.input_batch, len(target_hidden_states)
        last = batch.token_ids_cpu[np.arange(rows), batch.num_tokens_no_spec[:rows] - 1]
        last_tokens = torch.from_numpy(last).to(self.device, torch.int64)
        drafted: torch.Tensor = self.model(
            target_hidden_states, last_tokens, num_speculative_tokens
        )
        return drafted


def as_medusa(config: Mapping[str, Any]) -> dict[str, Any]:
    """The speculative configuration `config` as vLLM takes it; it learns the model here."""
    ModelRegistry.register_model(MLP_SPECULATOR, MLPSpeculator)
    return {**config, "method": "medusa"}


def install(runner: Any) -> None:
    """Replace the drafter of a model runner whose draft is an MLP speculator.

    Before the runner loads its models. The runners of a pipeline's earlier stages have no
    drafter.
    """
    drafter = getattr(runner, "drafter", None)
    if not isinstance(drafter, MedusaProposer):
        return
    if MLP_SPECULATOR not in drafter.spec_config.draft_model_config.architectures:
        return
    ModelRegistry.register_model(MLP_SPECULATOR, MLPSpeculator)
    runner.drafter = MLPSpeculatorProposer(runner)
    logger.info("method mlp_speculator drafts in place of medusa")
