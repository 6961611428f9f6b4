import json
from collections.abc import Mapping
from typing import Any

import pytest

from specworker import drafting, speculation
from specworker.acceptance_rule import AcceptanceRule
from specworker.checkpoint import Checkpoint
from specworker.decision import Speculation
from specworker.drafting import ANY_BATCH_SIZE
from specworker.settings import Settings
from specworker.speculation import Draft

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 12}
PLAIN = Checkpoint("org/plain", LLAMA)


def settings(**environment: str) -> Settings:
    return Settings.from_env(environment)


def resolve(checkpoint: Checkpoint | None = None, /, **environment: str) -> Speculation:
    """What is decided, with what is known of the draft if the variables name one."""
    given = settings(**environment)
    named = speculation.draft(given)
    assert (named is None) == (checkpoint is None), "the case gives a checkpoint for its draft"
    return speculation.resolve(given, checkpoint)


def config_of(checkpoint: Checkpoint | None = None, /, **environment: str) -> dict[str, Any]:
    """The config of a case that has neither notes nor problems."""
    decided = resolve(checkpoint, **environment)
    assert decided.config is not None
    assert (decided.notes, decided.problems) == ((), ())
    return decided.config


# Nothing to do.


def test_nothing_set_is_plain_decoding() -> None:
    decided = resolve()
    assert decided == Speculation(None)
    assert decided.line == "speculation off"
    assert not speculation.is_set(settings())


@pytest.mark.parametrize("name", [name.upper() for name in speculation.REPLACED])
@pytest.mark.parametrize("text", ["", "None"])
def test_empty_fields_do_not_switch_speculation_on(name: str, text: str) -> None:
    assert resolve(**{name: text}) == Speculation(None)
    assert not speculation.is_set(settings(**{name: text}))


def test_a_console_that_sends_zeros_gets_plain_decoding() -> None:
    zeros = {
        "SPECULATIVE_MODEL": "",
        "SPECULATIVE_METHOD": "None",
        "SPEC_DECODING_ACCEPTANCE_METHOD": "rejection_sampler",
        "NUM_SPECULATIVE_TOKENS": "0",
        "NGRAM_PROMPT_LOOKUP_MIN": "0",
        "NGRAM_PROMPT_LOOKUP_MAX": "0",
        "SPECULATIVE_DISABLE_BY_BATCH_SIZE": "0",
        "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE": "0",
        "SPECULATIVE_MAX_MODEL_LEN": "0",
        "NUM_LOOKAHEAD_SLOTS": "0",
        "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD": "0",
        "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA": "0",
    }
    assert resolve(**zeros) == Speculation(None)


@pytest.mark.parametrize(
    "environment",
    [
        {"NUM_SPECULATIVE_TOKENS": "5"},
        {"SPECULATIVE_DISABLE_BY_BATCH_SIZE": "8"},
        {"SPECULATIVE_MODEL_REVISION": "v2"},
        {"NUM_SPECULATIVE_TOKENS": "5", "SPECULATIVE_QUANTIZATION": "fp8"},
    ],
)
def test_variables_that_say_nothing_about_how_to_draft_are_noted(
    environment: dict[str, str],
) -> None:
    decided = resolve(**environment)
    assert decided.config is None
    assert decided.notes == (
        f"{', '.join(environment)}: no effect, nothing says how to draft; set "
        "SPECULATIVE_METHOD, SPECULATIVE_MODEL or NGRAM_PROMPT_LOOKUP_MAX",
    )
    assert speculation.is_set(settings(**environment))


# Prompt lookup.


@pytest.mark.parametrize(
    ("environment", "low", "high"),
    [
        ({"NGRAM_PROMPT_LOOKUP_MAX": "4"}, 2, 4),
        ({"NGRAM_PROMPT_LOOKUP_MAX": "1"}, 1, 1),
        ({"NGRAM_PROMPT_LOOKUP_MAX": "9"}, 2, 9),
        ({"NGRAM_PROMPT_LOOKUP_MAX": "4", "NGRAM_PROMPT_LOOKUP_MIN": "0"}, 2, 4),
        ({"NGRAM_PROMPT_LOOKUP_MIN": "3"}, 3, 4),
        ({"NGRAM_PROMPT_LOOKUP_MIN": "7"}, 7, 7),
        ({"NGRAM_PROMPT_LOOKUP_MIN": "3", "NGRAM_PROMPT_LOOKUP_MAX": "3"}, 3, 3),
        ({"SPECULATIVE_METHOD": "ngram"}, 2, 4),
        ({"SPECULATIVE_MODEL": "[ngram]"}, 2, 4),
        ({"SPECULATIVE_MODEL": "NGRAM"}, 2, 4),
        ({"SPECULATIVE_MODEL": "[ngram]", "NGRAM_PROMPT_LOOKUP_MAX": "8"}, 2, 8),
    ],
)
def test_the_bounds_of_a_lookup_are_always_both_given(
    environment: dict[str, str], low: int, high: int
) -> None:
    assert config_of(**environment) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": low,
        "prompt_lookup_max": high,
    }


