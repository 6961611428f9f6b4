"""The heart: what the user set about speculation, as one `speculative_config` for vLLM.

Everything here is pure. The names come from several generations of vLLM workers; the
result is in the words of the pinned vLLM. Nothing that was set is dropped in silence:
what cannot take effect is named in a note, with the reason.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from specworker import drafting
from specworker.checkpoint import Checkpoint
from specworker.settings import Settings
from specworker.values import shown

#: Windows and drafts beyond this cost a lookup method more time than they save.
SENSIBLE_LOOKUP = 16

#: Keys that older workers and vLLM versions took inside SPECULATIVE_CONFIG.
RENAMED_KEYS = {
    "ngram_prompt_lookup_min": "prompt_lookup_min",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "speculative_model": "model",
    "speculative_max_model_len": "max_model_len",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
}

#: Variable -> key of vLLM's config, for what a draft model takes as it is.
DRAFT_KEYS = {
    "speculative_model_revision": "revision",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "speculative_max_model_len": "max_model_len",
    "speculative_quantization": "quantization",
    "speculative_enforce_eager": "enforce_eager",
}
LOOKUP_VARIABLES = ("ngram_prompt_lookup_min", "ngram_prompt_lookup_max")
TYPICAL_VARIABLES = (
    "typical_acceptance_sampler_posterior_threshold",
    "typical_acceptance_sampler_posterior_alpha",
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


@dataclass(frozen=True)
class Speculation:
    """What was decided, and why.

    Attributes:
        config: vLLM's `speculative_config`; None for plain decoding.
        reasons: why it is as it is, one clause each.
        notes: what the user should know: variables that cannot take effect.
        problems: what cannot work, one line each: variable, value, what is allowed.
    """

    config: dict[str, Any] | None
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The one line that a log carries."""
        if self.config is None:
            head = "speculation off"
        else:
            head = f"speculation {', '.join(f'{key}={self.config[key]}' for key in self.config)}"
        return f"{head} ({'; '.join(self.reasons)})" if self.reasons else head


@dataclass
class _Decision:
    """A `Speculation` while it is made."""

    config: dict[str, Any] | None = None
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def without_effect(self, settings: Settings, variables: Iterable[str], why: str) -> None:
        """Note the variables of `variables` that are set, and why they do nothing."""
        if given := _given(settings, variables):
            self.notes.append(f"{given}: no effect, {why}")


def is_set(settings: Settings) -> bool:
    """Whether the user set anything about speculation."""
    return bool(_given(settings, ("speculative_config", *REPLACED)))


def draft(settings: Settings) -> Draft | None:
    """The draft model that the settings name; None where tokens are drafted without one."""
    if settings.speculative_config is not None:
        config = _current_keys(settings.speculative_config)
        method, name, revision = (config.get(key) for key in ("method", "model", "revision"))
        variable = "SPECULATIVE_CONFIG"
    else:
        method, name = settings.speculative_method, settings.speculative_model
        variable, revision = "SPECULATIVE_MODEL", settings.speculative_model_revision
    without_model = method in (*drafting.LOOKUP_METHODS, "ngram_gpu", "custom_class")
    if not isinstance(name, str) or not name or without_model or drafting.means_ngram(name):
        return None
    return Draft(variable, name, revision)


def resolve(settings: Settings, checkpoint: Checkpoint | None) -> Speculation:
    """Decide what vLLM is told.

    Args:
        settings: what the user set.
        checkpoint: what is known of the draft that `draft` names; None for no draft.
    """
    decided = _Decision()
    if settings.spec_decoding_acceptance_method == "typical_acceptance_sampler":
        decided.problems.append(
            "SPEC_DECODING_ACCEPTANCE_METHOD=typical_acceptance_sampler: vLLM 0.32.0 has no "
            "typical acceptance; allowed: rejection_sampler"
        )
    else:
        rule = "the acceptance rule is rejection_sampler"
        decided.without_effect(settings, TYPICAL_VARIABLES, rule)
    for name, reason in WITHOUT_EFFECT.items():
        decided.without_effect(settings, [name], reason)
    if settings.speculative_config is not None:
        _from_json(settings.speculative_config, settings, checkpoint, decided)
    else:
        _from_variables(settings, checkpoint, decided)
    if decided.config and decided.config.get("method") == "mlp_speculator":
        decided.problems.append(
            "SPECULATIVE_MODEL: the draft is an MLP speculator (method mlp_speculator), for "
            "which vLLM 0.32.0 has no drafter; allowed: another draft, or SPECULATIVE_METHOD=ngram"
        )
    return Speculation(
        decided.config, tuple(decided.reasons), tuple(decided.notes), tuple(decided.problems)
    )


def _from_variables(settings: Settings, checkpoint: Checkpoint | None, decided: _Decision) -> None:
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
        _add_lookup(low, high, decided)
    if (limit := settings.speculative_disable_by_batch_size) is not None:
        _add_schedule(limit, decided)


