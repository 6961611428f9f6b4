"""The heart: what the user set about speculation, as one `speculative_config` for vLLM.

Everything here is pure. The names come from several generations of vLLM workers; the
result is in the words of the pinned vLLM. Nothing that was set is dropped in silence:
what cannot take effect is named in a note, with the reason.
"""

from typing import Any, NamedTuple

from specworker import acceptance_rule, drafting, self_layers, speculative_json
from specworker.checkpoint import Checkpoint
from specworker.decision import Decision, Speculation, names_given
from specworker.settings import Settings
from specworker.values import shown

#: Variable -> key of vLLM's config, for what a draft model takes as it is.
DRAFT_KEYS = {
    "speculative_model_revision": "revision",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "speculative_max_model_len": "max_model_len",
    "speculative_quantization": "quantization",
    "speculative_enforce_eager": "enforce_eager",
    "speculative_draft_sample_method": "draft_sample_method",
}
LOOKUP_VARIABLES = ("ngram_prompt_lookup_min", "ngram_prompt_lookup_max")
TYPICAL_VARIABLES = (
    "typical_acceptance_sampler_posterior_threshold",
    "typical_acceptance_sampler_posterior_alpha",
    "typical_acceptance_recovery",
)
WITHOUT_EFFECT = {
    "disable_logprobs_during_spec_decoding": "logprobs are right under speculation and stay on",
    "num_lookahead_slots": "vLLM sizes its look-ahead itself",
}
#: Every variable that SPECULATIVE_CONFIG replaces.
REPLACED = (
    "speculative_method",
    "speculative_model",
    "num_speculative_tokens",
    "speculative_self_layers",
    *LOOKUP_VARIABLES,
    "speculative_disable_by_batch_size",
    *DRAFT_KEYS,
)

#: How the demo model speculates where nothing about speculation is set.
DEMO = {"ngram_prompt_lookup_max": drafting.DEFAULT_LOOKUP_MAX}


class Draft(NamedTuple):
    """A draft model that the settings name: the variable that does, and what it says."""

    variable: str
    name: str
    revision: str | None


def is_set(settings: Settings) -> bool:
    """Whether the user set anything about speculation."""
    return bool(names_given(settings, ("speculative_config", *REPLACED)))


def draft(settings: Settings) -> Draft | None:
    """The draft model that the settings name; None where tokens are drafted without one."""
    if settings.speculative_config is not None:
        config = speculative_json.current_keys(settings.speculative_config)
        method, name, revision = (config.get(key) for key in ("method", "model", "revision"))
        variable = "SPECULATIVE_CONFIG"
    else:
        method, name = settings.speculative_method, settings.speculative_model
        variable, revision = "SPECULATIVE_MODEL", settings.speculative_model_revision
    without_model = method in (*drafting.LOOKUP_METHODS, "ngram_gpu", "custom_class", "self")
    if not isinstance(name, str) or not name or without_model or drafting.means_ngram(name):
        return None
    return Draft(variable, name, revision)


def drafts_itself(settings: Settings) -> bool:
    """Whether the settings have layers of the target draft: method self."""
    if (config := settings.speculative_config) is not None:
        return config.get("method") == "self"
    return _method(settings, None)[0] == "self"


def resolve(
    settings: Settings, checkpoint: Checkpoint | None, target: Checkpoint | None = None
) -> Speculation:
    """Decide what vLLM is told.

    Args:
        settings: what the user set.
        checkpoint: what is known of the draft that `draft` names; None for no draft.
        target: what is known of the model to serve, where it drafts for itself.
    """
    decided = Decision(rule=acceptance_rule.of(settings))
    if not decided.rule.is_typical:
        rule = f"the acceptance rule is {decided.rule.name}"
        decided.without_effect(settings, TYPICAL_VARIABLES, rule)
    for name, reason in WITHOUT_EFFECT.items():
        decided.without_effect(settings, [name], reason)
    if settings.speculative_config is not None:
        speculative_json.read(settings.speculative_config, checkpoint, decided, target)
        decided.without_effect(settings, REPLACED, "SPECULATIVE_CONFIG is set and wins")
    else:
        _from_variables(settings, checkpoint, decided, target)
    _add_rule(settings, decided)
    _add_bounds(settings, decided)
    _add_misfits(settings, checkpoint, decided)
    return decided.made()


def _add_misfits(settings: Settings, checkpoint: Checkpoint | None, decided: Decision) -> None:
    """Name what vLLM would find wrong with a draft only once it has loaded everything."""
    method, tokens = map((decided.config or {}).get, ("method", "num_speculative_tokens"))
    in_json = settings.speculative_config is not None
    if reason := drafting.other_than_named(str(method), checkpoint):
        variable = "SPECULATIVE_CONFIG: method" if in_json else "SPECULATIVE_METHOD"
        decided.problems.append(f"{variable}={method}: {reason}")
    if reason := drafting.too_many(tokens, str(method), checkpoint):
        key = "SPECULATIVE_CONFIG: num_speculative_tokens" if in_json else "NUM_SPECULATIVE_TOKENS"
        decided.problems.append(f"{key}={tokens}: {reason}")


