"""What the worker relies on in the pinned vLLM and Runpod SDK is there as it says."""

import ast
import dataclasses
import dis
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points, version
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
import uvicorn
import vllm
from aiohttp_retry import FibonacciRetry
from runpod.serverless import worker as sdk_worker
from runpod.serverless.modules import rp_http, rp_scale
from transformers import PretrainedConfig
from vllm.config import ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
from vllm.config.speculative import (
    RejectionSampleMethod,
    SpeculativeConfig,
    SpeculativeMethod,
)
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.generate.base.protocol import RequestResponseMetadata, StreamOptions
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.envs import environment_variables
from vllm.exceptions import VLLMError
from vllm.logger import DEFAULT_LOGGING_CONFIG
from vllm.model_executor.models import registry
from vllm.model_executor.models.mlp_speculator import MLPSpeculator as MLPSpeculatorModules
from vllm.sampling_params import SamplingParams
from vllm.transformers_utils.config import get_config
from vllm.transformers_utils.configs.medusa import MedusaConfig
from vllm.transformers_utils.configs.mlp_speculator import MLPSpeculatorConfig
from vllm.utils import cpu_triton_utils
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core import EngineCore, EngineCoreProc
from vllm.v1.engine.core_client import AsyncMPClient
from vllm.v1.engine.output_processor import OutputProcessor, RequestState
from vllm.v1.metrics import loggers, reader, stats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.spec_decode import metrics
from vllm.v1.spec_decode.draft_model import DraftModelProposer
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
from vllm.v1.spec_decode.eagle import EagleProposer
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.spec_decode.medusa import MedusaProposer
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer
from vllm.v1.spec_decode.vocab_mapping import VocabMapping
from vllm.v1.worker import cpu_worker, gpu_worker
from vllm.v1.worker.block_table import BlockTable, MultiGroupBlockTable
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu import model_runner as model_runner_v2
from vllm.v1.worker.gpu.spec_decode import rejection_sampler as rejection_sampler_v2
from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils
from vllm.v1.worker.gpu_input_batch import InputBatch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from specworker import (
    drafting,
    engine_flags,
    former_options,
    layer_layout,
    speculation,
    speculative_json,
)
from specworker.checkpoint import Checkpoint
from specworker.drafting import MLP_SPECULATOR
from specworker.inside_vllm import corrections, mlp_speculator, observer, scheduler
from specworker.inside_vllm.corrections import (
    CORRECTED_VERSION,
    CORRECTIONS,
    IN_CORE,
    Correction,
)
from specworker.inside_vllm.mlp_speculator import MLPSpeculator, MLPSpeculatorProposer
from specworker.inside_vllm.typical_acceptance import TypicalSampler, TypicalSamplerV2
from specworker.settings import Settings
from specworker.speculative_settings import Method
from specworker.unsupported import FIELDS, NO_MIN_P, ROUTES

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
        {
            *engine_flags.ZERO_IS_UNSET,
            *engine_flags.ELSEWHERE,
            *engine_flags.NOT_OPTIONS,
            *engine_flags.OF_ITS_SERVER,
        }
        - {"HELP"}  # this parser leaves it out
    ),
)
def test_a_name_that_is_treated_apart_is_an_option(name: str) -> None:
    assert name in OPTIONS


@pytest.mark.parametrize("name", sorted(engine_flags.ZERO_IS_UNSET))
def test_a_size_whose_zero_means_unset_is_not_zero_by_default(name: str) -> None:
    assert OPTIONS[name].default != 0


@pytest.mark.parametrize("name", sorted(former_options.REMOVED))
def test_a_removed_option_is_gone(name: str) -> None:
    assert name not in OPTIONS


@pytest.mark.parametrize("name", sorted(former_options.REMOVED))
def test_what_is_named_in_place_of_a_removed_option_is_there(name: str) -> None:
    for named, value in re.findall(r"\b([A-Z][A-Z_]+)\b(?:=(\w+))?", former_options.REMOVED[name]):
        assert named in OPTIONS
        if value:
            engine_flags.read({named: value}, {})


@pytest.mark.parametrize("name", sorted(engine_flags.ELSEWHERE.values()))
def test_what_is_named_in_place_of_an_option_is_a_variable_of_the_worker(name: str) -> None:
    assert name.lower() in Settings.model_fields


def test_no_variable_of_the_worker_hides_an_option_by_accident() -> None:
    own = {name.upper() for name in Settings.model_fields}
    # The last two are its own server's: vLLM's does not run.
    assert own & set(OPTIONS) == {"SPECULATIVE_CONFIG", "HF_TOKEN", "API_KEY", "PORT"}


def test_the_kinds_of_options_are_those_that_variables_are_translated_for() -> None:
    assert {action.nargs for name, action in OPTIONS.items() if name != "HF_TOKEN"} == {
        None,
        0,
        "+",
    }


# The speculative config.


def test_every_method_is_one_of_vllms() -> None:
    assert set(get_args(Method)) - {"self", "prediction"} <= set(get_args(SpeculativeMethod))


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