def test_the_line_of_a_lookup_says_what_was_decided_and_why() -> None:
    assert resolve(NGRAM_PROMPT_LOOKUP_MAX="4", NUM_SPECULATIVE_TOKENS="5").line == (
        "speculation method=ngram, num_speculative_tokens=5, prompt_lookup_min=2, "
        "prompt_lookup_max=4 (method ngram, only lookup bounds are set; K=5 as set; "
        "shortest n-gram 2 by default)"
    )


def test_bounds_the_wrong_way_round_are_refused() -> None:
    decided = resolve(NGRAM_PROMPT_LOOKUP_MIN="4", NGRAM_PROMPT_LOOKUP_MAX="2")
    assert decided.problems == (
        "NGRAM_PROMPT_LOOKUP_MIN=4: is above NGRAM_PROMPT_LOOKUP_MAX=2; allowed: 1 to 2",
    )


@pytest.mark.parametrize(("window", "tokens"), [("50", "3"), ("4", "100"), ("50", "100")])
def test_windows_and_drafts_beyond_reason_are_noted(window: str, tokens: str) -> None:
    decided = resolve(NGRAM_PROMPT_LOOKUP_MAX=window, NUM_SPECULATIVE_TOKENS=tokens)
    assert decided.config is not None
    (note,) = decided.notes
    assert note.startswith(f"NGRAM_PROMPT_LOOKUP_MAX={window} with K={tokens}: ")


def test_windows_and_drafts_within_reason_are_not() -> None:
    config_of(NGRAM_PROMPT_LOOKUP_MAX="16", NUM_SPECULATIVE_TOKENS="16")


def test_what_a_lookup_has_no_use_for_is_noted() -> None:
    decided = resolve(
        SPECULATIVE_METHOD="ngram",
        SPECULATIVE_MODEL="org/draft",
        SPECULATIVE_MODEL_REVISION="v2",
        SPECULATIVE_MAX_MODEL_LEN="512",
    )
    assert decided.config is not None
    assert "model" not in decided.config
    assert decided.notes == (
        "SPECULATIVE_MODEL_REVISION, SPECULATIVE_MAX_MODEL_LEN: no effect, "
        "method ngram has no draft model",
        "SPECULATIVE_MODEL: no effect, with method ngram",
    )


# Suffix decoding.


def test_suffix_drafts_as_deep_as_its_tree_unless_told_otherwise() -> None:
    assert config_of(SPECULATIVE_METHOD="suffix") == {
        "method": "suffix",
        "num_speculative_tokens": 24,
    }
    assert config_of(SPECULATIVE_METHOD="suffix", NUM_SPECULATIVE_TOKENS="8") == {
        "method": "suffix",
        "num_speculative_tokens": 8,
    }


def test_predictions_draft_long_and_may_be_all_that_does() -> None:
    decided = resolve(SPECULATIVE_METHOD="prediction")
    assert decided.config == {"method": "prediction", "num_speculative_tokens": 32}
    assert decided.only_predictions
    assert (decided.notes, decided.problems) == ((), ())
    assert "K=32 by default of method prediction" in decided.line
    in_json = resolve(SPECULATIVE_CONFIG='{"method": "prediction", "num_speculative_tokens": 8}')
    assert in_json.config == {"method": "prediction", "num_speculative_tokens": 8}
    assert in_json.only_predictions
    assert not resolve(SPECULATIVE_METHOD="ngram").only_predictions
    decided = resolve(SPECULATIVE_METHOD="prediction", NGRAM_PROMPT_LOOKUP_MAX="4")
    assert decided.notes == ("NGRAM_PROMPT_LOOKUP_MAX: no effect, with method prediction",)
    in_json = resolve(SPECULATIVE_CONFIG='{"method": "prediction", "prompt_lookup_max": 4}')
    assert in_json.config == {"method": "prediction", "num_speculative_tokens": 32}
    assert in_json.notes == (
        "SPECULATIVE_CONFIG: prompt_lookup_max: no effect, with method prediction",
    )


