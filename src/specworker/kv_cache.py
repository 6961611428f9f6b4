"""What a token costs in the KV cache, from a model's `config.json`. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specworker.model_size import number

#: Tokens of a block, the unit that vLLM gives to a sequence.
BLOCK = 16
#: Bits of a value by KV_CACHE_DTYPE, scales included where a block of values has one.
#: Of `auto`, what a checkpoint declares or the weights' type; see `bits`.
BITS = {
    "float16": 16.0,
    "bfloat16": 16.0,
    "fp8": 8.0,
    "fp8_e4m3": 8.0,
    "fp8_e5m2": 8.0,
    "fp8_inc": 8.0,
    "fp8_per_token_head": 8.0,
    "int8_per_token_head": 8.0,
    "int4_per_token_head": 4.0,
    "nvfp4": 4.5,
    "nvfp4_4over6": 4.5,
    "ultraquant_4bit": 4.0,
    "turboquant_k8v4": 6.0,
    "turboquant_4bit_nc": 4.0,
    "turboquant_k3v4_nc": 3.5,
    "turboquant_3bit_nc": 3.0,
    "fp8_ds_mla": 656 * 8 / 576,  # 512 values and their scales, 64 in 16 bits
    "nvfp4_ds_mla": 656 * 8 / 576,  # an upper bound
}
#: Kinds of layers that keep a state of one size for a sequence, or nothing.
WITHOUT_KEYS = ("linear_attention", "mamba", "conv")
#: Kinds of layers that keep no more than a window.
WINDOWED = ("sliding_attention", "chunked_attention")


@dataclass(frozen=True)
class Cache:
    """What a model keeps of a sequence, in bytes.

    Attributes:
        whole: per token, in all layers that keep every token.
        windows: per token, in all layers that keep no more than so many tokens.
    """

    whole: float = 0
    windows: tuple[tuple[int, float], ...] = ()

    @property
    def per_token(self) -> float:
        """Of a token that every layer keeps."""
        return self.whole + sum(each for _, each in self.windows)

    def of(self, tokens: int) -> float:
        """Of a sequence of `tokens`, in whole blocks."""
        windowed = (each * _in_blocks(min(window, tokens)) for window, each in self.windows)
        return self.whole * _in_blocks(tokens) + sum(windowed)


def of(
    config: Mapping[str, Any],
    value_bits: float,
    *,
    shares: int = 1,
    stages: int = 1,
    windowed: bool = True,
) -> Cache | None:
    """What a GPU keeps of a sequence for the language model of `config`.

    Keys and values are divided by heads, of which each GPU keeps at least one. The latent of
    multi-head latent attention has no heads: every GPU keeps it.

    Args:
        config: of the language model.
        value_bits: bits of a value in the cache.
        shares: GPUs that the heads are divided among.
        stages: groups of GPUs that the layers are divided among.
        windowed: whether layers with a window keep no more than it.

    Returns:
        None where `config` does not say enough. States of layers without keys are not counted.
    """
    values = _values(config, shares)
    layers = list(_windows(config)) if values else []
    if not layers:
        return None
    each = values * value_bits / 8 / stages
    kept = [None if window and not windowed else window for window in layers]
    widths = sorted({window for window in kept if window})
    return Cache(
        whole=each * kept.count(None),
        windows=tuple((window, each * kept.count(window)) for window in widths),
    )


def bits(kv_cache_dtype: str, config: Mapping[str, Any], weights: float = 16) -> float:
    """Bits of a value in the cache.

    Args:
        kv_cache_dtype: KV_CACHE_DTYPE.
        config: the model's `config.json`, which may declare a type for its cache.
        weights: bits of a value between the layers.
    """
    if kv_cache_dtype != "auto":
        return BITS.get(kv_cache_dtype, weights)
    quantized = config.get("quantization_config")
    quantized = quantized if isinstance(quantized, dict) else {}
    scheme = quantized.get("kv_cache_scheme")
    if isinstance(scheme, dict) and isinstance(scheme.get("num_bits"), int):
        return float(scheme["num_bits"])
    return BITS.get(str(quantized.get("kv_cache_quant_algo")).lower(), weights)


def _values(config: Mapping[str, Any], shares: int) -> int:
    """Values that a GPU keeps of a token in a layer; 0 where `config` does not say."""
    if latent := number(config, "kv_lora_rank"):
        return latent + number(config, "qk_rope_head_dim")
    hidden, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    if not heads:
        return 0
    key_values = number(config, "num_key_value_heads") or heads
    return 2 * max(1, key_values // shares) * (number(config, "head_dim") or hidden // heads)


def _windows(config: Mapping[str, Any]) -> Iterator[int | None]:
    """For each layer with a cache of its own: its window, None for all tokens, 0 for no keys."""
    window = number(config, "sliding_window") or number(config, "attention_chunk_size")
    if config.get("use_sliding_window") is False:
        window = 0
    kinds = config.get("layer_types")
    pattern = number(config, "sliding_window_pattern")
    dense = number(config, "max_window_layers") if "use_sliding_window" in config else 0
    own = number(config, "num_hidden_layers") - number(config, "num_kv_shared_layers")
    for layer in range(own):
        kind = kinds[layer] if isinstance(kinds, list) and layer < len(kinds) else None
        if kind in WITHOUT_KEYS:
            yield 0
        elif kind is not None:
            yield (window or None) if kind in WINDOWED else None
        elif pattern:
            yield (window or None) if (layer + 1) % pattern else None
        else:
            yield (window or None) if layer >= dense else None


def _in_blocks(tokens: int) -> int:
    return -(-tokens // BLOCK) * BLOCK
