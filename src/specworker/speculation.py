"""The heart: what the user set about speculation, as one `speculative_config` for vLLM.

Everything here is pure. The names come from several generations of vLLM workers; the
result is in the words of the pinned vLLM. Nothing that was set is dropped in silence:
what cannot take effect is named in a note, with the reason.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from specworker.checkpoint import Checkpoint
from specworker.settings import Settings

#: Methods that draft from the text alone, without a model.
LOOKUP_METHODS = ("ngram", "suffix")
DEFAULT_TOKENS = 3
#: vLLM's own default for suffix decoding: the depth of its tree.
DEFAULT_SUFFIX_TOKENS = 24
DEFAULT_LOOKUP_MIN, DEFAULT_LOOKUP_MAX = 2, 4
#: Windows and drafts beyond this cost a lookup method more time than they save.
SENSIBLE_LOOKUP = 16
#: Upper end of the last range of a batch-size schedule: vLLM cuts it to its own maximum.
ANY_BATCH_SIZE = 2**31 - 1

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
DEMO = {"ngram_prompt_lookup_max": DEFAULT_LOOKUP_MAX}


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


def is_set(settings: Settings) -> bool:
    """Whether the user set anything about speculation."""
    return bool(_given(settings, ("speculative_config", *REPLACED)))


def draft(settings: Settings) -> Draft | None:
    """The draft model that the settings name; None where tokens are drafted without one."""
    if settings.speculative_config is not None:
        config = _current_keys(settings.speculative_config)[0]
        method, name, revision = (config.get(key) for key in ("method", "model", "revision"))
        variable = "SPECULATIVE_CONFIG"
    else:
        method, name = settings.speculative_method, settings.speculative_model
        variable, revision = "SPECULATIVE_MODEL", settings.speculative_model_revision
    without_model = method in (*LOOKUP_METHODS, "ngram_gpu", "custom_class")
    if not isinstance(name, str) or without_model or _means_ngram(name):
        return None
    return Draft(variable, name, revision)


def resolve(settings: Settings, checkpoint: Checkpoint | None) -> Speculation:
    """Decide what vLLM is told.

    Args:
        settings: what the user set.
        checkpoint: what is known of the draft that `draft` names; None for no draft.
    """
    notes: list[str] = []
    problems: list[str] = []
    _acceptance(settings, notes, problems)
    for name, reason in WITHOUT_EFFECT.items():
        if getattr(settings, name) is not None:
            notes.append(f"{name.upper()} has no effect: {reason}")
    if settings.speculative_config is not None:
        config, reasons = _from_json(settings, checkpoint, notes)
    else:
        config, reasons = _from_variables(settings, checkpoint, notes, problems)
    if config and config.get("method") == "mlp_speculator":
        problems.append(
            "SPECULATIVE_METHOD=mlp_speculator: vLLM 0.32.0 has no drafter for MLP speculators; "
            "allowed: another draft, or ngram"
        )
    return Speculation(config, tuple(reasons), tuple(notes), tuple(problems))


def method_of(checkpoint: Checkpoint) -> tuple[str, str]:
    """How a draft checkpoint is used, and why: by what it is, by its name only if it must."""
    config = checkpoint.config
    if config is None:
        name = checkpoint.name.lower()
        known = ("eagle3", "eagle", "medusa", "mlp_speculator", "mtp")
        found = next((method for method in known if method in name.replace("-", "_")), None)
        method = found or "draft_model"
        return method, f"method {method} by the draft's name, its config.json could not be read"
    kind = str(config.get("model_type", ""))
    architectures = " ".join(config.get("architectures") or []).lower()
    if speculators := config.get("speculators_model_type"):
        return str(speculators), f"method {speculators} declared by the draft"
    for method, signs in {
        "medusa": kind == "medusa" or "medusa" in architectures,
        "mlp_speculator": kind == "mlp_speculator" or "mlpspeculator" in architectures,
        "eagle3": "eagle3" in architectures,
        "eagle": kind == "eagle" or "eagle" in architectures or _is_bare_eagle(checkpoint),
        "mtp": kind.endswith("_mtp") or "mtp" in architectures,
    }.items():
        if signs:
            return method, f"method {method} by the draft's config.json"
    return "draft_model", "method draft_model, the draft is a model of its own"


def _is_bare_eagle(checkpoint: Checkpoint) -> bool:
    """An EAGLE head in the layout of its authors: a one-layer Llama by its config.

    Its weights tell: a layer that joins embedding and hidden state, and no embedding.
    """
    assert checkpoint.config is not None
    if checkpoint.tensors:
        return any(name.removeprefix("model.") == "fc.weight" for name in checkpoint.tensors)
    return checkpoint.config.get("num_hidden_layers") == 1 and "eagle" in checkpoint.name.lower()


def _means_ngram(name: str) -> bool:
    return name.strip("[]").lower() == "ngram"


def _names(variables: list[str]) -> str:
    return ", ".join(name.upper() for name in variables)


def _given(settings: Settings, variables: Any) -> list[str]:
    return [name for name in variables if getattr(settings, name) is not None]


def _acceptance(settings: Settings, notes: list[str], problems: list[str]) -> None:
    if settings.spec_decoding_acceptance_method == "typical_acceptance_sampler":
        problems.append(
            "SPEC_DECODING_ACCEPTANCE_METHOD=typical_acceptance_sampler: vLLM 0.32.0 has no "
            "typical acceptance; allowed: rejection_sampler"
        )
    elif given := _given(settings, TYPICAL_VARIABLES):
        notes.append(f"{_names(given)}: no effect, the acceptance rule is rejection_sampler")


def _from_variables(
    settings: Settings, checkpoint: Checkpoint | None, notes: list[str], problems: list[str]
) -> tuple[dict[str, Any] | None, list[str]]:
    low, high = settings.ngram_prompt_lookup_min, settings.ngram_prompt_lookup_max
    if low is not None and high is not None and low > high:
        problems.append(
            f"NGRAM_PROMPT_LOOKUP_MIN={low}: is above NGRAM_PROMPT_LOOKUP_MAX={high}; "
            f"allowed: 1 to {high}"
        )
    method, reason = _method(settings, checkpoint)
    if method is None:
        if given := _given(settings, REPLACED):
            notes.append(
                f"{_names(given)}: no effect, nothing says how to draft; set SPECULATIVE_METHOD, "
                "SPECULATIVE_MODEL or NGRAM_PROMPT_LOOKUP_MAX"
            )
        return None, []
    config: dict[str, Any] = {"method": method}
    reasons = [reason]
    if method in LOOKUP_METHODS:
        if method == "suffix":
            _without_effect(settings, LOOKUP_VARIABLES, f"with method {method}", notes)
        _without_effect(settings, DRAFT_KEYS, f"method {method} has no draft model", notes)
        if settings.speculative_model and not _means_ngram(settings.speculative_model):
            _without_effect(settings, ["speculative_model"], f"with method {method}", notes)
    else:
        _without_effect(settings, LOOKUP_VARIABLES, f"with method {method}", notes)
        if checkpoint is not None:
            config["model"] = checkpoint.name
        elif method != "mtp":
            problems.append(
                f"SPECULATIVE_METHOD={method}: needs SPECULATIVE_MODEL, a hub id or a folder"
            )
        for name, key in DRAFT_KEYS.items():
            if (value := getattr(settings, name)) is not None:
                config[key] = value
    tokens, reason = _tokens(settings, method, checkpoint)
    config["num_speculative_tokens"] = tokens
    reasons.append(reason)
    if method == "ngram":
        reasons.extend(_lookup(config, low, high))
        widest = max(config["prompt_lookup_max"], tokens)
        if widest > SENSIBLE_LOOKUP:
            notes.append(
                f"NGRAM_PROMPT_LOOKUP_MAX={config['prompt_lookup_max']} with K={tokens}: windows "
                f"and drafts above {SENSIBLE_LOOKUP} cost time on long prompts and rarely match"
            )
    if (limit := settings.speculative_disable_by_batch_size) is not None:
        config["num_speculative_tokens_per_batch_size"] = schedule(limit, tokens)
        reasons.append(f"off above {limit} running requests")
    return config, reasons


def schedule(limit: int, tokens: int) -> list[list[int]]:
    """A batch-size schedule that drafts `tokens` for up to `limit` requests and 0 above.

    Rows of [first batch size, last batch size, drafted tokens], as vLLM takes them.
    """
    return [[1, limit, tokens], [limit + 1, ANY_BATCH_SIZE, 0]]


def _method(settings: Settings, checkpoint: Checkpoint | None) -> tuple[str | None, str]:
    if settings.speculative_method:
        return settings.speculative_method, f"method {settings.speculative_method} as set"
    if settings.speculative_model:
        if checkpoint is None:
            return "ngram", f"method ngram by SPECULATIVE_MODEL={settings.speculative_model}"
        return method_of(checkpoint)
    if _given(settings, LOOKUP_VARIABLES):
        return "ngram", "method ngram, only lookup bounds are set"
    return None, ""


def _tokens(settings: Settings, method: str, checkpoint: Checkpoint | None) -> tuple[int, str]:
    if (tokens := settings.num_speculative_tokens) is not None:
        return tokens, f"K={tokens} as set"
    if checkpoint is not None and (declared := checkpoint.drafted_tokens):
        return declared, f"K={declared} declared by the draft"
    if method == "suffix":
        return DEFAULT_SUFFIX_TOKENS, f"K={DEFAULT_SUFFIX_TOKENS} at most, the default of suffix"
    return DEFAULT_TOKENS, f"K={DEFAULT_TOKENS} by default"


def _lookup(config: dict[str, Any], low: int | None, high: int | None) -> list[str]:
    """Complete the bounds of an n-gram lookup; returns what was filled in.

    Left to itself vLLM copies a missing bound from the other one, so that a maximum
    alone would look up n-grams of just that length.
    """
    reasons = []
    if high is None:
        high = max(DEFAULT_LOOKUP_MAX, low or 0)
        reasons.append(f"longest n-gram {high} by default")
    if low is None:
        low = min(DEFAULT_LOOKUP_MIN, high)
        reasons.append(f"shortest n-gram {low} by default")
    config["prompt_lookup_min"], config["prompt_lookup_max"] = low, high
    return reasons


def _without_effect(settings: Settings, variables: Any, why: str, notes: list[str]) -> None:
    if given := _given(settings, variables):
        notes.append(f"{_names(given)}: no effect, {why}")


def _current_keys(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """SPECULATIVE_CONFIG with today's keys, and the old ones that were renamed."""
    renamed = [key for key in config if key in RENAMED_KEYS]
    return {RENAMED_KEYS.get(key, key): value for key, value in config.items()}, renamed