@pytest.mark.parametrize(
    "environment",
    [
        {"SPECULATIVE_METHOD": "prediction"},
        {"SPECULATIVE_CONFIG": '{"method": "prediction", "num_speculative_tokens": 8}'},
    ],
)
def test_predictions_alone_and_no_predictions_is_a_contradiction(
    environment: dict[str, str],
) -> None:
    decided = resolve(SPECULATIVE_PREDICTION="false", **environment)
    (problem,) = decided.problems
    assert problem.startswith("SPECULATIVE_PREDICTION=false: ")
    assert problem.endswith("; allowed: true, or another method")
    assert resolve(SPECULATIVE_PREDICTION="false", SPECULATIVE_METHOD="ngram").problems == ()


@pytest.mark.parametrize(
    "environment",
    [{"SPECULATIVE_METHOD": "ngram"}, {"SPECULATIVE_CONFIG": '{"method": "ngram"}'}],
)
def test_k_may_adapt_and_long_prompts_not_be_drafted_for_whatever_drafts(
    environment: dict[str, str],
) -> None:
    plain = resolve(**environment)
    assert (plain.adaptive, plain.max_prompt_len) == (False, None)
    bounds = {"SPECULATIVE_ADAPTIVE": "true", "SPECULATIVE_MAX_PROMPT_LEN": "512"}
    decided = resolve(**environment, **bounds)
    assert (decided.adaptive, decided.max_prompt_len) == (True, 512)
    assert decided.config == plain.config
    assert "; K adapts to what it yields; off for prompts above 512 tokens" in decided.line
    assert (decided.notes, decided.problems) == ((), ())


def test_without_speculation_what_bounds_k_has_no_effect_and_is_named() -> None:
    decided = resolve(SPECULATIVE_ADAPTIVE="true", SPECULATIVE_MAX_PROMPT_LEN="512")
    assert (decided.config, decided.adaptive, decided.max_prompt_len) == (None, False, None)
    assert decided.notes == (
        "SPECULATIVE_MAX_PROMPT_LEN: no effect, speculation is off",
        "SPECULATIVE_ADAPTIVE: no effect, speculation is off",
    )
    assert not speculation.is_set(settings(SPECULATIVE_ADAPTIVE="true"))


def test_what_is_predicted_needs_no_k_that_adapts() -> None:
    decided = resolve(SPECULATIVE_METHOD="prediction", SPECULATIVE_ADAPTIVE="true")
    assert not decided.adaptive
    assert any("SPECULATIVE_ADAPTIVE: no effect" in note for note in decided.notes)


def test_suffix_has_no_use_for_lookup_bounds_and_says_so() -> None:
    decided = resolve(SPECULATIVE_METHOD="suffix", NGRAM_PROMPT_LOOKUP_MAX="4")
    assert decided.config == {"method": "suffix", "num_speculative_tokens": 24}
    assert decided.notes == ("NGRAM_PROMPT_LOOKUP_MAX: no effect, with method suffix",)


# Which method a draft is for.

SPECULATORS = {
    "speculators_model_type": "eagle3",
    "architectures": ["Eagle3Speculator"],
    "speculators_config": {
        "algorithm": "eagle3",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
    },
}


