from typing import Any

import pytest

from specworker import layer_layout

DEPTH = 4
LLAMA: dict[str, Any] = {"model_type": "llama", "num_hidden_layers": DEPTH, "hidden_size": 32}
NAMES = [
    "lm_head.weight",
    "model.norm.weight",
    *(f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(DEPTH)),
]


def test_a_llama_like_model_can_be_cut() -> None:
    assert layer_layout.unfit(LLAMA) is None
    assert layer_layout.unfit(LLAMA, NAMES) is None


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "gpt2", "n_layer": 12}, "num_hidden_layers=None"),
        (LLAMA | {"num_hidden_layers": 1}, "num_hidden_layers=1"),
        ({"text_config": LLAMA}, "text_config"),
        (LLAMA | {"num_nextn_predict_layers": 1}, "SPECULATIVE_METHOD=mtp"),
        (LLAMA | {"num_kv_shared_layers": 2}, "num_kv_shared_layers"),
        (LLAMA | {"decoder_sparse_step": 2}, "decoder_sparse_step"),
        (LLAMA | {"decoder_sparse_step": 2, "layer_types": ["a"] * DEPTH}, "decoder_sparse_step"),
        (LLAMA | {"moe_layer_freq": [0, 1, 1, 1]}, "moe_layer_freq"),
        (LLAMA | {"sliding_window_pattern": 6}, "sliding_window_pattern"),
    ],
)
def test_a_model_whose_layers_are_not_alike_or_elsewhere_is_not(
    config: dict[str, Any], said: str
) -> None:
    reason = layer_layout.unfit(config)
    assert reason is not None
    assert said in reason


@pytest.mark.parametrize(
    "config",
    [
        {"num_nextn_predict_layers": 0, "num_kv_shared_layers": 0},
        {"decoder_sparse_step": 1, "moe_layer_freq": 1},
        {"sliding_window_pattern": 2, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ],
)
def test_a_model_that_only_could_differ_from_layer_to_layer_is_one(config: dict[str, Any]) -> None:
    assert layer_layout.unfit(LLAMA | config) is None


@pytest.mark.parametrize(
    "names",
    [
        ["transformer.h.0.attn.weight"],
        ["language_model.model.layers.0.mlp.weight"],
        NAMES[:-1],
        [*NAMES, "model.layers.4.mlp.up_proj.weight"],
    ],
)
def test_tensors_that_are_not_those_of_all_its_layers_are_refused(names: list[str]) -> None:
    reason = layer_layout.unfit(LLAMA, names)
    assert reason == "its tensors are not those of model.layers.0 to model.layers.3"


def test_tensors_of_kept_layers_move_up_and_others_stay() -> None:
    kept = {name: layer_layout.kept(name, (0, 3)) for name in NAMES}
    assert kept == {
        "lm_head.weight": "lm_head.weight",
        "model.norm.weight": "model.norm.weight",
        "model.layers.0.mlp.up_proj.weight": "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.mlp.up_proj.weight": None,
        "model.layers.2.mlp.up_proj.weight": None,
        "model.layers.3.mlp.up_proj.weight": "model.layers.1.mlp.up_proj.weight",
    }


def test_a_config_says_of_each_kept_layer_what_it_said_before() -> None:
    kinds = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    config = LLAMA | {
        "layer_types": kinds,
        "no_rope_layers": [1, 1, 1, 0],
        "mlp_only_layers": [1, 3],
        "first_k_dense_replace": 2,
        "max_window_layers": 28,
        "eos_token_id": [1, 2, 3, 4],
    }
    assert layer_layout.config_of(config, (0, 2, 3)) == config | {
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "full_attention", "sliding_attention"],
        "no_rope_layers": [1, 1, 0],
        "mlp_only_layers": [2],
        "first_k_dense_replace": 1,
        "max_window_layers": 3,
    }
    assert config["layer_types"] == kinds


def test_a_quantization_config_names_the_kept_layers_by_their_new_places() -> None:
    quantization = {
        "quant_method": "compressed-tensors",
        "ignore": ["lm_head", "model.layers.1.mlp.gate", "model.layers.3.mlp.gate"],
        "extra_config": {"model.layers.3.mlp": {"bits": 8}, "model.layers.0.mlp": {"bits": 4}},
        "config_groups": {"group_0": {"targets": [r"re:.*layers\.3\..*", "Linear"], "bits": [8]}},
    }
    cut = layer_layout.config_of(LLAMA | {"quantization_config": quantization}, (0, 3))
    assert cut["quantization_config"] == {
        "quant_method": "compressed-tensors",
        "ignore": ["lm_head", "model.layers.1.mlp.gate"],
        "extra_config": {"model.layers.1.mlp": {"bits": 8}, "model.layers.0.mlp": {"bits": 4}},
        "config_groups": {"group_0": {"targets": [r"re:.*layers\.1\..*", "Linear"], "bits": [8]}},
    }
