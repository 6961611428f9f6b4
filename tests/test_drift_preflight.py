"""What is said before a start of the pinned vLLM is so. As `test_drift`, for preflight."""

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_args

import pytest
from vllm import envs, platforms
from vllm.config import VllmConfig, speculative
from vllm.config.speculative import MTPModelTypes, SpeculativeConfig
from vllm.engine import arg_utils
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model_executor.models import llama_eagle3, medusa
from vllm.model_executor.models.interfaces import SupportsEagle3
from vllm.model_executor.models.registry import ModelRegistry
from vllm.transformers_utils.config import get_config
from vllm.transformers_utils.configs.medusa import MedusaConfig
from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase
from vllm.usage.usage_lib import UsageContext
from vllm.v1.spec_decode.draft_model import DraftModelProposer
from vllm.v1.spec_decode.dynamic.utils import validate_and_normalize_dynamic_sd_schedule
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from specworker import (
    capabilities,
    checkpoint,
    draft_fit,
    engine_flags,
    findings,
    planning,
    preflight,
)
from specworker.refusals import REFUSALS, Refusal

FIELDS = {field.name for field in dataclasses.fields(SpeculativeConfig)}
PARSED = engine_flags.parser().parse_args([])


def texts(module: ModuleType) -> Iterator[str]:
    """Every text in a module's source, with `{}` for what is filled in."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield "".join(map(str, parts))


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.line.split("=")[0])
def test_a_text_that_is_translated_is_one_of_vllms(refusal: Refusal) -> None:
    said = [*texts(speculative), *texts(arg_utils)]
    assert any(refusal.text in text for text in said)


@pytest.mark.parametrize(
    "key",
    sorted(
        {
            *capabilities.NOT_FOR_USERS,
            *preflight.OF_A_DRAFT,
            *findings.VARIABLES,
            draft_fit.MAPPING,
        }
    ),
)
def test_a_key_that_is_looked_at_is_a_field_of_vllms_config(key: str) -> None:
    assert key in FIELDS


@pytest.mark.parametrize(
    "name",
    [
        "cpu_offload_gb",
        "data_parallel_size",
        "disable_hybrid_kv_cache_manager",
        "dtype",
        "enable_lora",
        "enforce_eager",
        "gpu_memory_utilization",
        "kv_cache_dtype",
        "kv_cache_memory_bytes",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "model_impl",
        "pipeline_parallel_size",
        "quantization",
        "revision",
        "tokenizer",
        "trust_remote_code",
    ],
)
def test_an_option_that_is_looked_at_is_there(name: str) -> None:
    assert hasattr(PARSED, name)


def test_what_is_asked_of_vllm_is_answered() -> None:
    for limits in AsyncEngineArgs.get_batch_defaults(1):
        assert limits[UsageContext.OPENAI_API_SERVER] > 0
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in envs.environment_variables
    assert "LlamaForCausalLM" in ModelRegistry.models
    assert SupportsEagle3.supports_eagle3 is True
    assert {"model", "trust_remote_code"} <= set(inspect.signature(get_config).parameters)
    assert all(kind == "mtp" or kind.endswith("_mtp") for kind in get_args(MTPModelTypes))


# Memory.


@pytest.mark.parametrize("kind", planning.GPU_TYPES, ids=lambda kind: kind.name)
def test_batches_of_a_type_of_gpu_are_vllms_own(
    kind: planning.GpuType, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = SimpleNamespace(
        get_device_total_memory=lambda: kind.memory,
        get_device_name=lambda: f"NVIDIA {kind.name}",
        is_tpu=lambda: False,
        is_cpu=lambda: False,
    )
    monkeypatch.setattr(arg_utils, "current_platform", platform)
    tokens, requests = AsyncEngineArgs.get_batch_defaults(1)
    usage = UsageContext.OPENAI_API_SERVER
    assert (kind.max_num_batched_tokens, kind.max_num_seqs) == (tokens[usage], requests[usage])


def test_the_memory_of_a_gpu_is_asked_of_its_driver_and_vllm_asks_here_too() -> None:
    """CUDA must not be initialised beside the engine."""
    source = (Path(platforms.__file__).parent / "cuda.py").read_text()  # needs CUDA to be imported
    (platform,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == "NvmlCudaPlatform"
    )
    asked = next(
        ast.unparse(node)
        for node in platform.body
        if isinstance(node, ast.FunctionDef) and node.name == "get_device_total_memory"
    )
    assert "nvmlDeviceGetMemoryInfo(handle).total" in asked
    assert "torch" not in asked
    batches = inspect.getsource(AsyncEngineArgs.get_batch_defaults)
    assert "current_platform.get_device_total_memory()" in batches


def test_a_share_of_the_memory_is_vllms_default_where_none_is_set() -> None:
    assert findings.GpuFacts(1).utilization == PARSED.gpu_memory_utilization


# Vocabularies.


def config_of(**given: Any) -> Any:
    """As much of vLLM's config as its own comparison of vocabularies reads."""
    sizes = {"target_model_config": 10, "draft_model_config": 10} | given
    models = {name: SimpleNamespace(get_vocab_size=lambda n=n: n) for name, n in sizes.items()}
    return SimpleNamespace(method="draft_model", **models)