@pytest.mark.parametrize(
    ("name", "config", "method"),
    [
        ("org/draft", LLAMA, "draft_model"),
        ("org/my-eagle-draft", LLAMA, "draft_model"),
        ("org/medusa-like", LLAMA, "draft_model"),
        ("org/draft", LLAMA | {"num_hidden_layers": 1}, "draft_model"),
        ("org/draft", {}, "draft_model"),
        ("org/draft", SPECULATORS, "eagle3"),
        ("org/draft", SPECULATORS | {"speculators_model_type": "eagle"}, "eagle"),
        ("org/draft", SPECULATORS | {"speculators_model_type": "peagle"}, "eagle3"),
        ("org/draft", SPECULATORS | {"speculators_model_type": "dflash2"}, "dflash"),
        ("org/draft", {"model_type": "medusa"}, "medusa"),
        ("org/draft", {"architectures": ["MedusaModel"]}, "medusa"),
        ("org/draft", {"model_type": "mlp_speculator"}, "mlp_speculator"),
        ("org/draft", {"architectures": ["MLPSpeculatorPreTrainedModel"]}, "mlp_speculator"),
        ("org/draft", LLAMA | {"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ("org/draft", {"model_type": "eagle", "architectures": ["EAGLEModel"]}, "eagle"),
        ("org/draft", {"model_type": "eagle"}, "eagle"),
        ("org/draft", LLAMA | {"architectures": ["EagleLlamaForCausalLM"]}, "eagle"),
        ("org/EAGLE-llama", LLAMA | {"num_hidden_layers": 1}, "eagle"),
        ("org/draft", {"model_type": "deepseek_mtp"}, "mtp"),
        ("org/draft", {"architectures": ["MiMoMTPModel"]}, "mtp"),
        ("org/draft", LLAMA | {"num_nextn_predict_layers": 1}, "mtp"),
        ("org/draft", LLAMA | {"num_nextn_predict_layers": 0}, "draft_model"),
        ("org/draft", LLAMA | {"num_nextn_predict_layers": None}, "draft_model"),
        ("org/draft", {"model_type": "llama", "architectures": None}, "draft_model"),
    ],
)
def test_a_draft_is_used_as_what_it_is(name: str, config: Mapping[str, Any], method: str) -> None:
    found, reason = drafting.method_of(Checkpoint(name, config))
    assert found == method
    assert method in reason


def test_a_head_that_drafts_in_one_pass_is_told_to() -> None:
    head = Checkpoint("org/head", SPECULATORS | {"speculators_model_type": "peagle"})
    assert config_of(head, SPECULATIVE_MODEL="org/head") == {
        "method": "eagle3",
        "model": "org/head",
        "num_speculative_tokens": 5,
        "parallel_drafting": True,
    }
    whole = from_json({"model": "org/head"}, head).config
    assert whole is not None
    assert whole["parallel_drafting"] is True


@pytest.mark.parametrize(
    ("tensors", "method"),
    [
        ({"fc.weight", "layers.0.mlp.up_proj.weight"}, "eagle"),
        ({"model.fc.weight"}, "eagle"),
        ({"model.embed_tokens.weight", "lm_head.weight"}, "draft_model"),
        ({"other.fc.weight"}, "draft_model"),
    ],
)
@pytest.mark.parametrize("name", ["org/draft", "org/EAGLE-llama"])
def test_a_bare_eagle_head_is_known_by_its_weights_before_its_name(
    name: str, tensors: set[str], method: str
) -> None:
    config = LLAMA | {"num_hidden_layers": 1}
    found, _ = drafting.method_of(Checkpoint(name, config, dict.fromkeys(tensors, (1,))))
    assert found == method


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("org/llama-speculator.eagle3", "eagle3"),
        ("org/EAGLE-Vicuna-7B", "eagle"),
        ("org/Medusa-1.0", "medusa"),
        ("org/llama-mlp-speculator", "mlp_speculator"),
        ("org/some_mlp_speculator", "mlp_speculator"),
        ("org/MiMo-7B-MTP", "mtp"),
        ("org/tiny-llama", "draft_model"),
    ],
)
def test_the_name_decides_only_where_the_config_cannot_be_read(name: str, method: str) -> None:
    found, reason = drafting.method_of(Checkpoint(name))
    assert found == method
    assert "could not be read" in reason


def test_a_plain_model_in_a_folder_with_a_misleading_name_drafts_as_a_model() -> None:
    decided = resolve(
        Checkpoint("/models/my-eagle-draft", LLAMA, {"lm_head.weight": (1,)}),
        SPECULATIVE_MODEL="/models/my-eagle-draft",
    )
    assert decided.config == {
        "method": "draft_model",
        "model": "/models/my-eagle-draft",
        "num_speculative_tokens": 3,
    }


def test_a_method_that_is_set_stays_whatever_the_draft_looks_like() -> None:
    decided = resolve(
        Checkpoint("org/eagle", {"model_type": "eagle"}),
        SPECULATIVE_MODEL="org/eagle",
        SPECULATIVE_METHOD="draft_model",
    )
    assert decided.config is not None
    assert decided.config["method"] == "draft_model"
    assert "method draft_model as set" in decided.line


# Draft models.


def test_what_a_draft_model_takes_is_handed_on_in_todays_words() -> None:
    assert config_of(
        PLAIN,
        SPECULATIVE_MODEL="org/plain",
        NUM_SPECULATIVE_TOKENS="7",
        SPECULATIVE_MODEL_REVISION="v2",
        SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE="2",
        SPECULATIVE_MAX_MODEL_LEN="1e+06",
        SPECULATIVE_QUANTIZATION="fp8",
        SPECULATIVE_ENFORCE_EAGER="False",
    ) == {
        "method": "draft_model",
        "model": "org/plain",
        "num_speculative_tokens": 7,
        "revision": "v2",
        "draft_tensor_parallel_size": 2,
        "max_model_len": 1_000_000,
        "quantization": "fp8",
        "enforce_eager": False,
    }


