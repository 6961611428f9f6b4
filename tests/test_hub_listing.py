"""The Hub listing: its form asks for what the worker reads, and its answers start a worker."""

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from vllm import envs
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager

from specworker import (
    draft_fit,
    engine,
    engine_flags,
    former_options,
    hub_listing,
    preflight,
    speculation,
)
from specworker.checkpoint import Checkpoint
from specworker.errors import ConfigurationError
from specworker.findings import EngineFacts, Plan
from specworker.form_options import OPTIONS, Option
from specworker.hub_listing import CUDA_VERSIONS, form, listing
from specworker.main import configure
from specworker.presets import PRESETS, Preset
from specworker.settings import Settings
from specworker.values import is_unset
from specworker.variables import declared
from tests import hubs

ROOT = Path(__file__).parent.parent
QUEUE = {"RUNPOD_WEBHOOK_GET_JOB": "https://api.runpod.ai/v2/x/job-take/y?"}
FORM = form()
#: Variables of groups that the form shows, with the reason why it does not show them.
NOT_ASKED = {
    "HF_TOKEN": "the picker of models asks for it",
    "MODE": "a listing is for a queue, and the platform says so",
    "DISABLE_LOGPROBS_DURING_SPEC_DECODING": "without effect",
    "NUM_LOOKAHEAD_SLOTS": "without effect",
    "MIN_BATCH_SIZE": "an older name",
    "BATCH_SIZE_GROWTH_FACTOR": "an older name",
}
#: The models of the presets as their own `config.json` describes them.
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "num_key_value_heads": 8,
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "meta-llama/Llama-3.3-70B-Instruct": LLAMA
    | {
        "hidden_size": 8192,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "intermediate_size": 28_672,
    },
    "meta-llama/Llama-3.2-1B-Instruct": LLAMA
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "intermediate_size": 8192,
        "tie_word_embeddings": True,
    },
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA
    | {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 14_336,
    },
    "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3": {"speculators_model_type": "eagle3"},
    "Qwen/Qwen3-8B": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 12_288,
        "max_position_embeddings": 40_960,
    },
    "RedHatAI/Qwen3-8B-speculator.eagle3": {"speculators_model_type": "eagle3"},
    "org/any": LLAMA,
}


