from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from specworker import weights
from specworker.checkpoint import Checkpoint
from specworker.weights import Tensor, Weights
from tests.published import CONFIGS

LLAMA = CONFIGS["llama-3.1-8b"]
BY_HAND = {
    "llama-3.1-8b": 8_030_261_248,
    "qwen2.5-72b": 72_706_203_648,
    "deepseek-v3": 671_026_419_200,
}
ENDS = 2 * 128_256 * 4096


def of(config: dict[str, Any], tensors: list[Tensor] | None = None, **options: Any) -> Weights:
    size = options.pop("weight_bytes", None)
    found = weights.of(Checkpoint("org/m", config, weight_bytes=size), tensors or [], **options)
    assert found is not None
    return found


@pytest.mark.parametrize("name", BY_HAND)
def test_a_published_config_has_as_many_parameters_as_were_counted_by_hand(name: str) -> None:
    assert of(CONFIGS[name]).parameters == pytest.approx(BY_HAND[name], rel=0.01)


@pytest.mark.parametrize(("name", "each"), [("llama-3.1-8b", 2), ("deepseek-v3", 1)])
def test_a_weight_takes_what_its_checkpoint_stores(name: str, each: int) -> None:
    found = of(CONFIGS[name])
    assert found.source == "config"
    assert found.size == pytest.approx(BY_HAND[name] * each, rel=0.01)


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, 4 + 20 / 64),
        ({"config_groups": {"group_0": {"weights": {"num_bits": 8}}}}, 8),
        ({"quant_method": "mxfp4"}, 4.25),
        ({"load_in_8bit": True, "quant_method": "bitsandbytes"}, 8),
    ],
)
def test_all_but_the_embeddings_is_quantized(quantization: dict[str, Any], bits: float) -> None:
    found = of(LLAMA | {"quantization_config": quantization})
    expected = (BY_HAND["llama-3.1-8b"] - ENDS) * bits / 8 + ENDS * 2
    assert found.size == pytest.approx(expected, rel=0.001)


def test_weights_can_be_quantized_as_they_are_loaded() -> None:
    expected = BY_HAND["llama-3.1-8b"] - ENDS + ENDS * 2
    assert of(LLAMA, quantization="fp8").size == pytest.approx(expected, rel=0.001)
    stored = of(LLAMA, weight_bytes=2 * BY_HAND["llama-3.1-8b"], quantization="fp8")
    assert stored.size == pytest.approx(expected, rel=0.001)
    # What is stored quantized stays so.
    own = LLAMA | {"quantization_config": {"quant_method": "fp8"}}
    assert of(own, weight_bytes=8_000, quantization="fp8").size == 8_000


def test_headers_win_over_the_size_of_files_and_that_over_the_config() -> None:
    tensors = [Tensor("model.layers.0.w", "BF16", 100), Tensor("lm_head.weight", "BF16", 50)]
    assert of(LLAMA, tensors, weight_bytes=7_000) == Weights(150, 300, source="headers")
    assert of(LLAMA, weight_bytes=7_000).size == 7_000
    assert of(LLAMA, weight_bytes=7_000).source == "files"


def test_what_was_stored_in_32_bits_is_loaded_in_16_unless_it_is_asked_for() -> None:
    tensors = [Tensor("model.layers.0.w", "F32", 100)]
    assert (of(LLAMA, tensors).size, of(LLAMA, tensors, bits=32).size) == (200, 400)
    wide = LLAMA | {"torch_dtype": "float32"}
    assert of(wide, weight_bytes=400).size == 200


def test_types_of_a_quantized_checkpoint_are_loaded_as_they_are() -> None:
    kinds = [("F8_E4M3", 1), ("F32", 4), ("I32", 4), ("U8", 1), ("BOOL", 1), ("BF16", 2)]
    quantized = LLAMA | {"quantization_config": {"quant_method": "fp8"}}
    for kind, size in kinds:
        assert of(quantized, [Tensor("model.layers.0.w", kind, 8)]).size == 8 * size


def test_layers_of_multi_token_prediction_are_counted_apart() -> None:
    tensors = [
        Tensor("model.layers.31.w", "BF16", 100),
        Tensor("model.layers.32.w", "BF16", 10),
        Tensor("mtp.fc.weight", "BF16", 5),
        Tensor("vision_tower.encoder.layers.40.w", "BF16", 1),
    ]
    assert of(LLAMA, tensors) == Weights(101, 202, 30, "headers")


def test_nothing_is_known_of_a_model_that_says_nothing() -> None:
    assert weights.of(Checkpoint("org/m"), []) is None


def test_the_headers_of_a_folder_are_read(tmp_path: Path) -> None:
    save_file({"w": np.zeros((3, 4), np.float16)}, tmp_path / "model.safetensors")
    model = Checkpoint(str(tmp_path), {}, folder=tmp_path)
    assert weights.headers(model) == [Tensor("w", "F16", 12)]
    (tmp_path / "model.safetensors").write_bytes(b"no header")
    assert weights.headers(model) == []


def test_a_hub_out_of_reach_tells_no_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr("huggingface_hub.HfApi.get_safetensors_metadata", unreachable)
    assert weights.headers(Checkpoint("org/m", {}, folder=tmp_path)) == []