def test_zeros_beside_a_draft_model_leave_vllms_own_choice() -> None:
    assert config_of(
        PLAIN,
        SPECULATIVE_MODEL="org/plain",
        NUM_SPECULATIVE_TOKENS="0",
        SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE="0",
        SPECULATIVE_MAX_MODEL_LEN="0",
    ) == {"method": "draft_model", "model": "org/plain", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        (SPECULATORS, 5),
        ({"model_type": "medusa", "num_heads": 4}, 4),
        ({"model_type": "deepseek_mtp", "n_predict": 1}, 1),
        (LLAMA, 3),
    ],
)
def test_the_draft_says_how_many_tokens_where_the_user_does_not(
    config: Mapping[str, Any], tokens: int
) -> None:
    draft = Checkpoint("org/draft", config)
    assert config_of(draft, SPECULATIVE_MODEL="org/draft")["num_speculative_tokens"] == tokens
    set_by_user = config_of(draft, SPECULATIVE_MODEL="org/draft", NUM_SPECULATIVE_TOKENS="2")
    assert set_by_user["num_speculative_tokens"] == 2


def test_lookup_bounds_beside_a_draft_model_are_noted() -> None:
    decided = resolve(PLAIN, SPECULATIVE_MODEL="org/plain", NGRAM_PROMPT_LOOKUP_MAX="4")
    assert decided.config is not None
    assert decided.config["method"] == "draft_model"
    assert decided.notes == ("NGRAM_PROMPT_LOOKUP_MAX: no effect, with method draft_model",)


@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3", "medusa"])
def test_a_method_that_needs_a_draft_is_refused_without_one(method: str) -> None:
    assert resolve(SPECULATIVE_METHOD=method).problems == (
        f"SPECULATIVE_METHOD={method}: needs SPECULATIVE_MODEL, a hub id or a folder",
    )


def test_the_targets_own_mtp_layers_need_no_draft() -> None:
    assert config_of(SPECULATIVE_METHOD="mtp") == {"method": "mtp", "num_speculative_tokens": 3}


MEDUSA = Checkpoint("org/medusa", {"model_type": "medusa", "num_heads": 4})
MLP = Checkpoint(
    "org/mlp",
    {
        "model_type": "mlp_speculator",
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "n_predict": 4,
    },
)

each_with_heads = pytest.mark.parametrize(
    ("draft", "method"), [(MEDUSA, "medusa"), (MLP, "mlp_speculator")]
)


@each_with_heads
def test_a_draft_drafts_as_many_tokens_as_it_has_heads(draft: Checkpoint, method: str) -> None:
    for tokens in ("1", "4"):
        config = config_of(draft, SPECULATIVE_MODEL=draft.name, NUM_SPECULATIVE_TOKENS=tokens)
        assert config == {
            "method": method,
            "model": draft.name,
            "num_speculative_tokens": int(tokens),
        }


@each_with_heads
def test_more_tokens_than_heads_are_refused(draft: Checkpoint, method: str) -> None:
    decided = resolve(draft, SPECULATIVE_MODEL=draft.name, NUM_SPECULATIVE_TOKENS="5")
    assert decided.problems == (
        f"NUM_SPECULATIVE_TOKENS=5: the draft has 4 heads (method {method}), and each drafts one "
        "token; allowed: 1 to 4",
    )


@pytest.mark.parametrize("draft", [Checkpoint("org/draft", SPECULATORS), PLAIN])
def test_a_draft_that_reads_its_own_tokens_drafts_as_many_as_asked(draft: Checkpoint) -> None:
    config = config_of(draft, SPECULATIVE_MODEL=draft.name, NUM_SPECULATIVE_TOKENS="9")
    assert config["num_speculative_tokens"] == 9


def test_heads_that_nothing_tells_of_are_not_counted() -> None:
    for draft in (Checkpoint("org/medusa"), Checkpoint("org/medusa", {"model_type": "medusa"})):
        config_of(draft, SPECULATIVE_MODEL=draft.name, NUM_SPECULATIVE_TOKENS="9")


@pytest.mark.parametrize("config", [LLAMA, {"model_type": "mlp_speculator"}])
def test_a_draft_that_vllm_would_not_take_for_an_mlp_speculator_is_refused(
    config: Mapping[str, Any],
) -> None:
    decided = resolve(
        Checkpoint("org/draft", config),
        SPECULATIVE_MODEL="org/draft",
        SPECULATIVE_METHOD="mlp_speculator",
    )
    (problem,) = decided.problems
    assert problem.startswith("SPECULATIVE_METHOD=mlp_speculator: ")
    assert "MLPSpeculatorPreTrainedModel" in problem


# Off above a batch size.


def test_a_schedule_covers_every_batch_size_from_one_without_a_gap() -> None:
    assert drafting.schedule(8, 5) == [[1, 8, 5], [9, ANY_BATCH_SIZE, 0]]