def _add_rule(settings: Settings, decided: Decision) -> None:
    """Say which acceptance rule it is, where that is not the one that is always meant."""
    if not decided.rule.reason:
        return
    if decided.config is None:
        named = ("spec_decoding_acceptance_method", *TYPICAL_VARIABLES)
        decided.without_effect(settings, named, "speculation is off")
        decided.rule = acceptance_rule.DEFAULT_RULE
        return
    decided.reasons.append(decided.rule.reason)
    method = "block" if decided.rule.name == "block" else "standard"  # what vLLM calls its own
    if (given := decided.config.get("rejection_sample_method", method)) != method:
        decided.problems.append(
            f"SPEC_DECODING_ACCEPTANCE_METHOD={decided.rule.name}: SPECULATIVE_CONFIG names "
            f"another rule, rejection_sample_method={shown(str(given))}; allowed: one of the two"
        )
    elif method == "block":
        decided.config["rejection_sample_method"] = method


def _add_bounds(settings: Settings, decided: Decision) -> None:
    """Say by what K is less than its most, whatever drafts; and whether anything can predict."""
    if decided.config is None:
        decided.without_effect(settings, ["speculative_max_prompt_len"], "speculation is off")
        if settings.speculative_adaptive:
            decided.notes.append("SPECULATIVE_ADAPTIVE: no effect, speculation is off")
        return
    decided.adaptive = settings.speculative_adaptive
    if decided.adaptive and decided.config.get("method") == "prediction":
        decided.adaptive = False
        decided.notes.append(
            "SPECULATIVE_ADAPTIVE: no effect with method prediction, which drafts what is predicted"
        )
    decided.max_prompt_len = settings.speculative_max_prompt_len
    if decided.adaptive:
        decided.reasons.append("K adapts to what it yields")
    if decided.max_prompt_len is not None:
        decided.reasons.append(f"off for prompts above {decided.max_prompt_len} tokens")
    if decided.config.get("method") == "prediction" and not settings.speculative_prediction:
        decided.problems.append(
            "SPECULATIVE_PREDICTION=false: takes no predictions, and SPECULATIVE_METHOD=prediction "
            "has nothing else to draft from; allowed: true, or another method"
        )


def _from_variables(
    settings: Settings,
    checkpoint: Checkpoint | None,
    decided: Decision,
    target: Checkpoint | None,
) -> None:
    low, high = settings.ngram_prompt_lookup_min, settings.ngram_prompt_lookup_max
    if low is not None and high is not None and low > high:
        decided.problems.append(
            f"NGRAM_PROMPT_LOOKUP_MIN={low}: is above NGRAM_PROMPT_LOOKUP_MAX={high}; "
            f"allowed: 1 to {high}"
        )
    method, reason = _method(settings, checkpoint)
    if method is None:
        unsaid = (
            "nothing says how to draft; set SPECULATIVE_METHOD, SPECULATIVE_MODEL or "
            "NGRAM_PROMPT_LOOKUP_MAX"
        )
        decided.without_effect(settings, REPLACED, unsaid)
        return
    config = decided.config = {"method": method}
    decided.reasons.append(reason)
    if method != "ngram":
        decided.without_effect(settings, LOOKUP_VARIABLES, f"with method {method}")
    if method != "self":
        decided.without_effect(settings, ["speculative_self_layers"], f"with method {method}")
    if method in drafting.LOOKUP_METHODS:
        decided.without_effect(settings, DRAFT_KEYS, f"method {method} has no draft model")
        if not drafting.means_ngram(settings.speculative_model) or method != "ngram":
            decided.without_effect(settings, ["speculative_model"], f"with method {method}")
    else:
        config |= _draft_model(settings, method, checkpoint, decided)
    given = settings.num_speculative_tokens
    config["num_speculative_tokens"], reason = drafting.tokens(given, method, checkpoint)
    decided.reasons.append(reason)
    if method == "ngram":
        decided.add_lookup(low, high)
    if method == "self":
        self_layers.add(decided, target, settings.speculative_self_layers)
    if (limit := settings.speculative_disable_by_batch_size) is not None:
        decided.add_schedule(limit)


def _method(settings: Settings, checkpoint: Checkpoint | None) -> tuple[str | None, str]:
    if settings.speculative_method:
        return settings.speculative_method, f"method {settings.speculative_method} as set"
    if settings.speculative_model:
        if checkpoint is None:
            return "ngram", f"method ngram by SPECULATIVE_MODEL={settings.speculative_model}"
        return drafting.method_of(checkpoint)
    if settings.speculative_self_layers:
        return "self", "method self, only SPECULATIVE_SELF_LAYERS is set"
    if names_given(settings, LOOKUP_VARIABLES):
        return "ngram", "method ngram, only lookup bounds are set"
    return None, ""


def _draft_model(
    settings: Settings, method: str, checkpoint: Checkpoint | None, decided: Decision
) -> dict[str, Any]:
    config: dict[str, Any] = {}
    values = {key: getattr(settings, name) for name, key in DRAFT_KEYS.items()}
    if method == "self":
        decided.without_effect(settings, ["speculative_model_revision"], "with method self")
        del values["revision"]
        if settings.speculative_model:
            decided.problems.append(
                f"SPECULATIVE_MODEL={settings.speculative_model}: is another draft than "
                "SPECULATIVE_METHOD=self, which takes the target's own layers; allowed: one of "
                "the two"
            )
    elif checkpoint is not None:
        config["model"] = checkpoint.name
        if drafting.drafts_in_parallel(checkpoint):
            config["parallel_drafting"] = True
    elif settings.speculative_model:
        decided.problems.append(
            f"SPECULATIVE_MODEL={settings.speculative_model}: means prompt lookup, but "
            f"SPECULATIVE_METHOD={method}; allowed: a hub id or a folder, or unset the method"
        )
    elif method != "mtp":
        decided.problems.append(
            f"SPECULATIVE_METHOD={method}: needs SPECULATIVE_MODEL, a hub id or a folder"
        )
    return config | {key: value for key, value in values.items() if value is not None}
