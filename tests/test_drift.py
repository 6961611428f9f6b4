"""What the worker relies on in the pinned vLLM and Runpod SDK is there as it says."""

import ast
import dataclasses
import dis
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
import vllm
from aiohttp_retry import FibonacciRetry
from runpod.serverless import worker as sdk_worker
from runpod.serverless.modules import rp_http, rp_scale
from vllm.config.speculative import SpeculativeConfig, SpeculativeMethod
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.generate.base.protocol import StreamOptions
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.envs import environment_variables
from vllm.logger import DEFAULT_LOGGING_CONFIG
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics import loggers, reader
from vllm.v1.sample import rejection_sampler
from vllm.v1.spec_decode import metrics
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
from vllm.v1.spec_decode.medusa import MedusaProposer
from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu_input_batch import InputBatch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from specworker import drafting, engine_flags, speculation, speculative_json
from specworker.checkpoint import Checkpoint
from specworker.inside_vllm import corrections
from specworker.inside_vllm.corrections import CORRECTED_VERSION, CORRECTIONS, Correction
from specworker.settings import Settings
from specworker.speculative_settings import Method

SOURCES = sorted((Path(__file__).parents[1] / "src" / "specworker").rglob("*.py"))
PARSER = engine_flags.parser()
OPTIONS = engine_flags.options(PARSER)


def parameters(function: Callable[..., Any]) -> list[str]:
    """The names under which a function takes its arguments."""
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def test_vllm_and_the_sdk_are_the_pinned_versions() -> None:
    assert vllm.__version__ == CORRECTED_VERSION == "0.32.0"
    assert version("runpod") == "1.12.0"


# Everything that is imported.


def imports() -> Iterator[tuple[str, str]]:
    """Every name that a module of the worker imports from vLLM, as module and name."""
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm"):
                yield from ((str(node.module), alias.name) for alias in node.names)
            if isinstance(node, ast.Import):
                yield from ((a.name, "__name__") for a in node.names if a.name.startswith("vllm"))


def test_the_imports_are_found() -> None:
    assert len(set(imports())) > 10