@pytest.mark.parametrize(
    ("checkpoint", "environment", "tokens"),
    [
        (None, {"NGRAM_PROMPT_LOOKUP_MAX": "4"}, 3),
        (None, {"SPECULATIVE_METHOD": "suffix", "NUM_SPECULATIVE_TOKENS": "8"}, 8),
        (PLAIN, {"SPECULATIVE_MODEL": "org/plain", "NUM_SPECULATIVE_TOKENS": "5"}, 5),
    ],
)
def test_a_batch_size_limit_becomes_a_schedule(
    checkpoint: Checkpoint | None, environment: dict[str, str], tokens: int
) -> None:
    decided = resolve(checkpoint, SPECULATIVE_DISABLE_BY_BATCH_SIZE="8", **environment)
    assert decided.config is not None
    assert decided.config["num_speculative_tokens_per_batch_size"] == [
        [1, 8, tokens],
        [9, ANY_BATCH_SIZE, 0],
    ]
    assert "disable_by_batch_size" not in decided.config
    assert "off above 8 running requests" in decided.line


# The acceptance rule, and what has no effect.


LOOKUP = {"SPECULATIVE_METHOD": "ngram"}
TYPICAL = {"SPEC_DECODING_ACCEPTANCE_METHOD": "typical_acceptance_sampler"}
BLOCK = {"SPEC_DECODING_ACCEPTANCE_METHOD": "block"}


def test_the_target_decides_exactly_unless_another_rule_is_asked_for() -> None:
    decided = resolve(**LOOKUP, SPEC_DECODING_ACCEPTANCE_METHOD="rejection_sampler")
    assert decided.rule == resolve(**LOOKUP).rule == AcceptanceRule("rejection_sampler")
    assert decided == resolve(**LOOKUP)


def test_typical_acceptance_has_v0s_defaults_and_says_that_it_is_lossy() -> None:
    decided = resolve(**LOOKUP, **TYPICAL)
    assert decided.rule == AcceptanceRule("typical_acceptance_sampler", 0.09, 0.3, "argmax")
    assert "typical acceptance, LOSSY: threshold 0.09, alpha 0.3, recovery argmax" in decided.line
    assert decided.config == config_of(**LOOKUP)
    assert decided.notes == ()


def test_typical_acceptance_as_it_is_set() -> None:
    decided = resolve(
        **LOOKUP,
        **TYPICAL,
        TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD="0.2",
        TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA="0.5",
        TYPICAL_ACCEPTANCE_RECOVERY="Sample",
    )
    assert decided.rule == AcceptanceRule("typical_acceptance_sampler", 0.2, 0.5, "sample")


def test_block_verification_is_a_key_of_vllms_config() -> None:
    assert config_of(**LOOKUP, **BLOCK)["rejection_sample_method"] == "block"
    json_too = json.dumps({"method": "ngram", "rejection_sample_method": "block"})
    assert config_of(SPECULATIVE_CONFIG=json_too, **BLOCK)["rejection_sample_method"] == "block"


@pytest.mark.parametrize("rule", [TYPICAL, BLOCK])
def test_a_rule_without_speculation_has_no_effect(rule: dict[str, str]) -> None:
    decided = resolve(**rule, TYPICAL_ACCEPTANCE_RECOVERY="sample")
    assert decided.rule == AcceptanceRule()
    notes = " ".join(decided.notes)
    for variable in ("SPEC_DECODING_ACCEPTANCE_METHOD", "TYPICAL_ACCEPTANCE_RECOVERY"):
        assert variable in notes
    assert "no effect, speculation is off" in notes


@pytest.mark.parametrize(
    ("rule", "method"), [(TYPICAL, "block"), (TYPICAL, "synthetic"), (BLOCK, "standard")]
)
def test_two_rules_at_once_are_refused(rule: dict[str, str], method: str) -> None:
    given = json.dumps({"method": "ngram", "rejection_sample_method": method})
    (problem,) = resolve(SPECULATIVE_CONFIG=given, **rule).problems
    name = rule["SPEC_DECODING_ACCEPTANCE_METHOD"]
    assert problem == (
        f"SPEC_DECODING_ACCEPTANCE_METHOD={name}: SPECULATIVE_CONFIG names another rule, "
        f"rejection_sample_method={method}; allowed: one of the two"
    )


def test_the_thresholds_of_a_rule_that_is_not_in_use_are_noted() -> None:
    decided = resolve(
        TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD="0.1",
        TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA="0.3",
    )
    assert decided.problems == ()
    assert decided.notes == (
        "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD, "
        "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA: no effect, the acceptance rule is "
        "rejection_sampler",
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("DISABLE_LOGPROBS_DURING_SPEC_DECODING", "true"),
        ("DISABLE_LOGPROBS_DURING_SPEC_DECODING", "false"),
        ("NUM_LOOKAHEAD_SLOTS", "4"),
    ],
)
def test_a_variable_without_any_effect_is_noted_with_the_reason(name: str, text: str) -> None:
    (note,) = resolve(**{name: text}).notes
    assert note.startswith(f"{name}: no effect, ")