def sent(values: Mapping[str, object] | None = None, blank_number: str = "") -> dict[str, str]:
    """The environment of an endpoint that was deployed with the form's defaults and `values`.

    Every variable of the form is sent: as text, empty where it has no default.
    """
    variables = {}
    for key, asked in FORM.items():
        empty = blank_number if asked["type"] == "number" else ""
        value = {**asked, **({"default": values[key]} if values and key in values else {})}.get(
            "default", empty
        )
        variables[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return variables | QUEUE


@pytest.fixture
def hub(tmp_path: Path) -> dict[str, str]:
    """Variables under which the models of the presets are in a cache, and no hub is asked."""
    for name, config in CONFIGS.items():
        hubs.snapshot(tmp_path, name, **config)
    return {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}


def numbers() -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from ((key, asked) for key, asked in FORM.items() if asked["type"] == "number")


def test_a_listing_has_what_the_hub_asks_for() -> None:
    made = listing()
    assert made["type"] == "serverless"
    assert made["category"] == "language"
    assert made["title"]
    assert made["description"]
    assert made["iconUrl"].startswith("https://")
    config = made["config"]
    assert config["runsOn"] == "GPU"
    assert config["containerDiskInGb"] > 2 * 70.6 * 1.1  # the 70B preset, and the free tenth
    assert " " not in config["gpuIds"]
    assert [item["key"] for item in config["env"]] == list(FORM)
    assert json.loads(json.dumps(made)) == made


def test_hosts_are_new_enough_for_the_pinned_engine_and_the_oldest_comes_first() -> None:
    assert CUDA_VERSIONS[0] == envs.VLLM_MAIN_CUDA_VERSION
    versions = [tuple(map(int, version.split("."))) for version in CUDA_VERSIONS]
    assert all(older < newer for older, newer in pairwise(versions))


def test_fields_are_of_the_kinds_that_the_hub_knows() -> None:
    for key, asked in FORM.items():
        known = {"name", "type", "description", "default", "required", "advanced"}
        assert set(asked) <= known | {"options", "min", "max"}, key
        assert asked["type"] in ("string", "number", "boolean", "huggingface"), key
        assert asked["name"]
        assert asked["description"]
        if "options" in asked:
            assert asked["default"] in [option["value"] for option in asked["options"]], key
    names = [asked["name"] for asked in FORM.values()]
    assert len(set(names)) == len(names)


def test_numbers_have_defaults_that_arrive_in_digits_and_may_be_left_blank() -> None:
    for key, asked in numbers():
        assert asked.get("default", 0) < 1_000_000, key
        assert asked["min"] <= asked.get("default", 0), key


def test_speculation_is_on_top_and_what_most_set_of_it_comes_first() -> None:
    of_speculation = [
        key for key, asked in FORM.items() if asked["name"].startswith("Speculation: ")
    ]
    assert of_speculation == list(FORM)[: len(of_speculation)]
    declared_ones = {
        name.upper()
        for name, field in Settings.model_fields.items()
        if declared(field)["group"] == "Speculation"
    }
    assert set(of_speculation) == declared_ones - set(NOT_ASKED)
    advanced = [FORM[key].get("advanced", False) for key in of_speculation]
    assert advanced == sorted(advanced)
    assert of_speculation[:3] == [
        "SPECULATIVE_METHOD",
        "SPECULATIVE_MODEL",
        "NUM_SPECULATIVE_TOKENS",
    ]


def test_the_form_asks_for_nothing_that_the_worker_does_not_read() -> None:
    options = engine_flags.options(engine_flags.parser())
    read = {name.upper() for name in Settings.model_fields}
    read |= (set(options) - engine_flags.NOT_OPTIONS) | set(engine_flags.ALIASES)
    read -= set(former_options.REMOVED) | engine_flags.OF_ITS_SERVER | set(engine_flags.ELSEWHERE)
    assert set(FORM) - {"VLLM_EXTRA_ARGS"} <= read


def test_the_form_asks_for_every_variable_of_a_queue_worker() -> None:
    declared_ones = {
        name.upper()
        for name, field in Settings.model_fields.items()
        if declared(field)["group"] in ("Speculation", "Model", "Worker", "Legacy")
    }
    assert declared_ones - set(FORM) == set(NOT_ASKED)
    others = {name.upper() for name in Settings.model_fields} - declared_ones
    assert not others & set(FORM)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_what_the_form_says_of_an_option_is_what_vllm_takes(option: Option) -> None:
    if option.name == "VLLM_EXTRA_ARGS":
        return
    options = engine_flags.options(engine_flags.parser())
    alias = engine_flags.ALIASES.get(option.name, "")
    action = options.get(option.name) or options[alias[2:].replace("-", "_").upper()]
    kind = {0: "boolean"}.get(action.nargs if isinstance(action.nargs, int) else -1)
    takes = getattr(action.type, "__name__", "")
    numeric = "number" if takes in ("int", "float", "human_readable_int") else "string"
    assert option.kind == (kind or ("string" if option.choices else numeric))
    if option.choices and action.choices is not None:
        assert set(option.choices) <= set(map(str, action.choices))
    if option.default is not None:
        assert str(action.default) == str(option.default)
    if "0.92 when unset" in option.text:
        assert action.default == 0.92


def test_examples_in_the_form_are_known_to_vllm() -> None:
    texts = {option.name: option.text for option in OPTIONS}
    assert "fp8" in texts["QUANTIZATION"]
    assert "fp8" in QUANTIZATION_METHODS
    for name in ("hermes", "llama3_json"):
        assert name in texts["TOOL_CALL_PARSER"]
        assert ToolParserManager.get_tool_parser(name)
    for name in ("qwen3", "deepseek_r1"):
        assert name in texts["REASONING_PARSER"]
        assert ReasoningParserManager.get_reasoning_parser(name)


@pytest.mark.parametrize("blank", ["", "0"])
def test_the_forms_own_defaults_are_plain_decoding_as_if_nothing_were_set(
    hub: dict[str, str], blank: str
) -> None:
    environment = sent({"MODEL_NAME": "org/any"}, blank) | hub
    settings, decided, _ = configure(environment)
    nothing = Settings.from_env({"MODEL_NAME": "org/any"} | QUEUE)
    assert settings == nothing
    assert (decided.config, decided.notes) == (None, ())
    args, notes = engine.arguments(environment, decided.config, {}, decided.rule)
    bare, _ = engine.arguments({"MODEL_NAME": "org/any"}, None, {}, decided.rule)
    differing = {
        name: value for name, value in vars(args).items() if value != getattr(bare, name, None)
    }
    assert notes == []
    assert differing == {}


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
@pytest.mark.parametrize("blank", ["", "0"])
def test_a_preset_configures_what_it_names(hub: dict[str, str], preset: Preset, blank: str) -> None:
    assert set(preset.values) <= set(FORM)
    values = {"MODEL_NAME": "org/any", **preset.values}
    environment = sent(values, blank) | hub
    settings, decided, models = configure(environment)
    assert decided.config is not None
    assert decided.config["method"] == values["SPECULATIVE_METHOD"]
    assert decided.config["num_speculative_tokens"] == values["NUM_SPECULATIVE_TOKENS"]
    assert decided.config.get("model") == values.get("SPECULATIVE_MODEL")
    assert (decided.notes, decided.problems) == ((), ())
    args, notes = engine.arguments(environment, decided.config, {}, decided.rule)
    assert notes == []
    assert args.tensor_parallel_size == values.get("TENSOR_PARALLEL_SIZE", 1)
    assert str(args.max_model_len or "") == values.get("MAX_MODEL_LEN", "")
    assert models.target is not None
    plan = Plan(
        decided.config,
        Checkpoint(str(settings.model_name), dict(CONFIGS[str(settings.model_name)])),
        models.draft.read if models.draft else None,
        engine=EngineFacts(args.tensor_parallel_size, max_model_len=args.max_model_len),
    )
    assert [*draft_fit.check(plan), *preflight.check(plan)] == []


def test_the_draft_of_the_large_preset_is_small_enough_to_pay() -> None:
    target, draft = (
        Checkpoint(name, dict(CONFIGS[name]))
        for name in ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.2-1B-Instruct")
    )
    assert target.parameters == pytest.approx(70.6e9, rel=0.02)
    assert draft.parameters == pytest.approx(1.24e9, rel=0.02)
    assert draft.parameters
    assert target.parameters
    assert draft.parameters < target.parameters * draft_fit.LARGEST_SHARE / 5


def test_presets_cover_what_people_choose() -> None:
    values = [preset.values for preset in PRESETS]
    assert [preset["SPECULATIVE_METHOD"] for preset in values] == [
        "ngram",
        "suffix",
        "eagle3",
        "eagle3",
        "draft_model",
    ]
    assert values[0]["NGRAM_PROMPT_LOOKUP_MIN"] == 2
    assert values[0]["NGRAM_PROMPT_LOOKUP_MAX"] == 4
    assert values[0]["NUM_SPECULATIVE_TOKENS"] == 3
    assert values[-1]["TENSOR_PARALLEL_SIZE"] == 4


def test_a_form_without_a_model_is_told_so() -> None:
    with pytest.raises(ConfigurationError, match="MODEL_NAME: is not set"):
        configure(sent())


def test_every_field_of_the_form_takes_an_empty_value() -> None:
    environment = dict.fromkeys(FORM, "") | {"MODEL_NAME": "/", **QUEUE}
    settings, problems = Settings.read(environment)
    assert problems == []
    assert not speculation.is_set(settings)
    args, notes = engine_flags.read({**environment, "MODEL_NAME": "org/any"}, {})
    assert notes == []
    assert is_unset(environment["TENSOR_PARALLEL_SIZE"])
    assert args.tensor_parallel_size == 1


def test_the_listing_on_disk_is_the_one_that_is_made() -> None:
    assert json.loads((ROOT / ".runpod/hub.json").read_text()) == listing()
    assert hub_listing.TITLE in (ROOT / ".runpod/hub.json").read_text()


def test_the_hubs_own_tests_run_on_hosts_that_the_listing_allows() -> None:
    config = json.loads((ROOT / ".runpod/tests.json").read_text())["config"]
    assert config["allowedCudaVersions"] == [*CUDA_VERSIONS]
    assert {item["key"] for item in config["env"]} <= set(FORM)