each_correction = pytest.mark.parametrize("correction", [*CORRECTIONS, *IN_CORE], ids=named)


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
    for name in ("_sample", "_bookkeeping_sync", "propose_draft_token_ids"):
        assert getattr(CPUModelRunner, name) is getattr(GPUModelRunner, name)


def test_a_step_without_drafts_still_goes_through_all_that_drafts_need() -> None:
    prepared = inspect.getsource(GPUModelRunner._prepare_inputs)
    assert "use_spec_decode = self.speculative_config is not None" in prepared
    verified = inspect.getsource(rejection_sampler.RejectionSampler.forward)
    assert "max_spec_len == 0" not in verified
    assert "self.sampler = sampler" in inspect.getsource(
        rejection_sampler.RejectionSampler.__init__
    )
    fetched = inspect.getsource(EngineCore.post_step)
    assert "self.model_executor.take_draft_token_ids()" in fetched
    assert "num_spec_tokens_to_schedule" not in fetched
    proposed = inspect.getsource(GPUModelRunner.propose_draft_token_ids)
    assert "if num_spec_tokens_to_schedule == 0" not in proposed
    assert "num_spec_tokens_to_schedule = scheduler_output.num_spec_tokens_to_schedule" in proposed
    # The probabilities of earlier drafts are gone before it is asked.
    before, _ = inspect.getsource(GPUModelRunner.sample_tokens).split(
        "self.propose_draft_token_ids("
    )
    for state in ("_draft_probs", "_draft_prob_req_ids"):
        assert f"self.{state} = None" in before
    # What was scheduled is gone from the request, so that nothing old is drafted again.
    assert "request.spec_token_ids = []" in inspect.getsource(Scheduler.schedule)


def test_the_runner_has_what_the_corrections_read() -> None:
    rewinding = inspect.getsource(GPUModelRunner._bookkeeping_sync)
    assert "self.discard_request_mask.np[:num_reqs]" in rewinding
    assert "self.input_batch.generators" in rewinding
    assert "self.generators" in inspect.getsource(InputBatch.__init__)
    assert "generators=self.generators" in inspect.getsource(InputBatch)


@pytest.mark.parametrize("proposer", [SuffixDecodingProposer, MedusaProposer])
def test_a_proposer_has_what_the_corrections_read(proposer: type) -> None:
    assert "self.num_speculative_tokens = " in inspect.getsource(proposer)


# Drafting row by row.


def test_the_runner_asks_whether_a_batch_fits_by_its_longest_sequence() -> None:
    fits = inspect.getsource(GPUModelRunner._input_fits_in_drafter)
    assert "common_attn_metadata.max_seq_len + num_drafter_query_tokens" in fits
    assert "<= self.effective_drafter_max_model_len" in fits
    zeros = inspect.getsource(GPUModelRunner.sample_tokens)
    assert ").expand(len(self.input_batch.req_ids), self.num_spec_tokens)" in zeros


def test_the_runner_takes_drafts_as_lists_of_each_request() -> None:
    assert "if isinstance(self._draft_token_ids, list):" in inspect.getsource(
        GPUModelRunner._get_draft_token_ids_cpu
    )


def test_the_runner_hands_a_proposer_what_is_taken_apart() -> None:
    handed = inspect.getsource(GPUModelRunner.propose_draft_token_ids)
    assert set(parameters(SpecDecodeBaseProposer.propose)) == {
        "self",
        "num_speculative_tokens",
        "target_token_ids",
        "target_positions",
        "target_hidden_states",
        "next_token_ids",
        "token_indices_to_sample",
        "common_attn_metadata",
        "sampling_metadata",
        "mm_embed_inputs",
        "num_rejected_tokens_gpu",
        "slot_mappings",
    }
    for name in parameters(SpecDecodeBaseProposer.propose)[1:]:
        assert f"{name}=" in handed
    assert "draft_probs = self.drafter.take_last_draft_probs()" in handed


@pytest.mark.parametrize("proposer", [DraftModelProposer, EagleProposer])
def test_a_proposer_that_is_replaced_drafts_as_their_base_does(proposer: Any) -> None:
    assert proposer.propose is SpecDecodeBaseProposer.propose
    assert parameters(proposer) == ["vllm_config", "device", "runner"]


def test_a_proposer_has_the_parts_of_a_forward_pass() -> None:
    for name, taken in {
        "build_per_group_and_layer_attn_metadata": ["common_attn_metadata", "draft_index"],
        "_determine_batch_execution_and_padding": ["num_tokens", "use_cudagraphs"],
        "build_model_inputs_first_pass": ["num_tokens", "num_input_tokens", "mm_embed_inputs"],
        "_get_slot_mapping": ["num_tokens", "slot_mapping"],
    }.items():
        assert parameters(getattr(SpecDecodeBaseProposer, name))[1:] == taken
    made = inspect.getsource(SpecDecodeBaseProposer.__init__)
    for attribute in ("input_ids", "positions", "vocab_mapping", "max_num_tokens", "device"):
        assert re.search(rf"self\.{attribute}\b.*= ", made), attribute
    assert "self.block_size = " in inspect.getsource(SpecDecodeBaseProposer.initialize_attn_backend)
    assert list(inspect.signature(VocabMapping.map_target_to_draft_ids).parameters)[1:] == [
        "target_ids"
    ]


