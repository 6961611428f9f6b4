"""What vLLM says about models, asked of vLLM. No engine starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from specworker import capabilities, engine
from specworker.checkpoint import Checkpoint
from specworker.findings import EngineFacts

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
MIMO = {
    "model_type": "qwen2",
    "architectures": ["MiMoForCausalLM"],
    "num_nextn_predict_layers": 2,
}


def model(folder: Path, config: dict[str, Any]) -> Checkpoint:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return Checkpoint(str(folder), config, folder=folder)


def facts(
    target: Checkpoint, method: str, draft: Checkpoint | None = None, **options: str
) -> EngineFacts:
    config = {"method": method, "num_speculative_tokens": 1}
    args, _ = engine.arguments({"MODEL_NAME": target.name, **options}, config, {})
    return capabilities.of(args, target, draft)


def test_the_options_that_matter_are_read(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "DATA_PARALLEL_SIZE": "2",
        "ENABLE_LORA": "true",
        "MAX_MODEL_LEN": "512",
        "MAX_NUM_BATCHED_TOKENS": "300",
        "MAX_NUM_SEQS": "7",
        "TENSOR_PARALLEL_SIZE": "4",
    }
    read = facts(model(tmp_path, LLAMA), "ngram", **options)
    assert (read.tensor_parallel_size, read.data_parallel_size) == (4, 2)
    assert (read.max_num_seqs, read.max_num_batched_tokens, read.max_model_len) == (7, 300, 512)
    assert read.lora
    assert read.on_cpu
    assert read.suffix
    assert {"method", "model", "draft_tensor_parallel_size"} <= read.keys
    assert "tensor_parallel_size" not in read.keys
    assert (read.eagle3, read.mtp_layers) == (None, None)


@pytest.mark.parametrize("length", [{}, {"MAX_MODEL_LEN": "-1"}])
def test_what_is_not_set_is_vllms_default(tmp_path: Path, length: dict[str, Any]) -> None:
    read = facts(model(tmp_path, LLAMA), "ngram", **length)
    assert read.max_num_seqs > 0
    assert read.max_num_batched_tokens > 0
    assert read.max_model_len is None
    assert not read.lora
    assert not read.lengthens


def test_vllm_may_be_told_to_take_longer_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    assert facts(model(tmp_path, LLAMA), "ngram").lengthens


@pytest.mark.parametrize(
    ("architecture", "serves"),
    [("LlamaForCausalLM", True), ("GPT2LMHeadModel", False), ("Unknown", None), (None, None)],
)
def test_eagle_3_needs_a_target_whose_hidden_states_can_be_read(
    tmp_path: Path, architecture: str | None, serves: bool | None
) -> None:
    target = model(tmp_path, LLAMA | {"architectures": architecture and [architecture]})
    assert facts(target, "eagle3").eagle3 is serves
    assert facts(target, "eagle").eagle3 is None


def test_another_implementation_of_a_model_may_serve_it(tmp_path: Path) -> None:
    target = model(tmp_path, LLAMA | {"architectures": ["GPT2LMHeadModel"]})
    assert facts(target, "eagle3", MODEL_IMPL="transformers").eagle3 is None


def test_layers_of_multi_token_prediction_are_counted_as_vllm_counts_them(tmp_path: Path) -> None:
    assert facts(model(tmp_path / "mimo", MIMO), "mtp").mtp_layers == 2
    assert facts(model(tmp_path / "llama", LLAMA), "mtp").mtp_layers == 0
    assert facts(model(tmp_path / "mimo", MIMO), "eagle").mtp_layers is None


def test_a_draft_of_its_own_has_them_in_place_of_the_target(tmp_path: Path) -> None:
    target, draft = model(tmp_path / "llama", LLAMA), model(tmp_path / "mimo", MIMO)
    assert facts(target, "mtp", draft).mtp_layers == 2


@pytest.mark.parametrize("config", [{}, {"model_type": "unknown"}])
def test_of_a_config_that_says_too_little_nothing_is_known(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    assert facts(model(tmp_path, config), "mtp").mtp_layers is None


def test_of_a_model_that_is_not_here_nothing_is_known() -> None:
    assert facts(Checkpoint("org/elsewhere"), "mtp").mtp_layers is None
    assert facts(Checkpoint("org/elsewhere"), "eagle3").eagle3 is None
