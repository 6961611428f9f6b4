"""Trying another K for a few steps: which one is worth it, and what its steps brought. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from specworker.outlook import Outlook
from specworker.step_times import FEW, SURE, StepTimes

#: Steps of a trial, and those that one may go on for while it does better than is known of it.
USUAL, LONGEST = 4, 16
#: Steps of a K that must have been measured before its time is known.
ENOUGH = 3
#: The least that a K must promise to be better by.
PROMISING = 0.02
#: Steps in which a trial must be made up for if the K is as good as it may be.
PAYS = 50
#: From what doubt on few measurements are hearsay, so that a trial is broken off where they hold.
DOUBTED = 0.5
#: Steps' time that a step of a K is taken to lose at most until it has been measured a few times,
#: since any may have been held up; a trial that loses more is broken off after that.
RASH = 3.0


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


@dataclass(frozen=True)
class Proposal:
    """A K to try next.

    Attributes:
        choice: its index.
        is_known: whether its time is.
        lost: seconds that the trial may lose.
    """

    choice: int
    is_known: bool
    lost: float


@dataclass(frozen=True)
class Situation:
    """What is known when a step of a batch begins.

    Attributes:
        times: those of all steps.
        batch: requests in the step.
        step: its number.
        current: the index of the K that is taken.
        outlook: tokens and seconds by K.
    """

    times: StepTimes
    batch: int
    step: int
    current: int
    outlook: Outlook

    @property
    def usual(self) -> float:
        """Seconds of a step of the K that is taken."""
        return self.outlook.seconds[self.current]

    def is_known(self, choice: int) -> bool:
        """Whether the time of a choice has been measured."""
        return self.times.samples(self.batch, choice) >= ENOUGH

    def loses(self, other: int) -> float:
        """Seconds that a step of another choice may lose."""
        lost = self.outlook.lost(other, self.current)
        is_measured = self.times.samples(self.batch, other) >= FEW
        return lost if is_measured else min(lost, RASH * self.usual)

    def proposal(self, hoped: Sequence[float], allowed: int, first: float) -> Proposal | None:
        """The K that could gain most for what its trial may lose; of unknown time before others.

        No K is left out on the way up: a step's time can leap where kernels or graphs change,
        so what was never measured must promise to pay by what is known of its drafts.

        Args:
            hoped: tokens of a step by K, if its drafts are as good as they may be.
            allowed: the index of the largest K.
            first: seconds that the first step of a trial takes longer.
        """
        best: tuple[bool, float, Proposal] | None = None
        for other in range(allowed + 1):
            is_next = other <= self.current + 1 or self.is_known(other - 1)
            if other == self.current or not is_next:
                continue
            is_known = self.is_known(other)
            is_trusted = is_known or other < self.current
            gain = self._may_gain(other, hoped if is_trusted else self.outlook.tokens)
            lost = self._may_lose(other) + first
            if gain > PROMISING and lost <= PAYS * gain * self.usual:
                rank = is_known, lost / gain
                if best is None or rank < best[:2]:
                    best = *rank, Proposal(other, is_known, lost)
        return best[2] if best else None

    def _may_gain(self, other: int, tokens: Sequence[float]) -> float:
        """By how much another choice is better, if its time is as short as it may be."""
        seconds = self.outlook.seconds[other] * (1 - self._doubt(other))
        return tokens[other] / seconds / self.outlook.goodput(self.current) - 1

    def _may_lose(self, other: int) -> float:
        """Seconds that a trial of another choice may lose."""
        is_hearsay = (
            0 < self.times.samples(self.batch, other) < SURE and self._doubt(other) > DOUBTED
        )
        return min(self.loses(other) * USUAL, RASH * self.usual if is_hearsay else math.inf)

    def _doubt(self, other: int) -> float:
        return self.times.doubt(self.batch, other, self.step)
