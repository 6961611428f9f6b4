"""Acceptance of drafted tokens, read off vLLM's process-wide counters."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from operator import add, sub


@dataclass(frozen=True)
class Acceptance:
    """Counts since the engine started, or between two readings (`later - earlier`).

    Attributes:
        generated: tokens generated, drafted or not.
        drafts: verification steps that had a draft.
        drafted: drafted tokens.
        accepted: drafted tokens that were accepted.
        accepted_by_position: drafts whose token 1, 2, … K was accepted.
        drafted_by_position: drafts that had a token 1, 2, … K; empty where nobody counts.
    """

    generated: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: tuple[int, ...] = ()
    drafted_by_position: tuple[int, ...] = ()

    def __add__(self, more: "Acceptance") -> "Acceptance":
        return self._with(more, add)

    def __sub__(self, earlier: "Acceptance") -> "Acceptance":
        return self._with(earlier, sub)

    def _with(self, other: "Acceptance", operation: Callable[[int, int], int]) -> "Acceptance":
        def by_position(ours: tuple[int, ...], theirs: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(operation(a, b) for a, b in zip_longest(ours, theirs, fillvalue=0))

        return Acceptance(
            operation(self.generated, other.generated),
            operation(self.drafts, other.drafts),
            operation(self.drafted, other.drafted),
            operation(self.accepted, other.accepted),
            by_position(self.accepted_by_position, other.accepted_by_position),
            by_position(self.drafted_by_position, other.drafted_by_position),
        )

    @property
    def rate(self) -> float:
        """Share of the drafted tokens that were accepted, 0 to 1."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def rate_by_position(self) -> tuple[float, ...]:
        """Share of the drafts whose token 1, 2, … K was accepted."""
        return tuple(n / self.drafts if self.drafts else 0.0 for n in self.accepted_by_position)

    @property
    def mean_length(self) -> float:
        """Tokens per verified draft, the bonus token included, as vLLM counts: 1 to K + 1."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0


def read() -> Acceptance:
    """The counters as they stand."""
    from vllm.v1.metrics.reader import Counter, Vector, get_metrics_snapshot

    counts: dict[str, int] = {}
    by_position: list[int] = []
    for metric in get_metrics_snapshot():
        if isinstance(metric, Counter):
            counts[metric.name] = counts.get(metric.name, 0) + metric.value
        elif isinstance(metric, Vector):
            by_position = metric.values
    return Acceptance(
        counts.get("vllm:generation_tokens", 0),
        counts.get("vllm:spec_decode_num_drafts", 0),
        counts.get("vllm:spec_decode_num_draft_tokens", 0),
        counts.get("vllm:spec_decode_num_accepted_tokens", 0),
        tuple(by_position),
    )