def test_a_draft_model_still_runs_for_no_tokens() -> None:
    whole = inspect.getsource(SpecDecodeBaseProposer.propose)
    assert whole.index("self.model(**model_kwargs)") < whole.index(
        "if self.num_speculative_tokens == 0"
    )


def test_the_batch_has_what_a_draft_model_reads_when_it_catches_up() -> None:
    batch = inspect.getsource(InputBatch.__init__)
    for attribute in ("num_computed_tokens_cpu", "token_ids_cpu", "block_table"):
        assert f"self.{attribute} = " in batch
    assert "self.block_table = " in inspect.getsource(BlockTable.__init__)
    assert "def __getitem__" in inspect.getsource(MultiGroupBlockTable)


def test_a_draft_model_is_handed_the_blocks_of_the_first_group() -> None:
    built = inspect.getsource(GPUModelRunner._build_attention_metadata)
    assert re.search(r"else:\n +spec_decode_common_attn_metadata = cm\n", built)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (VllmConfig, "use_v2_model_runner"),
        (SchedulerConfig, "async_scheduling"),
        (ParallelConfig, "data_parallel_size"),
        (ParallelConfig, "pipeline_parallel_size"),
        (ParallelConfig, "decode_context_parallel_size"),
        (ModelConfig, "supports_multimodal_inputs"),
        (ModelConfig, "enable_prompt_embeds"),
        (ModelConfig, "uses_mrope"),
        (VllmConfig, "kv_transfer_config"),
        (SpeculativeConfig, "parallel_drafting"),
        (SpeculativeConfig, "disable_padded_drafter_batch"),
        (SpeculativeConfig, "uses_dynamic_speculative_decoding"),
    ],
)
def test_a_configuration_says_what_keeps_drafting_from_going_row_by_row(
    config: type, name: str
) -> None:
    assert name in {field.name for field in dataclasses.fields(config)} or hasattr(config, name)


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


def test_the_package_of_suffix_decoding_patches_vllm_only_where_a_variable_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (plugin,) = entry_points(group="vllm.general_plugins", name="arctic_inference")
    monkeypatch.delenv("ARCTIC_INFERENCE_ENABLED", raising=False)
    plugin.load()()
    assert "arctic_inference.vllm.patches" not in sys.modules
    monkeypatch.setenv("ARCTIC_INFERENCE_ENABLED", "1")
    with pytest.raises(RuntimeError):  # it wants CUDA, then another vLLM
        plugin.load()()


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


# MLP speculators, which draft in the place of Medusa.


def test_nothing_in_vllm_drafts_with_an_mlp_speculator_yet() -> None:
    assert MLP_SPECULATOR not in registry._VLLM_MODELS
    runner = importlib.import_module(GPUModelRunner.__module__)
    assert "mlp_speculator" not in inspect.getsource(runner)


def test_an_mlp_speculator_is_made_of_what_drafting_reads() -> None:
    made = inspect.getsource(MLPSpeculatorModules.__init__)
    for modules in (MLPSpeculatorModules, MLPSpeculator):
        assert parameters(modules) == ["vllm_config", "prefix"]
    # All that it reads of the configuration, in which its own is the target's.
    assert set(re.findall(r"vllm_config\.[\w.]+", made)) == {"vllm_config.model_config.hf_config"}
    for part in ("emb", "proj", "head", "ln", "ln0", "activation", "logits_processor"):
        assert f"self.{part} = " in made
    for number in ("emb_weight", "state_weight", "tie_weights", "scale_input"):
        assert f"self.{number} = " in made
    assert "self.max_speculative_tokens = config.num_lookahead_tokens" in made
    assert "forward" not in vars(MLPSpeculatorModules)


def test_the_stages_of_a_tied_mlp_speculator_still_share_all_but_the_output_layer() -> None:
    made = inspect.getsource(MLPSpeculatorModules.__init__)
    shared = made[made.index("if self.tie_weights:") : made.index("else:\n            self.emb")]
    assert re.findall(r"self\.(\w+) = nn\.ModuleList\(\[\w+\] \*", shared) == ["emb", "ln"]
    assert "[proj_first] + [proj_tied] *" in shared
    assert "ParallelLMHead(" in shared[shared.index("self.head = ") :]