def _from_json(
    settings: Settings, checkpoint: Checkpoint | None, notes: list[str]
) -> tuple[dict[str, Any], list[str]]:
    given = settings.speculative_config
    assert given is not None
    config, renamed = _current_keys(given)
    reasons = ["SPECULATIVE_CONFIG as set"]
    notes.extend(f"SPECULATIVE_CONFIG: {old} is {RENAMED_KEYS[old]} today" for old in renamed)
    _without_effect(settings, REPLACED, "SPECULATIVE_CONFIG is set and wins", notes)
    if "method" not in config:
        if checkpoint is not None:
            config["method"], reason = method_of(checkpoint)
            reasons.append(reason)
        elif _means_ngram(str(config.get("model", ""))) or "prompt_lookup_max" in config:
            config["method"] = "ngram"
            reasons.append("method ngram")
    if config.get("method") == "ngram":
        if _means_ngram(str(config.get("model", ""))):
            del config["model"]
        low, high = config.get("prompt_lookup_min"), config.get("prompt_lookup_max")
        if isinstance(low, int | None) and isinstance(high, int | None):
            reasons.extend(_lookup(config, low, high))
    if "num_speculative_tokens" not in config:
        tokens, reason = _tokens(
            settings.model_copy(update={"num_speculative_tokens": None}),
            str(config.get("method")),
            checkpoint,
        )
        config["num_speculative_tokens"] = tokens
        reasons.append(reason)
    if (limit := config.pop("disable_by_batch_size", None)) is not None:
        if isinstance(limit, int) and limit > 0:
            config["num_speculative_tokens_per_batch_size"] = schedule(
                limit, config["num_speculative_tokens"]
            )
            reasons.append(f"off above {limit} running requests")
        notes.append(
            "SPECULATIVE_CONFIG: disable_by_batch_size is "
            "num_speculative_tokens_per_batch_size today"
        )
    return config, reasons