@pytest.mark.parametrize(("module", "name"), sorted(set(imports())))
def test_every_name_imported_from_vllm_is_there(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


# The options of `vllm serve`.


@pytest.mark.parametrize("flag", sorted(engine_flags.ALIASES.values()))
def test_an_alias_names_an_option(flag: str) -> None:
    assert flag in PARSER._option_string_actions


@pytest.mark.parametrize(
    "name",
    sorted(
        {*engine_flags.ZERO_IS_UNSET, *engine_flags.ELSEWHERE, *engine_flags.NOT_OPTIONS}
        - {"HELP"}  # this parser leaves it out
    ),
)
def test_a_name_that_is_treated_apart_is_an_option(name: str) -> None:
    assert name in OPTIONS


@pytest.mark.parametrize("name", sorted(engine_flags.ZERO_IS_UNSET))
def test_a_size_whose_zero_means_unset_is_not_zero_by_default(name: str) -> None:
    assert OPTIONS[name].default != 0


@pytest.mark.parametrize("name", sorted(engine_flags.REMOVED))
def test_a_removed_option_is_gone(name: str) -> None:
    assert name not in OPTIONS


@pytest.mark.parametrize("name", sorted(engine_flags.REMOVED))
def test_what_is_named_in_place_of_a_removed_option_is_there(name: str) -> None:
    for named, value in re.findall(r"\b([A-Z][A-Z_]+)\b(?:=(\w+))?", engine_flags.REMOVED[name]):
        assert named in OPTIONS
        if value:
            engine_flags.read({named: value}, {})


@pytest.mark.parametrize("name", sorted(engine_flags.ELSEWHERE.values()))
def test_what_is_named_in_place_of_an_option_is_a_variable_of_the_worker(name: str) -> None:
    assert name.lower() in Settings.model_fields


def test_no_variable_of_the_worker_hides_an_option_by_accident() -> None:
    own = {name.upper() for name in Settings.model_fields}
    assert own & set(OPTIONS) == {"SPECULATIVE_CONFIG", "HF_TOKEN"}


def test_the_kinds_of_options_are_those_that_variables_are_translated_for() -> None:
    assert {action.nargs for name, action in OPTIONS.items() if name != "HF_TOKEN"} == {
        None,
        0,
        "+",
    }


# The speculative config.


def test_every_method_is_one_of_vllms() -> None:
    assert set(get_args(Method)) - {"self"} <= set(get_args(SpeculativeMethod))


def written_keys() -> set[str]:
    """Every key that a config made of variables can have."""
    everything = {
        "NUM_SPECULATIVE_TOKENS": "3",
        "NGRAM_PROMPT_LOOKUP_MAX": "4",
        "SPECULATIVE_DISABLE_BY_BATCH_SIZE": "8",
        "SPECULATIVE_MODEL": "org/draft",
        **{name.upper(): "1" for name in speculation.DRAFT_KEYS},
        "SPECULATIVE_DRAFT_SAMPLE_METHOD": "greedy",
        "SPEC_DECODING_ACCEPTANCE_METHOD": "block",
    }
    keys: set[str] = set()
    for method in get_args(Method):
        settings = Settings.from_env(everything | {"SPECULATIVE_METHOD": method})
        draft = Checkpoint("org/draft", {}) if speculation.draft(settings) else None
        keys |= set(speculation.resolve(settings, draft).config or ())
    return keys | set(speculative_json.RENAMED_KEYS.values())


@pytest.mark.parametrize("key", sorted(written_keys()))
def test_a_key_that_is_written_is_a_field_of_vllms_config(key: str) -> None:
    assert key in {field.name for field in dataclasses.fields(SpeculativeConfig)}


@pytest.mark.parametrize("key", [*speculative_json.RENAMED_KEYS, "disable_by_batch_size"])
def test_a_key_that_is_translated_is_none(key: str) -> None:
    assert key not in {field.name for field in dataclasses.fields(SpeculativeConfig)}


def test_suffix_drafts_as_deep_as_vllms_tree() -> None:
    assert SpeculativeConfig.suffix_decoding_max_tree_depth == drafting.DEFAULT_SUFFIX_TOKENS


def test_a_schedule_means_to_vllm_what_it_says() -> None:
    lookup = build_dynamic_sd_schedule_lookup(drafting.schedule(8, 5), 12, 5)
    assert lookup[1:] == [5] * 8 + [0] * 4
    beyond = build_dynamic_sd_schedule_lookup(drafting.schedule(100, 5), 12, 5)
    assert beyond[1:] == [5] * 12


# The corrections.


def named(correction: Correction) -> str:
    return f"{correction.owner.rpartition('.')[2]}.{correction.name}"


each_correction = pytest.mark.parametrize("correction", CORRECTIONS, ids=named)


@each_correction
def test_a_correction_finds_its_function_as_vllm_made_it(correction: Correction) -> None:
    owner = resolve_name(correction.owner)
    original = getattr(owner, correction.name)
    assert callable(original)
    assert not hasattr(original, "corrects")
    assert original.__module__ == (owner.__name__ if inspect.ismodule(owner) else owner.__module__)


@each_correction
def test_a_correction_takes_its_arguments_as_vllms_function_does(correction: Correction) -> None:
    original = getattr(resolve_name(correction.owner), correction.name)
    ours, theirs = parameters(correction.correct(original)), parameters(original)
    assert theirs[: len(ours)] == ours
    if inspect.ismodule(resolve_name(correction.owner)):
        assert theirs == ours


def test_the_runner_of_the_cpu_uses_the_functions_that_are_corrected() -> None:
    assert CPUModelRunner._sample is GPUModelRunner._sample
    assert CPUModelRunner._bookkeeping_sync is GPUModelRunner._bookkeeping_sync


def test_the_runner_has_what_the_corrections_read() -> None:
    rewinding = inspect.getsource(GPUModelRunner._bookkeeping_sync)
    assert "self.discard_request_mask.np[:num_reqs]" in rewinding
    assert "self.input_batch.generators" in rewinding
    assert "self.generators" in inspect.getsource(InputBatch.__init__)
    assert "generators=self.generators" in inspect.getsource(InputBatch)


@pytest.mark.parametrize("proposer", [SuffixDecodingProposer, MedusaProposer])
def test_a_proposer_has_what_the_corrections_read(proposer: type) -> None:
    assert "self.num_speculative_tokens = " in inspect.getsource(proposer)


def globals_of(*functions: Callable[..., Any]) -> set[str]:
    """The names that functions look up in their module each time they run."""
    loads = chain.from_iterable(map(dis.get_instructions, functions))
    return {load.argval for load in loads if load.opname == "LOAD_GLOBAL"}


def test_the_rejection_sampler_looks_its_functions_up_where_they_are_corrected() -> None:
    methods = vars(rejection_sampler.RejectionSampler).values()
    sampler = globals_of(*filter(inspect.isfunction, methods))
    assert "apply_sampling_constraints" in sampler
    constraints = rejection_sampler.apply_sampling_constraints
    assert "expand_batch_to_tokens" in globals_of(constraints)
    assert constraints.__globals__ is vars(rejection_sampler)


# The faults, which a correction must not outlive.


def test_suffix_still_refuses_fewer_tokens_than_its_most() -> None:
    with pytest.raises(AssertionError):
        SuffixDecodingProposer.propose(SimpleNamespace(num_speculative_tokens=3), 0, None, [])


def test_medusa_still_refuses_fewer_tokens_than_its_most() -> None:
    with pytest.raises(AssertionError):
        MedusaProposer.propose(SimpleNamespace(num_speculative_tokens=3), 0, None, None)


def test_top_k_still_fails_on_a_step_without_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    expand = corrections.expand_batch_to_tokens(rejection_sampler.expand_batch_to_tokens)
    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", expand)
    asked = SimpleNamespace(
        all_greedy=False,
        temperature=torch.ones(1),
        top_k=torch.ones(1, dtype=torch.int32),
        top_p=None,
    )
    none = torch.zeros(1, dtype=torch.int32)
    with pytest.raises((RuntimeError, IndexError)):
        rejection_sampler.apply_sampling_constraints(torch.empty((0, 8)), none, asked)


def test_a_seed_still_cannot_be_rewound_on_a_cpu() -> None:
    assert "gen.set_offset(" in inspect.getsource(GPUModelRunner._bookkeeping_sync)
    with pytest.raises(RuntimeError):
        torch.Generator().set_offset(0)


# The figures.


def test_every_metric_that_is_read_is_one_that_vllm_keeps() -> None:
    (source,) = (path for path in SOURCES if path.name == "acceptance.py")
    names = set(re.findall(r'"(vllm:\w+)"', source.read_text()))
    assert len(names) == 4
    kept = inspect.getsource(metrics) + inspect.getsource(loggers)
    assert {name for name in names if f'"{name}"' in kept} == names


def test_the_readings_have_the_fields_that_are_read() -> None:
    assert {field.name for field in dataclasses.fields(reader.Counter)} >= {"name", "value"}
    assert {field.name for field in dataclasses.fields(reader.Vector)} >= {"values"}
    # The one vector that there is: accepted tokens by position.
    assert inspect.getsource(reader.get_metrics_snapshot).count("Vector(") == 1


# The engine.


@pytest.mark.parametrize(
    ("function", "used"),
    [
        (
            AsyncLLM.from_vllm_config,
            {
                "usage_context",
                "enable_log_requests",
                "aggregate_engine_logging",
                "disable_log_stats",
            },
        ),
        (AsyncLLM.shutdown, {"timeout"}),
        (AsyncLLM.reset_mm_cache, set()),
        (AsyncLLM.get_supported_tasks, set()),
        (AsyncEngineArgs.from_cli_args, {"args"}),
        (AsyncEngineArgs.create_engine_config, {"usage_context"}),
        (build_app, {"args", "supported_tasks", "model_config"}),
        (init_app_state, {"engine_client", "state", "args", "supported_tasks"}),
    ],
    ids=lambda case: getattr(case, "__qualname__", ""),
)
def test_the_engine_is_started_as_vllm_starts_it(
    function: Callable[..., Any], used: set[str]
) -> None:
    assert used <= set(parameters(function))


@pytest.mark.parametrize(
    "name",
    [
        "model",
        "served_model_name",
        "speculative_config",
        "per_request_spec_decode_metrics",
        "worker_cls",
        "enforce_eager",
        "kv_cache_memory_bytes",
        "tensor_parallel_size",
        "enable_log_requests",
        "aggregate_engine_logging",
        "disable_log_stats",
    ],
)
def test_an_argument_that_the_worker_reads_or_chooses_is_there(name: str) -> None:
    assert hasattr(PARSER.parse_args([]), name)


def test_the_figures_of_a_request_come_as_the_worker_asks_for_them() -> None:
    action = OPTIONS["PER_REQUEST_SPEC_DECODE_METRICS"]
    assert action.choices is not None
    assert {"none", "summary"} <= set(action.choices)


def test_the_engines_config_says_how_long_a_shutdown_may_take() -> None:
    fields = {field.name for field in dataclasses.fields(vllm.config.VllmConfig)}
    assert "shutdown_timeout" in fields


def test_the_sdks_loop_still_has_the_seams_that_the_worker_uses() -> None:
    """What `sdk.py` replaces or calls, where the SDK looks it up when it is used."""
    transmit = inspect.getsource(rp_http._transmit)
    assert "FibonacciRetry(attempts=" in transmit
    assert list(inspect.signature(rp_http.send_result).parameters)[:3] == [
        "session",
        "job_data",
        "job",
    ]
    assert "rp_scale.JobScaler(config)" in inspect.getsource(sdk_worker.run_worker)
    scaler = rp_scale.JobScaler({})
    assert scaler.jobs_fetcher is rp_scale.get_job
    assert scaler.stop_signals_fetcher is rp_scale.get_stop_signals
    assert rp_scale._job_stop_url.__module__.endswith("rp_job")
    assert scaler.is_alive()
    scaler.kill_worker()
    assert not scaler.is_alive()
    assert scaler.job_progress.get_job_count() == 0
    assert inspect.iscoroutinefunction(scaler.run)
    loop = inspect.getsource(rp_scale.JobScaler.get_jobs)
    assert "self.jobs_fetcher(session, jobs_needed)" in loop
    assert "await self.set_scale()" in loop
    assert "self.current_concurrency - self.current_occupancy()" in loop
    assert "self.handle_job(session, job)" in inspect.getsource(rp_scale.JobScaler.run_jobs)


def test_the_sdk_still_retries_too_little_and_drops_late_jobs() -> None:
    """The faults that `sdk.py` is for; it goes when they do."""
    assert FibonacciRetry(attempts=3).exceptions == set()
    assert "self.jobs_queue.put(job)" in inspect.getsource(rp_scale.JobScaler.get_jobs)


def test_vllm_still_counts_the_usage_of_a_stream_as_the_older_shapes_need() -> None:
    assert {"include_usage", "continuous_usage_stats"} <= StreamOptions.model_fields.keys()


def test_vllm_still_logs_through_a_file_of_settings() -> None:
    assert DEFAULT_LOGGING_CONFIG["loggers"]["vllm"]["handlers"] == ["vllm"]
    assert "VLLM_LOGGING_CONFIG_PATH" in environment_variables