def test_as_a_medusa_head_an_mlp_speculator_keeps_its_config(tmp_path: Path) -> None:
    own = dict.fromkeys(mlp_speculator.KEYS, 3) | {"tie_weights": True, "scale_input": False}
    config = {"model_type": "mlp_speculator", "architectures": [MLP_SPECULATOR], **own}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert 'draft_hf_overrides = {"model_type": "medusa"}' in inspect.getsource(
        SpeculativeConfig.__post_init__
    )
    read = get_config(str(tmp_path), False, hf_overrides_kw={"model_type": "medusa"})
    assert isinstance(read, MedusaConfig)
    assert read.architectures == [MLP_SPECULATOR]
    assert {key: getattr(read, key) for key in own} == own
    taken = set(parameters(MLPSpeculatorConfig))
    assert {*mlp_speculator.KEYS, "top_k_tokens_per_head"} <= taken
    assert MLPSpeculatorConfig(n_predict=2, top_k_tokens_per_head=[1, 1]).num_lookahead_tokens == 2


def test_the_runner_drafts_with_medusa_once_its_batch_has_the_sampled_tokens() -> None:
    step = inspect.getsource(GPUModelRunner.sample_tokens)
    after = step[step.index("if draft_after_bookkeeping:") :]
    assert step.index("self._bookkeeping_sync(") < step.index("if draft_after_bookkeeping:")
    assert "propose_draft_token_ids(valid_sampled_token_ids)" in after
    kept = inspect.getsource(GPUModelRunner._bookkeeping_sync)
    assert "self.input_batch.token_ids_cpu[req_idx, start_idx:end_idx] = sampled_ids" in kept
    assert "self.input_batch.num_tokens_no_spec[req_idx] = end_idx" in kept
    batch = inspect.getsource(InputBatch.__init__)
    for attribute in ("token_ids_cpu", "num_tokens_no_spec"):
        assert f"self.{attribute} = " in batch


def test_a_proposer_that_is_a_medusa_proposer_gets_its_place() -> None:
    assert parameters(MLPSpeculatorProposer.propose) == parameters(MedusaProposer.propose)
    handed = inspect.getsource(GPUModelRunner.propose_draft_token_ids)
    medusa = handed[handed.index('spec_config.method == "medusa"') :]
    medusa = medusa[: medusa.index("elif spec_config")]
    assert "isinstance(self.drafter, MedusaProposer)" in medusa
    for name in parameters(MedusaProposer.propose)[1:]:
        assert f"{name}=" in medusa
    assert parameters(MedusaProposer) == ["vllm_config", "device"]
    assert "self.spec_config = " in inspect.getsource(MedusaProposer.__init__)
    assert "model_config=self.spec_config.draft_model_config" in inspect.getsource(
        MedusaProposer.load_model
    )
    # Made by then, and loaded with the target.
    assert "self.drafter = MedusaProposer(" in inspect.getsource(GPUModelRunner.__init__)
    for runner in (GPUModelRunner, CPUModelRunner):
        assert "self.drafter.load_model(self.model)" in inspect.getsource(runner.load_model)


def test_medusa_runs_on_the_runner_that_has_such_proposers() -> None:
    unsupported = inspect.getsource(VllmConfig._get_v2_model_runner_unsupported_features)
    assert '"medusa",' in unsupported


# Draft heads.


def test_the_layers_of_a_target_that_an_eagle3_head_reads_are_those_that_vllm_has_read() -> None:
    declared = inspect.getsource(GPUModelRunner._get_eagle3_aux_layers_from_config)
    assert 'getattr(hf_config, "eagle_aux_hidden_state_layer_ids", None)' in declared


