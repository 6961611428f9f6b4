"""The worker's own gauges, in the registry that vLLM's `/metrics` serves."""

from functools import cache

from prometheus_client import Gauge

from specworker.live import LONGEST, Live


@cache
def _gauges() -> tuple[Gauge, Gauge, Gauge]:
    """K, its changes, and the mean acceptance length: made once a process, as its registry is.

    Not on import: where the variable that names a folder for several processes is set
    later, there must be none yet.
    """
    tokens = Gauge(
        "specworker:num_speculative_tokens",
        "K, the tokens drafted a step, as it is now.",
        ["model_name"],
        multiprocess_mode="mostrecent",
    )
    changes = Gauge(
        "specworker:adaptive_k_changes",
        "How often K has changed while it adapts; 0 where it does not.",
        ["model_name"],
        multiprocess_mode="mostrecent",
    )
    length = Gauge(
        "specworker:mean_acceptance_length",
        "Tokens per draft in the last minute, the bonus token included; 1 without drafts.",
        ["model_name"],
        multiprocess_mode="mostrecent",
    )
    return tokens, changes, length


def show(live: Live, model: str) -> None:
    """Bring the gauges of a model up to date."""
    tokens, changes, length = _gauges()
    tokens.labels(model).set(live.tokens)
    changes.labels(model).set(live.adaptation.changes if live.adaptation else 0)
    length.labels(model).set(live.counts(LONGEST).mean_length)
