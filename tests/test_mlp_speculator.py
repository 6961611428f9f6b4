import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from vllm import ModelRegistry
from vllm.model_executor.models.mlp_speculator import MLPSpeculatorLayerNorm
from vllm.v1.spec_decode.medusa import MedusaProposer

from specworker.drafting import MLP_SPECULATOR
from specworker.inside_vllm import mlp_speculator
from specworker.inside_vllm.mlp_speculator import MLPSpeculator, MLPSpeculatorProposer

V, H, D, STAGES = 19, 12, 8, 3


def stages(*, scaled: bool) -> Any:
    """As much of an MLP speculator as drafting uses, without vLLM's layers for many GPUs."""
    torch.manual_seed(0)

    def norm() -> MLPSpeculatorLayerNorm:
        made = MLPSpeculatorLayerNorm(D)
        nn.init.normal_(made.weight)
        nn.init.normal_(made.bias)
        return made

    return SimpleNamespace(
        emb=[nn.Embedding(V, D) for _ in range(STAGES)],
        proj=[nn.Linear(D if i else H, D, bias=False) for i in range(STAGES)],
        ln=[norm() for _ in range(STAGES)],
        head=[nn.Linear(D, V, bias=False) for _ in range(STAGES)],
        ln0=MLPSpeculatorLayerNorm(H, elementwise_scale_and_shift=False),
        scale_input=scaled,
        state_weight=0.5 ** (0.5 / STAGES),
        emb_weight=math.sqrt((1 - 0.5 ** (1 / STAGES)) * D / 2),
        activation=nn.GELU(),
        logits_processor=lambda head, state: head(state),
    )


def by_the_paper(own: Any, hidden: torch.Tensor, token: int) -> list[int]:
    """What is drafted for one request, written out: hidden state [H], last token."""

    def normalized(x: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean() + 1e-6).sqrt()

    state = normalized(hidden) / 2**0.5 if own.scale_input else hidden
    drafted = []
    for i in range(STAGES):
        joined = own.proj[i].weight @ state
        joined = joined + own.emb[i].weight[token] * (own.emb_weight / own.state_weight)
        state = functional.gelu(normalized(joined) * own.ln[i].weight + own.ln[i].bias)
        token = int((own.head[i].weight @ state).argmax())
        drafted.append(token)
    return drafted


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("tokens", [3, 2, 1])
def test_each_stage_reads_the_state_and_the_token_of_the_one_before(
    *, scaled: bool, tokens: int
) -> None:
    own = stages(scaled=scaled)
    hidden, last = torch.randn(40, H) * 3, torch.arange(40) % V
    with torch.inference_mode():
        drafted = MLPSpeculator.forward(own, hidden, last, tokens)
        expected = [by_the_paper(own, *row) for row in zip(hidden, last.tolist(), strict=True)]
    assert drafted.tolist() == [row[:tokens] for row in expected]
    assert len({tuple(row) for row in expected}) > 5


def test_no_stage_runs_for_no_tokens() -> None:
    nothing: Any = SimpleNamespace(scale_input=False, emb_weight=1.0, state_weight=1.0)
    drafted = MLPSpeculator.forward(nothing, torch.zeros(2, H), torch.tensor([1, 2]), 0)
    assert drafted.shape == (2, 0)
    assert drafted.dtype == torch.int64


# The proposer.


def runner(architecture: str = MLP_SPECULATOR) -> Any:
    """As much of vLLM's model runner as is touched, with the drafter that it makes itself."""
    draft = SimpleNamespace(architectures=[architecture], get_hidden_size=lambda: H)
    speculative = SimpleNamespace(draft_model_config=draft, num_speculative_tokens=STAGES)
    config = SimpleNamespace(
        speculative_config=speculative,
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64),
        model_config=SimpleNamespace(dtype=torch.float32),
    )
    made = SimpleNamespace(vllm_config=config, device=torch.device("cpu"))
    made.drafter = MedusaProposer(vllm_config=config, device=made.device)
    return made


def test_it_drafts_after_the_last_sampled_token_of_each_request() -> None:
    own = runner()
    tokens = np.arange(50, dtype=np.int32).reshape(5, 10)
    tokens[:, 6:] = -1  # room, or tokens that were drafted and not yet verified
    own.input_batch = SimpleNamespace(
        token_ids_cpu=tokens, num_tokens_no_spec=np.array([6, 1, 3, 9, 9], dtype=np.int32)
    )
    proposer = MLPSpeculatorProposer(own)
    hidden = torch.zeros(3, H)

    def model(hidden_states: torch.Tensor, last: torch.Tensor, count: int) -> torch.Tensor:
        assert hidden_states is hidden
        assert last.tolist() == [5, 10, 22]
        return last.unsqueeze(1).expand(-1, count)

    proposer.model = model
    for count in (3, 1, 0):
        drafted = proposer.propose(count, hidden, sampling_metadata=None, slot_mappings=None)
        assert drafted.shape == (3, count)
        assert drafted.dtype == torch.int64


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """vLLM's models without ours; they are as they were after the test."""
    models = {name: model for name, model in ModelRegistry.models.items() if name != MLP_SPECULATOR}
    monkeypatch.setattr(ModelRegistry, "models", models)
    return models


def test_an_mlp_speculator_gets_its_own_proposer(registry: dict[str, Any]) -> None:
    own = runner()
    mlp_speculator.install(own)
    assert isinstance(own.drafter, MLPSpeculatorProposer)
    assert own.drafter.spec_config is own.vllm_config.speculative_config
    assert registry[MLP_SPECULATOR].load_model_cls() is MLPSpeculator


@pytest.mark.parametrize("drafter", ["medusa", "another", None])
def test_other_drafters_are_left_alone(registry: dict[str, Any], drafter: str | None) -> None:
    own = runner("MedusaModel")
    if drafter is None:
        del own.drafter
    elif drafter == "another":
        own.drafter = object()
    before = getattr(own, "drafter", None)
    mlp_speculator.install(own)
    assert getattr(own, "drafter", None) is before
    assert MLP_SPECULATOR not in registry


def test_vllm_is_told_of_the_model_and_of_a_method_that_it_has(registry: dict[str, Any]) -> None:
    given = {"method": "mlp_speculator", "model": "org/mlp", "num_speculative_tokens": 3}
    assert mlp_speculator.as_medusa(given) == given | {"method": "medusa"}
    assert given["method"] == "mlp_speculator"
    assert registry[MLP_SPECULATOR].load_model_cls() is MLPSpeculator
