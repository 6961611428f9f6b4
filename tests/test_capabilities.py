"""What vLLM says about models, asked of vLLM. No engine starts."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.third_party.pynvml import NVML_ERROR_UNKNOWN, NVMLError

from specworker import capabilities, engine
from specworker.checkpoint import Checkpoint
from specworker.findings import EngineFacts, GpuFacts

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


def test_the_memory_of_a_gpu_is_what_its_driver_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = model(tmp_path, LLAMA)
    assert facts(target, "ngram").gpu is None  # as on this machine
    args, _ = engine.arguments(
        {
            "MODEL_NAME": target.name,
            "DTYPE": "float32",
            "GPU_MEMORY_UTILIZATION": "0.5",
            "KV_CACHE_DTYPE": "fp8",
            "PIPELINE_PARALLEL_SIZE": "2",
            "VLLM_CPU_KVCACHE_SPACE": "1",
        },
        None,
        {},
    )
    args.quantization = "fp8"
    gpu = SimpleNamespace(is_cpu=lambda: False, get_device_total_memory=lambda: 1000)
    monkeypatch.setattr(capabilities, "current_platform", gpu)
    read = capabilities.of(args, target, None).gpu
    assert read == GpuFacts(1000, 0.5, 2, "float32", "fp8", "fp8", eager=True)
    assert (read.budget, read.bits) == (500, 32)
    args.kv_cache_memory_bytes = 10  # which replaces the share
    assert capabilities.of(args, target, None).gpu is None


def test_a_gpu_that_does_not_tell_its_memory_is_not_counted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent() -> int:
        raise NVMLError(NVML_ERROR_UNKNOWN)

    gpu = SimpleNamespace(is_cpu=lambda: False, get_device_total_memory=silent)
    args, _ = engine.arguments({"VLLM_CPU_KVCACHE_SPACE": "1"}, None, {})
    monkeypatch.setattr(capabilities, "current_platform", gpu)
    assert capabilities.of(args, model(tmp_path, LLAMA), None).gpu is None


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
