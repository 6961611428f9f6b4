"""What a step with each K is expected to yield and to take. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from specworker.draft_yield import Shares


@dataclass(frozen=True)
class Outlook:
    """Tokens that a request gains in a step, and seconds that it takes, by choice of K."""

    tokens: Sequence[float]
    seconds: Sequence[float]

    @classmethod
    def of(
        cls,
        choices: Sequence[int],
        curve: Sequence[float],
        accepted: Shares,
    ) -> "Outlook":
        """What a step is expected to be.

        Args:
            choices: the K.
            curve: seconds of a step by choice; none where unknown.
            accepted: the share of requests that have a draft accepted, by position.
        """
        gained = [0.0, *accepted.cumsum().tolist()]
        return cls([1 + gained[k] for k in choices], curve)

    def goodput(self, choice: int) -> float:
        """Tokens a second."""
        return self.tokens[choice] / self.seconds[choice]

    def gain(self, choice: int, current: int) -> float:
        """How many times as fast as with the current choice it is."""
        return self.goodput(choice) / self.goodput(current)

    def lost(self, choice: int, current: int) -> float:
        """Seconds that a step of a choice takes longer than its tokens otherwise would."""
        return max(0.0, self.seconds[choice] - self.tokens[choice] / self.goodput(current))

    def change(self, choices: Sequence[int], old: int, new: int, batch: int) -> str:
        """Why one choice is left for another, in words."""
        change = f"K {choices[old]} → {choices[new]}: "
        if choices[new] == 0:
            return f"{change}{self.tokens[old]:.1f} tokens per step at batch {batch} does not pay"
        faster = f"{self.gain(new, old):.2f} times as fast"
        return f"{change}{self.tokens[new]:.1f} tokens per step at batch {batch}, {faster}"
