"""About how large a model is, from its `config.json`."""

from collections.abc import Mapping
from typing import Any

#: Bytes of a weight, where nothing but the size of the files is known.
BYTES = 2


def parameters(config: Mapping[str, Any]) -> int | None:
    """About how many parameters a token passes through: of the experts, those that it takes.

    Args:
        config: of the language model. Llama-like layers are assumed.

    Returns:
        None where `config` does not say enough.
    """
    hidden = _number(config, "hidden_size")
    layers = _number(config, "num_hidden_layers")
    heads = _number(config, "num_attention_heads")
    vocabulary = _number(config, "vocab_size")
    inner = _number(config, "intermediate_size")
    if not hidden or not layers or not heads or not vocabulary or not inner:
        return None
    width = _number(config, "head_dim") or hidden // heads
    key_values = _number(config, "num_key_value_heads") or heads
    attention = 2 * hidden * width * (heads + key_values)
    ends = 1 if config.get("tie_word_embeddings") else 2
    feed_forward = 3 * hidden * _active(config, inner)
    return layers * (attention + feed_forward) + ends * vocabulary * hidden


def shown(count: int) -> str:
    """A number of parameters in few digits: `135M`, `7.6B`."""
    if count < 1e9:
        return f"{max(1, round(count / 1e6))}M"
    return f"{count / 1e9:.1f}B" if count < 1e10 else f"{count / 1e9:.0f}B"


def _active(config: Mapping[str, Any], inner: int) -> int:
    """Width of the feed-forward layers that a token passes through, side by side."""
    experts = ("num_experts", "n_routed_experts", "num_local_experts")
    taken = _number(config, "num_experts_per_tok")
    if not taken or not any(_number(config, key) > 1 for key in experts):
        return inner
    each = _number(config, "moe_intermediate_size") or inner
    shared = _number(config, "shared_expert_intermediate_size") or (
        _number(config, "n_shared_experts") * each
    )
    return taken * each + shared


def _number(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    return value if isinstance(value, int) else 0
