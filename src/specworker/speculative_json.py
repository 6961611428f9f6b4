"""SPECULATIVE_CONFIG: vLLM's config as a user wrote it, in the keys of today. Pure."""

from typing import Any

from specworker import drafting, self_layers
from specworker.checkpoint import Checkpoint
from specworker.decision import Decision
from specworker.values import shown

#: Keys that older workers and vLLM versions took inside SPECULATIVE_CONFIG.
RENAMED_KEYS = {
    "ngram_prompt_lookup_min": "prompt_lookup_min",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "speculative_model": "model",
    "speculative_max_model_len": "max_model_len",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
}


def current_keys(given: dict[str, Any]) -> dict[str, Any]:
    """SPECULATIVE_CONFIG with today's keys, and without those that say nothing."""
    named = {RENAMED_KEYS.get(key, key): value for key, value in given.items()}
    return {key: value for key, value in named.items() if value not in (None, "")}


def read(
    given: dict[str, Any],
    checkpoint: Checkpoint | None,
    decided: Decision,
    target: Checkpoint | None = None,
) -> None:
    """Fill `decided` from the object that SPECULATIVE_CONFIG holds.

    Its method self, with the key `layers`, is no method of vLLM's: see `self_layers`.
    """
    config = decided.config = current_keys(given)
    decided.reasons.append("SPECULATIVE_CONFIG as set")
    for old in (key for key in given if key in RENAMED_KEYS):
        decided.notes.append(f"SPECULATIVE_CONFIG: {old} is {RENAMED_KEYS[old]} today")
    if drafting.means_ngram(config.get("model")):
        del config["model"]
        config.setdefault("method", "ngram")
    if "method" not in config:
        if checkpoint is not None:
            config["method"], reason = drafting.method_of(checkpoint)
            decided.reasons.append(reason)
            if drafting.drafts_in_parallel(checkpoint):
                config.setdefault("parallel_drafting", True)
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
            decided.add_lookup(low, high)
    if config["method"] == "prediction":
        bounds = ("prompt_lookup_min", "prompt_lookup_max")
        if idle := ", ".join(key for key in bounds if config.pop(key, None) is not None):
            decided.notes.append(f"SPECULATIVE_CONFIG: {idle}: no effect, with method prediction")
    if config["method"] == "self":
        if config.pop("model", None) is not None:
            decided.problems.append(
                "SPECULATIVE_CONFIG: method self takes the target's own layers; "
                "allowed: no model beside it"
            )
        self_layers.add(decided, target, config.pop("layers", None), "SPECULATIVE_CONFIG")
    if (limit := config.pop("disable_by_batch_size", None)) is not None:
        if isinstance(limit, int) and limit > 0:
            decided.add_schedule(limit)
            decided.notes.append(
                "SPECULATIVE_CONFIG: disable_by_batch_size is "
                "num_speculative_tokens_per_batch_size today"
            )
        else:
            decided.problems.append(
                f"SPECULATIVE_CONFIG: disable_by_batch_size={shown(str(limit))} is not a "
                "positive integer; allowed: an integer at least 1"
            )