def test_a_draft_with_layers_of_prediction_is_still_taken_for_those_alone() -> None:
    carries = {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    config = PretrainedConfig(**carries, num_hidden_layers=4)
    config.model_type = "mimo"
    draft = SpeculativeConfig.hf_config_override(config)
    assert draft.architectures == ["MiMoMTPModel"]
    assert layer_layout.unfit({**carries, "num_hidden_layers": 4})


def test_a_draft_still_does_not_get_the_targets_overrides() -> None:
    assert SpeculativeConfig.compose_draft_hf_overrides({"rope_theta": 1.0}) is (
        SpeculativeConfig.hf_config_override
    )


def test_medusa_still_loads_as_many_heads_as_tokens_are_drafted() -> None:
    config = MedusaConfig(num_heads=3)
    config.num_lookahead_tokens = 5
    assert config.num_heads == 5


# What vLLM does not serve while it speculates.


@pytest.mark.parametrize("asked", [{"min_p": 2 * NO_MIN_P}, {"logit_bias": {1: 0.5}}], ids=str)
def test_a_field_is_still_refused_under_speculation(asked: dict[str, Any]) -> None:
    with pytest.raises(VLLMError, match=" and ".join(FIELDS)):
        SamplingParams(**asked)._validate_spec_decode(object())


def bodies() -> Iterator[tuple[str, set[str]]]:
    """Every route of vLLM's application that takes a body of a known form, and its fields."""
    app = build_app(PARSER.parse_args(["--enable-scale-out"]), ("generate",), None)
    schema = app.openapi()
    for path, methods in schema["paths"].items():
        if body := methods.get("post", {}).get("requestBody"):
            form = body["content"]["application/json"]["schema"].get("$ref", "")
            forms = schema["components"]["schemas"]
            yield path, set(forms.get(form.rpartition("/")[2], {}).get("properties", ()))


def test_every_route_that_takes_such_a_field_is_known() -> None:
    routes = dict(bodies())
    generating = {path for path in routes if not path.endswith(("/render", "/derender"))}
    takes = {path: routes[path] & {*FIELDS, "sampling_params"} for path in generating}
    known = {path: {*FIELDS} if key is None else {key} for path, key in ROUTES.items()}
    # These take neither, though the model's own default counts, or say no form.
    others = {"/v1/messages", "/cohere/v2/chat", "/invocations"}
    assert {path: fields for path, fields in takes.items() if fields} == {
        path: fields for path, fields in known.items() if path not in others
    }
    assert "/v1/messages" in routes


def test_vllms_application_is_still_built_with_its_layers() -> None:
    """So that the worker's own layer can only be added by building them once more."""
    app = build_app(PARSER.parse_args([]), ("generate",), None)
    assert app.middleware_stack is not None
    assert [layer.cls.__name__ for layer in app.user_middleware].index("CORSMiddleware") >= 0


def test_a_models_defaults_are_read_and_overridden_as_vllm_has_them() -> None:
    assert parameters(ModelConfig.get_diff_sampling_param) == ["self"]
    defaults = inspect.getsource(ModelConfig.get_diff_sampling_param)
    assert "config.update(self.override_generation_config)" in defaults
    assert {'"min_p"', '"temperature"'} <= set(re.findall(r'"\w+"', defaults))


# Acceptance rules.


@pytest.mark.parametrize(
    ("function", "taken"),
    [
        (rejection_sampler.RejectionSampler, ["sampler", "spec_config", "device"]),
        (
            rejection_sampler.sample_recovered_tokens,
            [
                "max_spec_len",
                "num_draft_tokens",
                "cu_num_draft_tokens",
                "draft_token_ids",
                "draft_probs",
                "target_probs",
                "sampling_metadata",
                "device",
                "use_fp64_gumbel",
            ],
        ),
        (
            rejection_sampler_v2.RejectionSampler,
            ["sampler", "spec_config", "device", "watermark_key"],
        ),
        (
            rejection_sampler_v2.RejectionSampler._watermarking_kwargs,
            ["self", "draft_sampled", "expanded_idx_mapping", "expanded_local_pos"],
        ),
    ],
    ids=lambda case: getattr(case, "__qualname__", ""),
)
def test_a_part_of_the_samplers_takes_what_it_is_given(
    function: Callable[..., Any], taken: list[str]
) -> None:
    assert parameters(function) == taken


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        (TypicalSampler, "forward"),
        (TypicalSampler, "apply_logits_processors"),
        (TypicalSampler, "_get_logprobs_tensors"),
        (TypicalSamplerV2, "_verify"),
    ],
)
def test_a_sampler_overrides_what_vllms_has(ours: Any, name: str) -> None:
    taken = parameters(getattr(ours, name))
    assert parameters(getattr(ours.__base__, name))[: len(taken)] == taken


def test_a_step_says_what_the_verdict_needs_to_know() -> None:
    step = SpecDecodeMetadata.make_dummy([[1, 2], []], torch.device("cpu"))
    assert step.draft_token_ids.tolist() == [1, 2]
    assert step.num_draft_tokens == [2, 0]
    assert step.cu_num_draft_tokens.tolist() == [2, 2]
    assert step.max_spec_len == 2
    fields = {field.name for field in dataclasses.fields(SamplingMetadata)}
    assert {"temperature", "all_greedy"} <= fields


def test_the_v1_sampler_reads_the_verdict_in_this_order() -> None:
    forward = inspect.getsource(rejection_sampler.RejectionSampler.forward)
    places = [
        forward.index(step)
        for step in (
            "= self.apply_logits_processors(",
            "= apply_sampling_constraints(",
            "= rejection_sample(",
            "metadata.draft_token_ids,",
            "= self._get_logprobs_tensors(",
            "target_logits if self.is_processed_logprobs_mode else raw_target_logits,",
        )
    ]
    assert places == sorted(places)
    assert "target_logits = target_logits.clone()" in forward
    assert "self.use_fp64_gumbel = " in inspect.getsource(
        rejection_sampler.RejectionSampler.__init__
    )
    assert rejection_sampler.GREEDY_TEMPERATURE == 0


