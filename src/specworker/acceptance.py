"""Acceptance of drafted tokens, read off vLLM's process-wide counters."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Acceptance:
    """Counts since the engine started, or between two readings (`later - earlier`).

    Attributes:
        generated: tokens generated, drafted or not.
        drafts: verification steps that had a draft.
        drafted: drafted tokens.
        accepted: drafted tokens that were accepted.
        accepted_by_position: drafts whose token 1, 2, … K was accepted.
    """

    generated: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: tuple[int, ...] = ()

    def __sub__(self, earlier: "Acceptance") -> "Acceptance":
        before = earlier.accepted_by_position or (0,) * len(self.accepted_by_position)
        return Acceptance(
            self.generated - earlier.generated,
            self.drafts - earlier.drafts,
            self.drafted - earlier.drafted,
            self.accepted - earlier.accepted,
            tuple(a - b for a, b in zip(self.accepted_by_position, before, strict=True)),
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
