"""How a draft is used, and what is filled in where nothing is set. Pure."""

from collections.abc import Mapping
from typing import Any

from specworker.checkpoint import Checkpoint

#: Methods that draft from the text alone, without a model.
LOOKUP_METHODS = ("ngram", "suffix", "prediction")
DEFAULT_TOKENS = 3
#: Of method self, whose draft step costs nearly what a target step does.
DEFAULT_SELF_TOKENS = 1
#: Methods whose drafts have a head for each token.
HEAD_A_TOKEN = ("medusa", "mlp_speculator")
#: What the `config.json` of an MLP speculator names.
MLP_SPECULATOR = "MLPSpeculatorPreTrainedModel"
#: Kinds of the speculators library that vLLM runs by another method's name.
SPECULATORS = {"peagle": "eagle3", "dflash2": "dflash"}
#: vLLM's own default for suffix decoding: the depth of its tree.
DEFAULT_SUFFIX_TOKENS = 24
#: Of method prediction, whose drafts cost nothing to make and are mostly right while the answer
#: keeps to its prediction; where it does not, the drafts are short by themselves.
DEFAULT_PREDICTION_TOKENS = 32
DEFAULT_LOOKUP_MIN, DEFAULT_LOOKUP_MAX = 2, 4
#: Upper end of the last range of a batch-size schedule: vLLM cuts it to its own maximum.
ANY_BATCH_SIZE = 2**31 - 1


def means_ngram(name: Any) -> bool:
    """Whether a draft's name is the literal `[ngram]` of older versions."""
    return isinstance(name, str) and name.strip("[]").lower() == "ngram"


def method_of(checkpoint: Checkpoint) -> tuple[str, str]:
    """How a draft checkpoint is used, and why: by what it is, by its name only if it must."""
    config = checkpoint.config
    if config is None:
        name = checkpoint.name.lower().replace("-", "_")
        known = ("eagle3", "eagle", "medusa", "mlp_speculator", "mtp")
        method = next((method for method in known if method in name), "draft_model")
        return method, f"method {method} by the draft's name, its config.json could not be read"
    kind = str(config.get("model_type", ""))
    architectures = " ".join(config.get("architectures") or []).lower()
    if speculators := config.get("speculators_model_type"):
        method = SPECULATORS.get(speculators, str(speculators))
        named = "" if method == speculators else f" as {speculators}"
        return method, f"method {method} declared by the draft{named}"
    for method, signs in {
        "medusa": kind == "medusa" or "medusa" in architectures,
        "mlp_speculator": kind == "mlp_speculator" or "mlpspeculator" in architectures,
        "eagle3": "eagle3" in architectures,
        "eagle": kind == "eagle" or "eagle" in architectures or _is_bare_eagle(checkpoint),
        "mtp": kind.endswith("_mtp") or "mtp" in architectures or _carries_mtp(config),
    }.items():
        if signs:
            return method, f"method {method} by the draft's config.json"
    return "draft_model", "method draft_model, the draft is a model of its own"


def drafts_in_parallel(checkpoint: Checkpoint) -> bool:
    """Whether a head was trained to draft all tokens in one pass, which vLLM must be told."""
    return (checkpoint.config or {}).get("speculators_model_type") == "peagle"


def _is_bare_eagle(checkpoint: Checkpoint) -> bool:
    """An EAGLE head in the layout of its authors: a one-layer Llama by its config.

    Its weights tell: a layer that joins embedding and hidden state, and no embedding.
    """
    if checkpoint.tensors:
        return any(name.removeprefix("model.") == "fc.weight" for name in checkpoint.tensors)
    one_layer = (checkpoint.config or {}).get("num_hidden_layers") == 1
    return one_layer and "eagle" in checkpoint.name.lower()


def _carries_mtp(config: Mapping[str, Any]) -> bool:
    """Whether a model has layers of multi-token prediction, with which it drafts for itself."""
    layers = config.get("num_nextn_predict_layers")
    return isinstance(layers, int) and layers > 0


def other_than_named(method: str, checkpoint: Checkpoint | None) -> str | None:
    """Why vLLM would take a draft for something else than `method`; None where it would not."""
    if method != "mlp_speculator" or checkpoint is None or checkpoint.config is None:
        return None
    named = checkpoint.config.get("architectures") or []
    if MLP_SPECULATOR in named:
        return None
    return (
        f"the config.json of {checkpoint.name} names the architectures {named}; "
        f"allowed: a draft that names {MLP_SPECULATOR}, or another method"
    )


def too_many(tokens: Any, method: str, checkpoint: Checkpoint | None) -> str | None:
    """Why a draft cannot draft `tokens` a step; None where nothing is known against it."""
    heads = checkpoint.drafted_tokens if checkpoint and method in HEAD_A_TOKEN else None
    if not heads or not isinstance(tokens, int) or tokens <= heads:
        return None
    return (
        f"the draft has {heads} heads (method {method}), and each drafts one token; "
        f"allowed: 1 to {heads}"
    )


def tokens(given: int | None, method: str, checkpoint: Checkpoint | None) -> tuple[int, str]:
    """K, the tokens drafted per step, and why."""
    if given is not None:
        return given, f"K={given} as set"
    if checkpoint is not None and (declared := checkpoint.drafted_tokens):
        return declared, f"K={declared} declared by the draft"
    if method == "self":
        return DEFAULT_SELF_TOKENS, f"K={DEFAULT_SELF_TOKENS} by default of method self"
    if method == "prediction":
        return (
            DEFAULT_PREDICTION_TOKENS,
            f"K={DEFAULT_PREDICTION_TOKENS} by default of method prediction",
        )
    if method == "suffix":
        return DEFAULT_SUFFIX_TOKENS, f"K={DEFAULT_SUFFIX_TOKENS} at most, the default of suffix"
    return DEFAULT_TOKENS, f"K={DEFAULT_TOKENS} by default"


def lookup(low: int | None, high: int | None) -> tuple[dict[str, int], list[str]]:
    """The bounds of an n-gram lookup, and which of them were filled in.

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
    return {"prompt_lookup_min": low, "prompt_lookup_max": high}, reasons


def schedule(limit: int, tokens: int) -> list[list[int]]:
    """A batch-size schedule that drafts `tokens` for up to `limit` requests and 0 above.

    Rows of [first batch size, last batch size, drafted tokens], as vLLM takes them.
    """
    return [[1, limit, tokens], [limit + 1, ANY_BATCH_SIZE, 0]]
