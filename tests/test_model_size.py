from collections.abc import Mapping
from typing import Any

import pytest

from specworker import model_size

LLAMA_8B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
QWEN_HALF_B = {
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
#: 30B parameters, of which a token passes through 3B.
QWEN_MOE = {
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
}


@pytest.mark.parametrize(
    ("config", "published"),
    [(LLAMA_8B, 8.03e9), (QWEN_HALF_B, 0.49e9), (QWEN_MOE, 3.3e9)],
)
def test_the_estimate_is_near_what_is_published(
    config: Mapping[str, Any], published: float
) -> None:
    assert model_size.parameters(config) == pytest.approx(published, rel=0.03)


def test_shared_experts_count() -> None:
    by_number = QWEN_MOE | {"n_shared_experts": 2}
    by_width = QWEN_MOE | {"shared_expert_intermediate_size": 1536}
    assert model_size.parameters(by_number) == model_size.parameters(by_width)
    assert (model_size.parameters(by_width) or 0) > (model_size.parameters(QWEN_MOE) or 0)


def test_a_model_of_one_expert_is_none_of_experts() -> None:
    assert model_size.parameters(
        LLAMA_8B | {"num_experts_per_tok": 1, "num_experts": 1}
    ) == model_size.parameters(LLAMA_8B)


@pytest.mark.parametrize("key", [key for key in LLAMA_8B if key != "num_key_value_heads"])
@pytest.mark.parametrize("value", [None, "4096", [4096]])
def test_a_config_that_does_not_say_enough_gives_no_estimate(key: str, value: Any) -> None:
    assert model_size.parameters(LLAMA_8B | {key: value}) is None


@pytest.mark.parametrize(
    ("count", "text"),
    [(3_000, "1M"), (134_515_008, "135M"), (7_615_616_512, "7.6B"), (72_706_203_648, "73B")],
)
def test_a_size_is_shown_as_models_are_named(count: int, text: str) -> None:
    assert model_size.shown(count) == text
