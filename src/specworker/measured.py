"""What was measured: a round of requests, as a load generator and the engine's counters saw it."""

from dataclasses import dataclass

from specworker.acceptance import Acceptance

#: The variant that decodes plainly.
OFF = "off"


class MeasuringError(Exception):
    """What keeps a measurement from being one: a request that failed, a server that ended."""


@dataclass(frozen=True)
class Answered:
    """A request and what came of it.

    Attributes:
        prompt: its number in the workload.
        tokens: completion tokens, by `usage`.
        ttft: seconds to the first token.
        elapsed: seconds to the last.
        text: what was generated.
        error: why it failed; empty where it did not.
    """

    prompt: int
    tokens: int = 0
    ttft: float = 0.0
    elapsed: float = 0.0
    text: str = ""
    error: str = ""

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None for a single token."""
        return (self.elapsed - self.ttft) / (self.tokens - 1) if self.tokens > 1 else None


@dataclass(frozen=True)
class Round:
    """Every prompt equally often, at one concurrency, with one variant.

    Attributes:
        variant: its name; `off` decodes plainly.
        concurrency: requests in flight at most.
        number: which round, from 0.
        seconds: from the first request's start to the last one's end.
        answers: of every request.
        counts: what the engine generated, drafted and accepted meanwhile.
        trial: the engines that took turns; a round is compared with the one of `off` that has
            the same trial, concurrency and number.
        notes: what the reader should know of it, such as other traffic.
        draft_cost: what drafting a token is taken to cost, as a share of a step of the model;
            None where that is not known.
        dtype: of the model's sums, as vLLM names it; empty where the server does not tell it.
    """

    variant: str
    concurrency: int
    number: int
    seconds: float
    answers: tuple[Answered, ...]
    counts: Acceptance
    trial: str = ""
    notes: tuple[str, ...] = ()
    draft_cost: float | None = None
    dtype: str = ""
