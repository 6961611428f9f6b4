"""Another K that is tried for a few steps, and what they brought. Pure."""

from dataclasses import dataclass, field

from specworker.step_times import FEW

#: Steps that one may go on for while it does better than what is known of it.
LONGEST = 16


@dataclass
class Trial:
    """A K on trial.

    Attributes:
        choice: its index.
        ends: the step with which it is over.
        tokens: what a request gained in each of its steps.
        seconds: what those of them took that could be timed.
    """

    choice: int
    ends: int
    tokens: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def is_long(self) -> bool:
        """Whether it has gone on for as long as it may."""
        return len(self.tokens) >= LONGEST

    def goodput(self, seconds: float) -> float:
        """Tokens a second of its steps, if each took so long; 0 before the first."""
        return sum(self.tokens) / len(self.tokens) / seconds if self.tokens else 0.0

    def takes(self) -> float:
        """Seconds of its last steps at least, one of which may have been held up; 0 so far."""
        return min(self.seconds[-FEW:]) if len(self.seconds) >= FEW else 0.0
