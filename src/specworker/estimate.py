"""How long a measurement takes, before it is made. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

from specworker.measured import Round
from specworker.trials import Manner, Trial, missing
from specworker.workloads import Workload

#: Seconds that an engine is taken to need for its start.
START_SECONDS = 60.0
#: Tokens per second that a request is taken to get where nothing was measured.
TOKENS_PER_SECOND = 30.0


@dataclass(frozen=True)
class Estimate:
    """How long it takes.

    Attributes:
        seconds: at most, where the basis holds.
        basis: what it is computed from, in words.
    """

    seconds: float
    basis: str

    def __str__(self) -> str:
        minutes = self.seconds / 60
        shown = f"{minutes:.0f} min" if minutes >= 1.5 else f"{self.seconds:.0f} s"
        return f"at most about {shown}: {self.basis}"


def of(
    trials: Sequence[Trial], workload: Workload, manner: Manner, done: Collection[Round] = ()
) -> Estimate:
    """The time that is left, if every answer is as long as it may be.

    Args:
        trials: what is measured.
        workload: what is asked.
        manner: how.
        done: rounds that were measured before, which also tell how fast it goes.
    """
    starts, tokens, seconds = 0, 0, 0.0
    longest = sum(map(manner.longest, workload.prompts))
    rates = _rates(done)
    each = median(rates) if rates else TOKENS_PER_SECOND
    for trial in trials:
        left = missing(trial, manner, done)
        starts += sum(place.variables is not None for place in trial.places) if left else 0
        for concurrency, _ in left:
            asked = manner.requests(len(workload.prompts), concurrency) / len(workload.prompts)
            of_arms = len(trial.arms) * int(longest * asked)
            tokens += of_arms
            seconds += of_arms / (each * concurrency)
    how = "as measured so far" if rates else "assumed; a GPU is faster, a large model slower"
    basis = (
        f"{tokens} tokens at {each:.0f} a second for each request in flight ({how})"
        + f", and {starts} starts of an engine of {START_SECONDS:.0f} s" * (starts > 0)
    )
    return Estimate(seconds + starts * START_SECONDS, basis)


def _rates(rounds: Collection[Round]) -> list[float]:
    """Tokens per second and request in flight of each round."""
    return [
        sum(answer.tokens for answer in one.answers) / one.seconds / one.concurrency
        for one in rounds
    ]
