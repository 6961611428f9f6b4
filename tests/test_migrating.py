"""Every variable of older workers becomes what docs/migrating.md says."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from vllm.envs import environment_variables

from specworker import engine_flags, speculation
from specworker.checkpoint import Checkpoint
from specworker.decision import Speculation
from specworker.settings import Settings
from specworker.variables import allowed

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/migrating.md").read_text()
#: Variable -> what the page says becomes of it.
SAID = dict(re.findall(r"^\| `([A-Z0-9_]+)` \| (same|noted|vLLM's) \|", PAGE, re.MULTILINE))
SAME = [name for name, said in SAID.items() if said == "same"]

#: Every name that worker-vllm read, documented or offered in its form, in any of its versions.
_OLDER = """
API_KEY ASYNC_SCHEDULING ATTENTION_BACKEND BASE_PATH BATCH_SIZE_GROWTH_FACTOR BLOCK_SIZE
CALCULATE_KV_SCALES CHAT_TEMPLATE COMPILATION_CONFIG CPU_OFFLOAD_GB CUDA_GRAPH_SIZES
CUSTOM_CHAT_TEMPLATE DEFAULT_BATCH_SIZE DEFAULT_BATCH_SIZE_GROWTH_FACTOR
DEFAULT_MIN_BATCH_SIZE DEVICE DISABLE_CUSTOM_ALL_REDUCE DISABLE_FRONTEND_MULTIPROCESSING
DISABLE_LOGGING_REQUEST DISABLE_LOGPROBS_DURING_SPEC_DECODING DISABLE_LOG_REQUESTS
DISABLE_LOG_STATS DISABLE_MM_PREPROCESSOR_CACHE DISABLE_SLIDING_WINDOW
DISTRIBUTED_EXECUTOR_BACKEND DOWNLOAD_DIR DTYPE ENABLE_AUTO_TOOL_CHOICE
ENABLE_CHUNKED_PREFILL ENABLE_EXPERT_PARALLEL ENABLE_FORCE_INCLUDE_USAGE ENABLE_LOG_OUTPUTS
ENABLE_LOG_REQUESTS ENABLE_LORA ENABLE_LORA_BIAS ENABLE_MULTIMODAL_ENCODER_DATA_PARALLEL
ENABLE_PREFIX_CACHING ENABLE_PROMPT_ADAPTER ENABLE_PROMPT_TOKENS_DETAILS ENABLE_REASONING
ENFORCE_EAGER EPLB_CONFIG EPLB_LOG_BALANCEDNESS EPLB_STEP_INTERVAL EPLB_WINDOW_SIZE
EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE FULLY_SHARDED_LORAS GPU_MEMORY_UTILIZATION
GUIDED_DECODING_BACKEND GUIDED_DECODING_DISABLE_ADDITIONAL_PROPERTIES
GUIDED_DECODING_DISABLE_ANY_WHITESPACE GUIDED_DECODING_DISABLE_FALLBACK HF_OVERRIDES HF_TOKEN
KV_CACHE_DTYPE KV_OFFLOADING_BACKEND KV_OFFLOADING_SIZE KV_TRANSFER_CONFIG
LIMIT_MM_PER_PROMPT LOAD_FORMAT LOGITS_PROCESSOR_PATTERN LOG_ERROR_STACK
LONG_LORA_SCALING_FACTORS LORA_DTYPE LORA_EXTRA_VOCAB_SIZE LORA_MODULES MAX_CONCURRENCY
MAX_CONTEXT_LEN_TO_CAPTURE MAX_CPU_LORAS MAX_LOGPROBS MAX_LOG_LEN MAX_LONG_PARTIAL_PREFILLS
MAX_LORAS MAX_LORA_RANK MAX_MODEL_LEN MAX_NUM_BATCHED_TOKENS MAX_NUM_PARTIAL_PREFILLS
MAX_NUM_SEQS MAX_PARALLEL_LOADING_WORKERS MAX_PROMPT_ADAPTERS MAX_PROMPT_ADAPTER_TOKEN
MAX_SEQ_LEN_TO_CAPTURE MIN_BATCH_SIZE MODEL_LOADER_EXTRA_CONFIG MODEL_NAME
MODEL_PREFLIGHT_TIMEOUT MODEL_REVISION NGRAM_PROMPT_LOOKUP_MAX NGRAM_PROMPT_LOOKUP_MIN
NUM_GPU_BLOCKS_OVERRIDE NUM_LOOKAHEAD_SLOTS NUM_REDUNDANT_EXPERTS NUM_SCHEDULER_STEPS
NUM_SPECULATIVE_TOKENS OPENAI_RESPONSE_ROLE OPENAI_SERVED_MODEL_NAME_OVERRIDE
OVERRIDE_ATTENTION_DTYPE OVERRIDE_POOLER_CONFIG PIPELINE_PARALLEL_SIZE POOLER_CONFIG
PREEMPTION_CHECK_PERIOD PREEMPTION_CPU_CAPACITY PREEMPTION_MODE PYTORCH_ALLOC_CONF
QLORA_ADAPTER_NAME_OR_PATH QUANTIZATION QUANTIZATION_PARAM_PATH RAW_OPENAI_OUTPUT
RAY_WORKERS_USE_NSIGHT REASONING_PARSER REQUEST_TIMEOUT RESPONSE_ROLE
RETURN_TOKENS_AS_TOKEN_IDS REVISION ROPE_SCALING ROPE_THETA SCHEDULER_DELAY_FACTOR SEED
SERVED_MODEL_NAME SKIP_TOKENIZER_INIT SPECULATIVE_CONFIG SPECULATIVE_DISABLE_BY_BATCH_SIZE
SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE SPECULATIVE_ENFORCE_EAGER SPECULATIVE_MAX_MODEL_LEN
SPECULATIVE_METHOD SPECULATIVE_MODEL SPECULATIVE_MODEL_REVISION SPECULATIVE_QUANTIZATION
SPEC_DECODING_ACCEPTANCE_METHOD STREAM_INTERVAL STRUCTURED_OUTPUTS_CONFIG SWAP_SPACE TASK
TENSOR_PARALLEL_SIZE TOKENIZER TOKENIZER_MODE TOKENIZER_NAME TOKENIZER_POOL_EXTRA_CONFIG
TOKENIZER_POOL_SIZE TOKENIZER_POOL_TYPE TOKENIZER_REVISION TOOL_CALL_PARSER
TRANSFORMERS_VERSION TRUST_REMOTE_CODE TRUST_REQUEST_CHAT_TEMPLATE
TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD
USE_V2_BLOCK_MANAGER VLLM_API_KEY VLLM_ATTENTION_BACKEND VLLM_BASE_URL VLLM_CACHE_ROOT
VLLM_CONFIG_FILE VLLM_EXTRA_ARGS VLLM_PORT VLLM_STARTUP_TIMEOUT VLLM_USE_DEEP_GEMM
WORKER_USE_RAY
"""
OLDER = frozenset(_OLDER.split())

#: Values of variables whose form does not tell one.
VALUES = {
    "COMPILATION_CONFIG": '{"mode": 0}',
    "EPLB_CONFIG": '{"window_size": 5}',
    "HF_OVERRIDES": '{"rope_theta": 1.0}',
    "KV_OFFLOADING_BACKEND": "lmcache",
    "KV_OFFLOADING_SIZE": "7",
    "KV_TRANSFER_CONFIG": '{"kv_connector": "ExampleConnector", "kv_role": "kv_both"}',
    "LIMIT_MM_PER_PROMPT": '{"image": 1}',
    "MAX_CPU_LORAS": "7",
    "MAX_LOG_LEN": "7",
    "MAX_PARALLEL_LOADING_WORKERS": "7",
    "NUM_GPU_BLOCKS_OVERRIDE": "7",
    "LORA_MODULES": '[{"name": "mine", "path": "/adapter"}]',
    "MODEL_LOADER_EXTRA_CONFIG": '{"a": 1}',
    "POOLER_CONFIG": '{"pooling_type": "MEAN"}',
    "STRUCTURED_OUTPUTS_CONFIG": '{"backend": "xgrammar"}',
    "VLLM_EXTRA_ARGS": "--max-model-len 99",
    "SPECULATIVE_CONFIG": '{"method": "ngram", "num_speculative_tokens": 2}',
    "SPECULATIVE_METHOD": "suffix",
    "SPECULATIVE_MODEL": "[ngram]",
    "SPEC_DECODING_ACCEPTANCE_METHOD": "typical_acceptance_sampler",
}
#: What else must be set for a variable of speculation to mean something.
DRAFT = {"SPECULATIVE_METHOD": "draft_model", "SPECULATIVE_MODEL": "org/draft"}
TYPICAL = DRAFT | {"SPEC_DECODING_ACCEPTANCE_METHOD": "typical_acceptance_sampler"}
BESIDE: Mapping[str, Mapping[str, str]] = {
    "SPECULATIVE_CONFIG": {},
    "SPECULATIVE_METHOD": {},
    "SPECULATIVE_MODEL": {},
    "NGRAM_PROMPT_LOOKUP_MAX": {},
    "NGRAM_PROMPT_LOOKUP_MIN": {},
    "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD": TYPICAL,
    "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA": TYPICAL,
}


def test_the_page_says_of_every_older_variable_what_becomes_of_it() -> None:
    assert set(SAID) == OLDER
    rows = re.findall(r"^\| `[A-Z0-9_]+` \|", PAGE, re.MULTILINE)
    assert len(rows) == len(SAID)


def decided(variables: Mapping[str, str]) -> Speculation:
    settings = Settings.from_env(variables)
    named = speculation.draft(settings)
    return speculation.resolve(settings, named and Checkpoint(named.name, {"model_type": "llama"}))


def value_of(name: str) -> str:
    """A value that is allowed, and not the default."""
    if name in VALUES:
        return VALUES[name]
    if (field := Settings.model_fields.get(name.lower())) is not None:
        kind = allowed(field)
        if kind.startswith("true"):
            return str(not field.default).lower()
        return "1" if kind.startswith("a number") else "7" if "integer" in kind else "text"
    options = engine_flags.options(engine_flags.parser())
    alias = engine_flags.ALIASES.get(name, "")[2:].replace("-", "_").upper()
    action = options.get(name) or options[alias]
    if action.nargs == 0:
        return str(not action.default).lower()
    if action.choices is not None:
        return next(str(c) for c in action.choices if str(c) not in (str(action.default), "None"))
    takes = getattr(action.type, "__name__", "")
    return "7" if takes in ("int", "float") or "human_readable" in takes else "text"


def noted(name: str, notes: list[str] | tuple[str, ...]) -> bool:
    return any(note.startswith(f"{name}: no effect") for note in notes)


@pytest.mark.parametrize("name", SAME)
def test_what_the_page_calls_the_same_has_its_effect_under_the_same_name(
    name: str, tmp_path: Path
) -> None:
    value = value_of(name)
    if name == "VLLM_CONFIG_FILE":
        value = str(tmp_path / "options.yaml")
        Path(value).write_text("max-model-len: 99\n")
    variables = {name: value}
    args, notes = engine_flags.read(variables, {})
    bare, _ = engine_flags.read({}, {})
    assert not noted(name, notes)
    if name.lower() not in Settings.model_fields or name in engine_flags.ALIASES:
        assert vars(args) != vars(bare), (name, value)
        return
    field = Settings.model_fields[name.lower()]
    assert isinstance(field.json_schema_extra, dict)
    if field.json_schema_extra["group"] != "Speculation":
        assert Settings.from_env(variables) != Settings()
        return
    beside = BESIDE.get(name, DRAFT)
    with_it, without = decided({**beside, **variables}), decided(beside)
    assert (with_it.config, with_it.rule) != (without.config, without.rule)
    assert not noted(name, with_it.notes)


@pytest.mark.parametrize("name", [name for name, said in SAID.items() if said == "noted"])
def test_what_the_page_calls_noted_is_in_the_log_with_the_reason(name: str) -> None:
    if name == "VLLM_API_KEY":
        assert f"{name}: no effect; set API_KEY" in start(VLLM_API_KEY="key")
        return
    variables = {name: "true" if name.startswith("DISABLE_LOGPROBS") else "7"}
    notes = [*engine_flags.read(variables, {})[1], *decided(variables).notes]
    assert noted(name, notes), name


def start(**variables: str) -> str:
    """What the log of a start says that ends before an engine is loaded."""
    done = subprocess.run(
        [sys.executable, "handler.py"],
        cwd=ROOT,
        env=dict(os.environ) | {"NUM_SPECULATIVE_TOKENS": "many"} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    return done.stderr


@pytest.mark.parametrize("name", [name for name, said in SAID.items() if said == "vLLM's"])
def test_what_the_page_leaves_to_vllm_is_left_to_it(name: str) -> None:
    assert name in {*environment_variables, "PYTORCH_ALLOC_CONF"}
    assert name.lower() not in Settings.model_fields
    args, notes = engine_flags.read({name: "1"}, {})
    assert notes == []
    assert vars(args) == vars(engine_flags.read({}, {})[0])


@pytest.mark.parametrize(
    ("variables", "option", "value"),
    [
        ({"MODEL_REVISION": "a", "REVISION": "b"}, "revision", "a"),
        ({"TOKENIZER_NAME": "a", "TOKENIZER": "b"}, "tokenizer", "a"),
        ({"MAX_MODEL_LEN": "0"}, "max_model_len", None),
        ({"MAX_MODEL_LEN": "16k"}, "max_model_len", 16_000),
        ({"SEED": "0"}, "seed", 0),
        ({"OPENAI_SERVED_MODEL_NAME_OVERRIDE": "a,b"}, "served_model_name", ["a", "b"]),
        ({"GPU_MEMORY_UTILIZATION": "0"}, "gpu_memory_utilization", 0.92),
    ],
)
def test_what_the_page_says_beside_a_variable_holds(
    variables: dict[str, str], option: str, value: Any
) -> None:
    assert getattr(engine_flags.read(variables, {})[0], option) == value


def test_what_old_endpoints_carry_along_speculates_now() -> None:
    found = decided(
        {
            "SPECULATIVE_MODEL": "[ngram]",
            "NUM_SPECULATIVE_TOKENS": "5",
            "NGRAM_PROMPT_LOOKUP_MAX": "4",
            "NUM_LOOKAHEAD_SLOTS": "0",
            "SPEC_DECODING_ACCEPTANCE_METHOD": "rejection_sampler",
        }
    )
    assert found.config == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }
    assert found.notes == ()