def test_vllm_still_compares_vocabularies_by_their_size_alone() -> None:
    """The fault that `vocabulary` is for; and the padding that ids are mapped for."""
    SpeculativeConfig.verify_equal_vocab_size_if_draft_model(config_of())
    with pytest.raises(ValueError, match="same vocabulary size"):
        SpeculativeConfig.verify_equal_vocab_size_if_draft_model(config_of(draft_model_config=11))


def test_ids_are_mapped_by_the_tokenizer_in_the_drafts_folder() -> None:
    made = inspect.getsource(DraftModelProposer.__init__)
    assert "draft_tokenizer = get_tokenizer(\n                spec.draft_model_config.model" in made
    assert "self.use_heterogeneous_vocab" in made


def test_a_medusa_head_is_still_loaded_with_the_targets_vocabulary() -> None:
    post_init = inspect.getsource(SpeculativeConfig.__post_init__)
    assert "draft_hf.vocab_size = target_vocab" in post_init
    assert "config.vocab_size,\n                        config.hidden_size" in inspect.getsource(
        medusa.Medusa.__init__
    )


# Sizes.


def test_a_head_without_a_hidden_size_is_taken_for_one_of_this() -> None:
    assert MedusaConfig().hidden_size == draft_fit.MEDUSA_HIDDEN_SIZE


def test_an_eagle_3_head_joins_as_many_states_as_is_read() -> None:
    made = inspect.getsource(llama_eagle3)  # its class is wrapped for the compiler
    assert '"num_aux_hidden_states"' in made
    assert 'eagle_config.get("eagle_aux_hidden_state_layer_ids")' in made
    assert f"len(layer_ids) if layer_ids else {draft_fit.EAGLE3_LAYERS}" in made
    assert '"target_hidden_size", self.config.hidden_size' in made


def test_the_longest_sequence_is_read_off_the_keys_that_vllm_knows() -> None:
    derived = inspect.getsource(ModelArchConfigConvertorBase.derive_max_model_len_and_key)
    for key in checkpoint.OF_CONTEXT:
        assert f'"{key}"' in derived


def test_an_eagle_head_still_drafts_up_to_its_own_length_on_the_v1_runner() -> None:
    """Its positions go as far as the target's, and the runner stops it where its config ends."""
    assert "self.effective_drafter_max_model_len = draft_config.max_model_len" in inspect.getsource(
        GPUModelRunner.__init__
    )
    assert callable(SpeculativeConfig._maybe_override_draft_max_position_embeddings)


# What vLLM refuses late, or drops.


@pytest.mark.parametrize(
    "rows",
    [
        [[1, 8, 3], [9, 64, 0]],
        [[9, 64, 0], [1, 8, 3]],
        [[1, 8, 3], [65, 256, 0]],
        [],
        "1-8",
        [[1, 8]],
        [8, 3],
        [[2, 8, 3]],
        [[1, 8, 3], [8, 16, 1]],
        [[8, 1, 3]],
        [[1, 8, -1]],
    ],
)
def test_a_schedule_is_refused_as_vllm_refuses_it(rows: Any) -> None:
    try:
        taken = validate_and_normalize_dynamic_sd_schedule(rows)
    except (ValueError, TypeError):
        taken = None
    ours = preflight.rows_of(rows)
    assert (ours and [tuple(row) for row in ours]) == taken


def test_a_schedule_is_still_dropped_beside_replicas() -> None:
    dropping = inspect.getsource(VllmConfig._maybe_disable_dynamic_sd_for_data_parallel)
    assert "num_speculative_tokens_per_batch_size = None" in dropping


def test_a_draft_model_is_still_refused_another_spread_than_the_targets() -> None:
    def parallel(size: int) -> SimpleNamespace:
        return SimpleNamespace(tensor_parallel_size=size)

    def check(target: int, draft: int) -> None:
        config = SimpleNamespace(
            target_parallel_config=parallel(target), draft_parallel_config=parallel(draft)
        )
        DraftModelProposer._raise_if_draft_tp_mismatch(SimpleNamespace(speculative_config=config))

    check(2, 2)
    with pytest.raises(ValueError, match="must be the same"):
        check(2, 1)


def test_a_draft_model_still_needs_the_padded_batch() -> None:
    unpadded = SimpleNamespace(disable_padded_drafter_batch=True)
    with pytest.raises(NotImplementedError):
        SpecDecodeBaseProposer._raise_if_padded_drafter_batch_disabled(
            SimpleNamespace(speculative_config=unpadded)
        )
