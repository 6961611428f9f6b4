from typing import Any, get_args

import pytest
from vllm.config.cache import CacheDType

from specworker import kv_cache
from specworker.kv_cache import Cache
from tests.published import CONFIGS

ONE_LAYER = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1}
FOUR_LAYERS = ONE_LAYER | {"num_hidden_layers": 4}
EACH = 2 * 64 * 2  # bytes of keys and values of a token in a layer


def of(config: dict[str, Any], **options: Any) -> Cache:
    found = kv_cache.of(config, 16, **options)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("llama-3.1-8b", 32 * 2 * 8 * 128 * 2),
        ("qwen2.5-72b", 80 * 2 * 8 * 128 * 2),
        ("deepseek-v3", 61 * (512 + 64) * 2),
    ],
)
def test_a_published_model_keeps_what_was_computed_by_hand(name: str, by_hand: int) -> None:
    assert of(CONFIGS[name]).per_token == pytest.approx(by_hand, rel=0.01)


def test_heads_are_divided_among_the_gpus_and_each_keeps_at_least_one() -> None:
    config = CONFIGS["llama-3.1-8b"]
    whole = of(config).per_token
    assert of(config, shares=4).per_token == whole / 4
    assert of(config, shares=16).per_token == of(config, shares=8).per_token == whole / 8
    assert of(config, shares=4, stages=2).per_token == whole / 8


def test_a_latent_is_kept_by_every_gpu() -> None:
    config = CONFIGS["deepseek-v3"]
    assert of(config, shares=8) == of(config)


def test_a_sequence_takes_whole_blocks() -> None:
    cache = of(ONE_LAYER)
    assert (cache.of(1), cache.of(16), cache.of(17)) == (16 * EACH, 16 * EACH, 32 * EACH)


@pytest.mark.parametrize(
    "windows",
    [
        {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2},
        {"sliding_window_pattern": 3, "num_hidden_layers": 6},
    ],
)
def test_layers_with_a_window_keep_no_more_than_it(windows: dict[str, Any]) -> None:
    config = FOUR_LAYERS | {"sliding_window": 32, "num_hidden_layers": 6} | windows
    cache = of(config)
    assert cache.per_token == 6 * EACH
    assert cache.of(16) == 6 * 16 * EACH
    assert cache.of(320) == (2 * 320 + 4 * 32) * EACH
    assert of(config, windowed=False).of(320) == 6 * 320 * EACH


def test_a_window_for_all_layers_some_or_none() -> None:
    config = FOUR_LAYERS | {"sliding_window": 32}
    assert of(config).of(320) == 4 * 32 * EACH
    assert of(config | {"use_sliding_window": False}).of(320) == 4 * 320 * EACH
    some = {"use_sliding_window": True, "max_window_layers": 3}
    assert of(config | some).of(320) == (3 * 320 + 32) * EACH


def test_layers_without_keys_or_with_those_of_others_keep_none() -> None:
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
    assert of(FOUR_LAYERS | {"layer_types": kinds}).per_token == EACH
    assert of(FOUR_LAYERS | {"num_kv_shared_layers": 3}).per_token == EACH


@pytest.mark.parametrize("key", ["num_attention_heads", "num_hidden_layers"])
def test_a_config_that_does_not_say_enough_gives_nothing(key: str) -> None:
    assert kv_cache.of(ONE_LAYER | {key: None}, 16) is None


def test_the_type_is_the_one_that_is_set_or_else_the_checkpoints() -> None:
    assert kv_cache.bits("fp8", {}) == 8
    assert kv_cache.bits("auto", {}) == 16
    assert kv_cache.bits("auto", {}, 32) == 32
    declared: dict[str, Any] = {"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}
    assert kv_cache.bits("auto", declared) == 8
    assert kv_cache.bits("bfloat16", declared) == 16
    named: dict[str, Any] = {"quantization_config": {"kv_cache_quant_algo": "FP8"}}
    assert kv_cache.bits("auto", named) == 8


def test_every_type_of_the_pinned_vllm_has_a_size() -> None:
    assert {*kv_cache.BITS, "auto"} == set(get_args(CacheDType))
