"""How large a model is, from its `config.json`."""

from collections.abc import Mapping
from typing import Any

#: Bytes of a weight, where nothing but the size of the files is known.
BYTES = 2
#: What says how many experts a model of experts has.
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")


def parameters(config: Mapping[str, Any]) -> int | None:
    """About how many parameters a token passes through: of the experts, those that it takes.

    Args:
        config: of the language model. Llama-like layers are assumed.

    Returns:
        None where `config` does not say enough.
    """
    return _all_layers(config, number(config, "num_experts_per_tok"))


def total(config: Mapping[str, Any]) -> int | None:
    """About how many parameters there are, as `parameters`: every expert counts."""
    return _all_layers(config, _experts(config))


def embedded(config: Mapping[str, Any]) -> int:
    """How many of them are embeddings and output head, which quantization leaves as they are."""
    ends = 1 if config.get("tie_word_embeddings") else 2
    return ends * number(config, "vocab_size") * number(config, "hidden_size")


def width(config: Mapping[str, Any]) -> int:
    """Values of a token in a layer's feed-forward part: its inner width, and experts' outputs."""
    if not _experts(config) > 1:
        return _dense(config)
    taken = number(config, "num_experts_per_tok")
    return max(_dense(config), _side_by_side(config, taken) + taken * number(config, "hidden_size"))


def shown(count: int) -> str:
    """A number of parameters in few digits: `135M`, `7.6B`."""
    if count < 1e9:
        return f"{max(1, round(count / 1e6))}M"
    return f"{count / 1e9:.1f}B" if count < 1e10 else f"{count / 1e9:.0f}B"


def number(config: Mapping[str, Any], key: str) -> int:
    """The integer under `key`; 0 where there is none."""
    value = config.get(key)
    return value if isinstance(value, int) else 0


def _all_layers(config: Mapping[str, Any], experts: int) -> int | None:
    """Parameters with `experts` of the experts in each layer that has some."""
    needed = ("hidden_size", "num_attention_heads", "vocab_size", "intermediate_size")
    layers = number(config, "num_hidden_layers")
    if not layers or not all(number(config, key) for key in needed):
        return None
    sparse = sum(_is_sparse(config, layer) for layer in range(layers))
    widths = (layers - sparse) * _dense(config) + sparse * _side_by_side(config, experts)
    hidden = number(config, "hidden_size")
    routers = sparse * hidden * _experts(config)
    return layers * _attention(config) + 3 * hidden * widths + routers + embedded(config)


def _attention(config: Mapping[str, Any]) -> int:
    """Parameters of a layer's attention; multi-head latent attention has projections of its own."""
    hidden, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    latent = number(config, "kv_lora_rank")
    if not latent:
        width = number(config, "head_dim") or hidden // heads
        key_values = number(config, "num_key_value_heads") or heads
        return 2 * hidden * width * (heads + key_values)
    plain, turned = number(config, "qk_nope_head_dim"), number(config, "qk_rope_head_dim")
    value, rank = number(config, "v_head_dim"), number(config, "q_lora_rank")
    queries = heads * (plain + turned)
    asked = rank * (hidden + queries) if rank else hidden * queries
    kept = hidden * (latent + turned) + latent * heads * (plain + value)
    return asked + kept + heads * value * hidden


def _dense(config: Mapping[str, Any]) -> int:
    """Width of a feed-forward layer without experts."""
    return number(config, "intermediate_size_mlp") or number(config, "intermediate_size")


def _side_by_side(config: Mapping[str, Any], experts: int) -> int:
    """Width of `experts` experts, and of those that every token takes."""
    each = number(config, "moe_intermediate_size") or number(config, "intermediate_size")
    shared = number(config, "shared_expert_intermediate_size") or (
        number(config, "n_shared_experts") * each
    )
    return experts * each + shared


def _experts(config: Mapping[str, Any]) -> int:
    return max(number(config, key) for key in EXPERTS)


def _is_sparse(config: Mapping[str, Any], layer: int) -> bool:
    """Whether a layer has experts."""
    if _experts(config) < 2 or not number(config, "num_experts_per_tok"):
        return False
    if layer < number(config, "first_k_dense_replace"):
        return False
    if layer in (config.get("mlp_only_layers") or ()):
        return False
    every = config.get("moe_layer_freq") or 1
    if isinstance(every, list):
        return bool(every[layer : layer + 1] != [0])
    steps = (
        number(config, key) or 1 for key in ("decoder_sparse_step", "interleave_moe_layer_step")
    )
    return layer % every == 0 and all((layer + 1) % step == 0 for step in steps)