# The whole config as JSON.


def from_json(
    config: Mapping[str, Any], checkpoint: Checkpoint | None = None, **environment: str
) -> Speculation:
    return resolve(checkpoint, SPECULATIVE_CONFIG=json.dumps(config), **environment)


def test_a_whole_config_is_handed_on_as_it_is() -> None:
    given = {
        "method": "eagle3",
        "model": "org/head",
        "num_speculative_tokens": 4,
        "rejection_sample_method": "block",
        "draft_tensor_parallel_size": 1,
    }
    decided = from_json(given, Checkpoint("org/head", SPECULATORS))
    assert decided == Speculation(given, ("SPECULATIVE_CONFIG as set",))


def test_a_whole_config_wins_and_the_variables_it_replaces_are_noted() -> None:
    decided = from_json(
        {"method": "suffix", "num_speculative_tokens": 8},
        NUM_SPECULATIVE_TOKENS="2",
        NGRAM_PROMPT_LOOKUP_MAX="4",
        SPECULATIVE_MODEL="org/draft",
        SPECULATIVE_DISABLE_BY_BATCH_SIZE="2",
    )
    assert decided.config == {"method": "suffix", "num_speculative_tokens": 8}
    assert decided.notes == (
        "SPECULATIVE_MODEL, NUM_SPECULATIVE_TOKENS, NGRAM_PROMPT_LOOKUP_MAX, "
        "SPECULATIVE_DISABLE_BY_BATCH_SIZE: no effect, SPECULATIVE_CONFIG is set and wins",
    )


def test_tokens_missing_from_a_whole_config_are_not_taken_from_the_variable_it_replaces() -> None:
    decided = from_json({"method": "ngram", "prompt_lookup_max": 4}, NUM_SPECULATIVE_TOKENS="9")
    assert decided.config is not None
    assert decided.config["num_speculative_tokens"] == 3


def test_keys_of_older_versions_are_renamed_and_noted() -> None:
    decided = from_json(
        {
            "speculative_model": "org/plain",
            "speculative_max_model_len": 512,
            "speculative_draft_tensor_parallel_size": 1,
            "num_speculative_tokens": 2,
        },
        PLAIN,
    )
    assert decided.config == {
        "method": "draft_model",
        "model": "org/plain",
        "max_model_len": 512,
        "draft_tensor_parallel_size": 1,
        "num_speculative_tokens": 2,
    }
    assert decided.notes == (
        "SPECULATIVE_CONFIG: speculative_model is model today",
        "SPECULATIVE_CONFIG: speculative_max_model_len is max_model_len today",
        "SPECULATIVE_CONFIG: speculative_draft_tensor_parallel_size is "
        "draft_tensor_parallel_size today",
    )


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        ({"method": "ngram"}, 2, 4),
        ({"model": "[ngram]"}, 2, 4),
        ({"model": "ngram", "prompt_lookup_max": 8}, 2, 8),
        ({"prompt_lookup_max": 1}, 1, 1),
        ({"ngram_prompt_lookup_max": 4}, 2, 4),
        ({"ngram_prompt_lookup_max": 4, "ngram_prompt_lookup_min": 3}, 3, 4),
        ({"method": "ngram", "prompt_lookup_min": 6}, 6, 6),
    ],
)
def test_a_lookup_given_as_json_is_completed_as_one_given_by_variables(
    given: dict[str, Any], low: int, high: int
) -> None:
    assert from_json(given).config == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": low,
        "prompt_lookup_max": high,
    }


def test_method_and_tokens_missing_from_a_whole_config_come_from_the_draft() -> None:
    decided = from_json({"model": "org/head"}, Checkpoint("org/head", SPECULATORS))
    assert decided.config == {
        "model": "org/head",
        "method": "eagle3",
        "num_speculative_tokens": 5,
    }
    assert "K=5 declared by the draft" in decided.line


def test_the_batch_size_key_that_vllm_dropped_becomes_a_schedule() -> None:
    decided = from_json(
        {"method": "suffix", "num_speculative_tokens": 4, "disable_by_batch_size": 2}
    )
    assert decided.config == {
        "method": "suffix",
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 2, 4], [3, ANY_BATCH_SIZE, 0]],
    }
    assert decided.notes == (
        "SPECULATIVE_CONFIG: disable_by_batch_size is num_speculative_tokens_per_batch_size today",
    )