def test_the_v2_sampler_verifies_as_the_one_that_replaces_it() -> None:
    verify = inspect.getsource(rejection_sampler_v2.RejectionSampler._verify)
    called = re.findall(r"^ {12}([\w.]+)(?:=[\w.]+)?,$", verify, re.M)
    assert called == [
        *("logits", "expanded_idx_mapping", "idx_mapping", "idx_mapping_np", "pos"),
        *("draft_sampled", "expanded_local_pos", "seq_lens_upper_bound_np"),
        *("processed_logits", "draft_logits", "verify_draft_sampled", "cu_num_logits", "pos"),
        *("idx_mapping", "expanded_idx_mapping", "expanded_local_pos"),
        *("self.sampler.sampling_states.temperature.gpu", "self.sampler.sampling_states.seeds.gpu"),
        *("self.num_speculative_steps", "self.synthetic_conditional_rates"),
        *("use_fp64", "use_block_verification"),
    ]
    assert "return processed_logits, sampled, num_sampled" in verify
    taken = parameters(rejection_sampler_utils.rejection_sample)
    assert taken[:13] == [
        *("target_logits", "draft_logits", "draft_sampled", "cu_num_logits", "pos"),
        *("idx_mapping", "expanded_idx_mapping", "expanded_local_pos", "temperature", "seed"),
        *("num_speculative_steps", "synthetic_conditional_rates", "use_fp64"),
    ]


@pytest.mark.parametrize(
    ("made", "sampler"),
    [
        (GPUModelRunner.__init__, rejection_sampler.RejectionSampler),
        (model_runner_v2.GPUModelRunner.load_model, rejection_sampler_v2.RejectionSampler),
    ],
    ids=["v1", "v2"],
)
def test_a_runner_has_made_its_sampler_when_its_model_is_loaded(
    made: Callable[..., Any], sampler: type
) -> None:
    source = inspect.getsource(made)
    assert "self.rejection_sampler = RejectionSampler(" in source
    assert vars(inspect.getmodule(made))["RejectionSampler"] is sampler
    assert "self.speculative_config" in source
    assert "self.device" in inspect.getsource(made)


@pytest.mark.parametrize("runner", [GPUModelRunner, model_runner_v2.GPUModelRunner])
def test_a_runner_verifies_with_the_sampler_that_it_has(runner: type) -> None:
    assert "= self.rejection_sampler(" in inspect.getsource(runner)


@pytest.mark.parametrize("worker", [cpu_worker.CPUWorker, gpu_worker.Worker])
def test_a_worker_loads_its_model_where_samplers_are_replaced(worker: Any) -> None:
    assert parameters(worker.load_model) == ["self", "load_dummy_weights"]
    assert "self.model_runner.load_model(" in inspect.getsource(worker.load_model)


def test_vllms_config_says_what_a_rule_depends_on() -> None:
    assert isinstance(vars(VllmConfig)["use_v2_model_runner"], property)
    fields = {field.name for field in dataclasses.fields(VllmConfig)}
    assert {"additional_config", "speculative_config"} <= fields
    (method,) = (
        field
        for field in dataclasses.fields(SpeculativeConfig)
        if field.name == "rejection_sample_method"
    )
    assert method.default == "standard"
    assert set(get_args(RejectionSampleMethod)) == {"standard", "block", "synthetic"}


def test_only_the_v2_runner_verifies_by_block() -> None:
    """Which V1 ignores in silence, so that the worker refuses it."""
    assert '== "block"' in inspect.getsource(rejection_sampler_v2)
    assert '"block"' not in inspect.getsource(rejection_sampler)


@pytest.mark.parametrize(
    "kernel",
    [
        cpu_triton_utils._rejection_greedy_sample_kernel_impl,
        cpu_triton_utils._rejection_random_sample_kernel_impl,
    ],
)
def test_the_cpu_still_has_no_synthetic_acceptance(kernel: Callable[..., Any]) -> None:
    nothing = [None] * (len(parameters(kernel)) - 1)
    with pytest.raises(AssertionError, match="Synthetic acceptance not supported"):
        kernel(*nothing, True)


# A K that changes while the engine runs, and the figures of it.