def _method(settings: Settings, checkpoint: Checkpoint | None) -> tuple[str | None, str]:
    if settings.speculative_method:
        return settings.speculative_method, f"method {settings.speculative_method} as set"
    if settings.speculative_model:
        if checkpoint is None:
            return "ngram", f"method ngram by SPECULATIVE_MODEL={settings.speculative_model}"
        return drafting.method_of(checkpoint)
    if _given(settings, LOOKUP_VARIABLES):
        return "ngram", "method ngram, only lookup bounds are set"
    return None, ""


def _draft_model(
    settings: Settings, method: str, checkpoint: Checkpoint | None, decided: _Decision
) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if checkpoint is not None:
        config["model"] = checkpoint.name
    elif settings.speculative_model:
        decided.problems.append(
            f"SPECULATIVE_MODEL={settings.speculative_model}: means prompt lookup, but "
            f"SPECULATIVE_METHOD={method}; allowed: a hub id or a folder, or unset the method"
        )
    elif method != "mtp":
        decided.problems.append(
            f"SPECULATIVE_METHOD={method}: needs SPECULATIVE_MODEL, a hub id or a folder"
        )
    values = {key: getattr(settings, name) for name, key in DRAFT_KEYS.items()}
    return config | {key: value for key, value in values.items() if value is not None}


def _add_lookup(low: int | None, high: int | None, decided: _Decision) -> None:
    assert decided.config is not None
    bounds, reasons = drafting.lookup(low, high)
    decided.config |= bounds
    decided.reasons += reasons
    widest, tokens = bounds["prompt_lookup_max"], decided.config["num_speculative_tokens"]
    if max(widest, tokens) > SENSIBLE_LOOKUP:
        decided.notes.append(
            f"NGRAM_PROMPT_LOOKUP_MAX={widest} with K={tokens}: windows and drafts above "
            f"{SENSIBLE_LOOKUP} cost time on long prompts and rarely match"
        )


def _add_schedule(limit: int, decided: _Decision) -> None:
    assert decided.config is not None
    tokens = decided.config["num_speculative_tokens"]
    decided.config["num_speculative_tokens_per_batch_size"] = drafting.schedule(limit, tokens)
    decided.reasons.append(f"off above {limit} running requests")


def _current_keys(given: dict[str, Any]) -> dict[str, Any]:
    """SPECULATIVE_CONFIG with today's keys, and without those that say nothing."""
    named = {RENAMED_KEYS.get(key, key): value for key, value in given.items()}
    return {key: value for key, value in named.items() if value not in (None, "")}


def _from_json(
    given: dict[str, Any], settings: Settings, checkpoint: Checkpoint | None, decided: _Decision
) -> None:
    config = decided.config = _current_keys(given)
    decided.reasons.append("SPECULATIVE_CONFIG as set")
    for old in (key for key in given if key in RENAMED_KEYS):
        decided.notes.append(f"SPECULATIVE_CONFIG: {old} is {RENAMED_KEYS[old]} today")
    decided.without_effect(settings, REPLACED, "SPECULATIVE_CONFIG is set and wins")
    if drafting.means_ngram(config.get("model")):
        del config["model"]
        config.setdefault("method", "ngram")
    if "method" not in config:
        if checkpoint is not None:
            config["method"], reason = drafting.method_of(checkpoint)
            decided.reasons.append(reason)
        elif "prompt_lookup_max" in config or "prompt_lookup_min" in config:
            config["method"] = "ngram"
            decided.reasons.append("method ngram, only lookup bounds are set")
        else:
            decided.problems.append(
                f"SPECULATIVE_CONFIG={shown(str(given))}: names neither a method nor a model; "
                'allowed: {"method": …} or {"model": …}, and vLLM\'s other keys'
            )
            return
    if "num_speculative_tokens" not in config:
        tokens, reason = drafting.tokens(None, config["method"], checkpoint)
        config["num_speculative_tokens"] = tokens
        decided.reasons.append(reason)
    if config["method"] == "ngram":
        low, high = config.get("prompt_lookup_min"), config.get("prompt_lookup_max")
        if isinstance(low, int | None) and isinstance(high, int | None):  # else vLLM refuses
            _add_lookup(low, high, decided)
    if (limit := config.pop("disable_by_batch_size", None)) is not None:
        if isinstance(limit, int) and limit > 0:
            _add_schedule(limit, decided)
            decided.notes.append(
                "SPECULATIVE_CONFIG: disable_by_batch_size is "
                "num_speculative_tokens_per_batch_size today"
            )
        else:
            decided.problems.append(
                f"SPECULATIVE_CONFIG: disable_by_batch_size={shown(str(limit))} is not a "
                "positive integer; allowed: an integer at least 1"
            )


def _given(settings: Settings, variables: Iterable[str]) -> str:
    """The names of those of `variables` that are set."""
    return ", ".join(name.upper() for name in variables if getattr(settings, name) is not None)