def test_what_the_user_set_is_never_changed_in_place() -> None:
    given = settings(
        SPECULATIVE_CONFIG='{"model": "[ngram]", "ngram_prompt_lookup_max": 4, '
        '"disable_by_batch_size": 2}'
    )
    before = json.dumps(given.speculative_config)
    speculation.resolve(given, None)
    assert json.dumps(given.speculative_config) == before


def test_more_tokens_than_heads_are_refused_in_a_whole_config_too() -> None:
    given = {"model": "org/medusa", "num_speculative_tokens": 5}
    (problem,) = from_json(given, MEDUSA).problems
    assert problem.startswith("SPECULATIVE_CONFIG: num_speculative_tokens=5: ")
    assert from_json(given | {"num_speculative_tokens": 4}, MEDUSA).problems == ()
    as_text = from_json(given | {"num_speculative_tokens": "5"}, MEDUSA)
    assert as_text.problems == ()  # it is vLLM's to say


def test_another_draft_than_an_mlp_speculator_is_refused_in_a_whole_config_too() -> None:
    given = {"method": "mlp_speculator", "model": "org/medusa"}
    (problem,) = from_json(given, MEDUSA).problems
    assert problem.startswith("SPECULATIVE_CONFIG: method=mlp_speculator: ")


# Which draft there is to read.


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"SPECULATIVE_MODEL": "[ngram]"}, None),
        ({"SPECULATIVE_MODEL": "ngram"}, None),
        ({"SPECULATIVE_MODEL": "org/a", "SPECULATIVE_METHOD": "ngram"}, None),
        ({"SPECULATIVE_MODEL": "org/a", "SPECULATIVE_METHOD": "suffix"}, None),
        ({"SPECULATIVE_MODEL": "org/a"}, Draft("SPECULATIVE_MODEL", "org/a", None)),
        (
            {"SPECULATIVE_MODEL": "org/a", "SPECULATIVE_MODEL_REVISION": "v2"},
            Draft("SPECULATIVE_MODEL", "org/a", "v2"),
        ),
        (
            {"SPECULATIVE_CONFIG": '{"model": "org/b", "revision": "v3"}'},
            Draft("SPECULATIVE_CONFIG", "org/b", "v3"),
        ),
        (
            {"SPECULATIVE_CONFIG": '{"speculative_model": "org/b"}', "SPECULATIVE_MODEL": "org/a"},
            Draft("SPECULATIVE_CONFIG", "org/b", None),
        ),
        ({"SPECULATIVE_CONFIG": '{"method": "suffix"}', "SPECULATIVE_MODEL": "org/a"}, None),
        ({"SPECULATIVE_CONFIG": '{"method": "custom_class", "model": "a.B"}'}, None),
        ({"SPECULATIVE_CONFIG": '{"model": 7}'}, None),
    ],
)
def test_the_draft_that_is_read_is_the_one_that_will_be_used(
    environment: dict[str, str], expected: Draft | None
) -> None:
    assert speculation.draft(settings(**environment)) == expected


def test_the_demo_speculates_by_lookup() -> None:
    demo = settings().model_copy(update=speculation.DEMO)
    assert speculation.is_set(demo)
    decided = speculation.resolve(demo, None)
    assert decided.config is not None
    assert decided.config["method"] == "ngram"
    assert decided.notes == ()


@pytest.mark.parametrize("config", ["{}", '{"num_speculative_tokens": 3}', '{"model": ""}'])
def test_a_whole_config_that_says_nothing_about_how_to_draft_is_refused(config: str) -> None:
    decided = resolve(SPECULATIVE_CONFIG=config)
    (problem,) = decided.problems
    assert problem.startswith("SPECULATIVE_CONFIG=")
    assert "names neither a method nor a model" in problem


def test_a_method_of_null_is_inferred_like_one_that_is_missing() -> None:
    decided = resolve(SPECULATIVE_CONFIG='{"method": null, "prompt_lookup_max": 4}')
    assert decided.config is not None
    assert decided.config["method"] == "ngram"


@pytest.mark.parametrize("limit", ['"8"', "0", "-1", "[]"])
def test_a_batch_size_that_is_no_count_is_refused(limit: str) -> None:
    config = f'{{"method": "ngram", "disable_by_batch_size": {limit}}}'
    (problem,) = resolve(SPECULATIVE_CONFIG=config).problems
    assert "disable_by_batch_size" in problem


@pytest.mark.parametrize("method", ["draft_model", "mtp", "eagle"])
def test_prompt_lookup_as_the_draft_of_another_method_is_refused(method: str) -> None:
    decided = resolve(SPECULATIVE_METHOD=method, SPECULATIVE_MODEL="[ngram]")
    assert any("means prompt lookup" in problem for problem in decided.problems)