def source_of(module: str) -> str:
    """The source of a module that cannot be imported on every machine."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text()


def test_the_engines_core_makes_its_scheduler_of_what_scheduler_cls_names() -> None:
    made = inspect.getsource(EngineCore.__init__)
    assert "Scheduler = vllm_config.scheduler_config.get_scheduler_cls()" in made
    assert "self.scheduler: SchedulerInterface = Scheduler(\n            vllm_config=" in made
    config = SchedulerConfig(max_model_len=8, is_encoder_decoder=False)
    config.scheduler_cls = observer.SCHEDULER
    assert config.get_scheduler_cls() is scheduler.make_scheduler


def test_the_engines_core_calls_any_attribute_of_its_own_by_name() -> None:
    handled = inspect.getsource(EngineCoreProc._handle_client_request)
    assert "(method := getattr(self, method_name))" in handled
    checked = inspect.getsource(EngineCoreProc._convert_msgspec_args)
    assert "assert len(args) <= len(arg_types)" in checked
    assert parameters(scheduler.Steered.__call__) == ["self", "operation", "value"]
    asked = inspect.signature(AsyncMPClient.call_utility_async).parameters
    assert list(asked) == ["self", "method", "args"]


def test_a_scheduler_has_what_a_changeable_k_stands_on() -> None:
    made = inspect.getsource(Scheduler.__init__)
    for attribute in ("num_spec_tokens", "max_num_running_reqs", "requests", "dynamic_sd_lookup"):
        assert re.search(rf"self\.{attribute}\b.*= ", made), attribute
    assert "self.vllm_config = vllm_config" in made
    for name, taken in {
        "update_draft_token_ids": ["draft_token_ids"],
        "_update_after_schedule": ["scheduler_output"],
        "update_from_output": ["scheduler_output", "model_runner_output"],
    }.items():
        assert parameters(getattr(Scheduler, name))[1:] == taken
        assert parameters(getattr(AsyncScheduler, name))[1:] == taken


def test_the_lookup_is_what_tells_a_drafter_its_k_and_keeps_first_steps_short() -> None:
    scheduled = inspect.getsource(Scheduler.schedule)
    told = r"self\.dynamic_sd_lookup\[\s+len\(num_scheduled_tokens\)\s+\]"
    assert len(re.findall(told, scheduled)) == 1
    assert "(self.num_spec_tokens > 0 and self.dynamic_sd_lookup is None)" in scheduled
    assert scheduled.count("dynamic_sd_lookup") == 3


def test_a_step_tells_what_a_k_that_adapts_is_judged_by() -> None:
    of_step = {field.name for field in dataclasses.fields(SchedulerOutput)}
    assert of_step >= {
        "num_scheduled_tokens",
        "scheduled_spec_decode_tokens",
        "scheduled_new_reqs",
        "scheduled_cached_reqs",
        "finished_req_ids",
        "num_spec_tokens_to_schedule",
    }
    assert "req_id" in {field.name for field in dataclasses.fields(NewRequestData)}
    assert "resumed_req_ids" in {field.name for field in dataclasses.fields(CachedRequestData)}
    of_model = {field.name for field in dataclasses.fields(ModelRunnerOutput)}
    assert of_model >= {"sampled_token_ids", "req_id_to_index"}
    # The step that the scheduler made is the one whose tokens come.
    stepped = inspect.getsource(EngineCore.step)
    assert "scheduler_output = self.scheduler.schedule(" in stepped
    assert re.search(r"update_from_output\(\s*scheduler_output, model_output", stepped)
    batched = inspect.getsource(EngineCore.step_with_batch_queue)
    assert re.search(r"update_from_output\(\s*scheduler_output, model_output", batched)


def test_what_waits_for_a_request_is_its_list_of_drafts() -> None:
    scheduled = inspect.getsource(Scheduler.schedule)
    assert "spec_token_ids = request.spec_token_ids" in scheduled
    ahead = inspect.getsource(AsyncScheduler._update_after_schedule)
    assert "request.spec_token_ids = self._spec_token_placeholders" in ahead
    assert "request.spec_token_ids = " in inspect.getsource(Scheduler.update_draft_token_ids)


def test_drafters_that_take_no_other_k_still_do_not() -> None:
    ngram_gpu = source_of("vllm.v1.spec_decode.ngram_proposer_gpu")
    assert "assert num_speculative_tokens == self.k" in ngram_gpu
    hidden = source_of("vllm.v1.spec_decode.extract_hidden_states")
    assert "assert num_speculative_tokens == self.num_speculative_tokens" in hidden
    handed = inspect.getsource(GPUModelRunner.propose_draft_token_ids)
    custom = re.search(r"cast\(Any, self\.drafter\)\.propose\((.*?)\n +\)", handed, re.DOTALL)
    assert custom is not None
    assert "num_spec_tokens_to_schedule" not in custom[1]


def test_the_v2_runner_passes_over_drafts_beyond_k() -> None:
    runner = source_of("vllm.v1.worker.gpu.model_runner")
    assert "draft_tokens[:, num_spec_tokens:] = -1" in runner


def test_replicas_still_may_not_draft_differently() -> None:
    disabled = inspect.getsource(VllmConfig._maybe_disable_dynamic_sd_for_data_parallel)
    assert "self.parallel_config.data_parallel_size <= 1" in disabled


def test_a_stat_logger_is_made_and_told_as_the_observer_is() -> None:
    adapter = inspect.getsource(loggers.PerEngineStatLoggerAdapter)
    assert re.search(
        r"= per_engine_stat_logger_factory\(\s+vllm_config, engine_index\s+\)", adapter
    )
    assert parameters(loggers.StatLoggerBase.record)[1:] == [
        "scheduler_stats",
        "iteration_stats",
        "mm_cache_stats",
        "engine_idx",
    ]
    assert loggers.StatLoggerBase.__abstractmethods__ == {
        "__init__",
        "record",
        "log_engine_initialized",
    }
    scheduled = {field.name for field in dataclasses.fields(stats.SchedulerStats)}
    assert {
        "num_running_reqs",
        "num_waiting_reqs",
        "num_skipped_waiting_reqs",
        "spec_decoding_stats",
    } <= scheduled
    assert {field.name for field in dataclasses.fields(metrics.SpecDecodingStats)} == {
        "num_spec_tokens",
        "num_drafts",
        "num_draft_tokens",
        "num_accepted_tokens",
        "num_accepted_tokens_per_pos",
        "num_draft_tokens_per_pos",
    }
    assert {"iteration_timestamp", "num_generation_tokens"} <= vars(stats.IterationStats()).keys()


def test_a_request_that_ends_is_counted_where_it_is_watched() -> None:
    assert parameters(OutputProcessor._update_stats_from_finished)[1:] == [
        "req_state",
        "finish_reason",
        "iteration_stats",
    ]
    processed = inspect.getsource(OutputProcessor.process_outputs)
    # After its last output is queued, and before anyone else runs: no await between them.
    assert processed.index("req_state.queue.put(request_output)") < processed.index(
        "self._update_stats_from_finished("
    )
    assert not inspect.iscoroutinefunction(OutputProcessor.process_outputs)
    state = inspect.getsource(RequestState.__init__)
    for attribute in ("external_req_id", "detokenizer", "stats", "spec_decode_metrics"):
        assert re.search(rf"self\.{attribute}\b.*= ", state), attribute
    times = {field.name for field in dataclasses.fields(stats.RequestStateStats)}
    assert {"arrival_time", "first_token_latency"} <= times


def test_figures_of_a_request_are_still_sent_at_its_end_alone_and_taken_at_any_time() -> None:
    sent = re.sub(r"\s+", " ", inspect.getsource(Scheduler.update_from_output))
    assert "request.spec_decode_metrics if finish_reason is not None else None" in sent
    taken = inspect.getsource(OutputProcessor.process_outputs)
    assert "if engine_core_output.spec_decode_metrics is not None:" in taken
    assert taken.index("req_state.spec_decode_metrics = ") < taken.index("stop_string = ")


def test_vllm_still_leaves_the_figures_of_several_sequences_and_of_responses_out() -> None:
    chat = source_of("vllm.entrypoints.openai.chat_completion.serving")
    completion = source_of("vllm.entrypoints.openai.completion.serving")
    assert "if (request.n or 1) == 1:" in chat
    assert "if len(final_res_batch) == 1 and (request.n or 1) == 1:" in completion
    responses = source_of("vllm.entrypoints.openai.responses.serving")
    assert "build_spec_decoding_metrics" not in responses


def test_the_parts_of_an_answer_are_named_as_they_are_put_together() -> None:
    completion = source_of("vllm.entrypoints.openai.completion.serving")
    assert 'request_id = f"cmpl-{' in completion
    assert 'request_id_item = f"{request_id}-{i}"' in completion
    responses = source_of("vllm.entrypoints.openai.responses.serving")
    assert 'sub_request_id = f"{request_id}_{sub_request}"' in responses
    assert 'f"resp_{random_uuid()}"' in source_of("vllm.entrypoints.openai.responses.protocol")
    beam = source_of("vllm.entrypoints.generate.beam_search.online")
    assert 'request_id_item = f"{request_id_batch}-beam-{i}"' in beam


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
                "stat_loggers",
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
        "scheduler_cls",
        "enforce_eager",
        "kv_cache_memory_bytes",
        "tensor_parallel_size",
        "quantization",
        "hf_overrides",
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


# Requests over HTTP.


@pytest.mark.parametrize("kind", ["chat_completion", "completion", "responses"])
def test_a_request_has_its_name_and_usage_when_it_was_answered(kind: str) -> None:
    fields = RequestResponseMetadata.model_fields
    assert {"request_id", "final_usage_info"} <= fields.keys()
    serving = importlib.import_module(f"vllm.entrypoints.openai.{kind}.serving")
    source = inspect.getsource(serving)
    assert "raw_request.state.request_metadata = request_metadata" in source
    # Not of /v1/responses: there the worker counts the tokens itself.
    assert ("request_metadata.final_usage_info = " in source) == (kind != "responses")


def test_development_routes_are_there_in_that_mode_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def paths() -> set[str]:
        app = build_app(PARSER.parse_args([]), ("generate",), None)
        return {getattr(route, "path", "") for route in app.routes}

    dangerous = {"/collective_rpc", "/reset_prefix_cache", "/sleep", "/wake_up", "/server_info"}
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "0")
    assert not paths() & dangerous
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    assert paths() >= dangerous


def test_vllm_still_takes_nothing_but_digits_for_its_development_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for text in ("true", ""):
        monkeypatch.setenv("VLLM_SERVER_DEV_MODE", text)
        with pytest.raises(ValueError, match="invalid literal"):
            environment_variables["VLLM_SERVER_DEV_MODE"]()


def test_the_web_server_has_what_the_worker_drives_it_by() -> None:
    assert inspect.isgeneratorfunction(inspect.unwrap(uvicorn.Server.capture_signals))
    assert "with self.capture_signals():" in inspect.getsource(uvicorn.Server.serve)
    assert parameters(uvicorn.Server.serve) == ["self", "sockets"]
    server = uvicorn.Server(uvicorn.Config(lambda: None))
    assert (server.started, server.should_exit) == (False, False)
