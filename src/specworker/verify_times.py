"""What steps take by the drafts that all requests together have verified in them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from specworker.step_times import FEW, SURE, StepTimes, nearest, usual_choices

#: Measurements of which the usual time is known well.
KNOWN_WELL = 4
#: As so many measurements the line counts on which a time lies with those of more and of fewer
#: drafts.
LINE = 4.0
#: How far below what it is taken to be a time may lie of which there are too few measurements.
UNMEASURED = 0.6
#: By how many numbers of drafts a step goes beyond what was ever measured.
AHEAD = 2


@dataclass(frozen=True)
class Curve:
    """Seconds of a step by the number of its drafts.

    Attributes:
        drafts: the numbers that there are times of, rising from 0 on.
        usual: the times; empty where nothing is known.
        at_best: the same if what is not well known were as short as it may be.
        reach: the most drafts that a step should verify.
    """

    drafts: Sequence[int]
    usual: Sequence[float]
    at_best: Sequence[float]
    reach: int

    def seconds(self, drafts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of steps with so many drafts."""
        return np.interp(drafts, self.drafts, self.usual)

    def seconds_at_best(self, drafts: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same if what is not well known were as short as it may be."""
        return np.interp(drafts, self.drafts, self.at_best)


class VerifyTimes:
    """Usual times by the size of the batch and the number of drafts.

    Args:
        most: the most drafts of a request.
        largest_batch: the most requests.
    """

    def __init__(self, most: int, largest_batch: int) -> None:
        self._drafts = sorted({*usual_choices(most * largest_batch), most})
        self._times = StepTimes(len(self._drafts), least=FEW)

    def add(self, batch: int, drafted: int, seconds: float, step: int) -> None:
        """Take the time of a step, the `step`th."""
        self._times.add(batch, nearest(self._drafts, drafted), seconds, step)

    def has_seen(self, batch: int) -> bool:
        """Whether a step of a batch of about this size was timed."""
        return self._times.has_seen(batch)

    def is_settled(self, batch: int, drafted: int) -> bool:
        """Whether one more measurement changes little."""
        return self._times.samples(batch, nearest(self._drafts, drafted)) > KNOWN_WELL

    def is_sure(self, batch: int, drafted: int) -> bool:
        """Whether what was measured cannot all be steps that were held up."""
        return self._times.samples(batch, nearest(self._drafts, drafted)) >= SURE

    def curve(self, batch: int, step: int) -> Curve:
        """What is known at the `step`th step.

        A time that is not well known is drawn to the line between the others.
        """
        found = self._times.curve(batch)
        usual = found[:]
        for place in range(1, len(found) - 1):
            below, here, above = self._drafts[place - 1 : place + 2]
            share = (here - below) / (above - below)
            line = found[place - 1] * (1 - share) + found[place + 1] * share
            measured = self._times.samples(batch, place)
            usual[place] = (found[place] * measured + line * LINE) / (measured + LINE)
        at_best = accumulate(
            (time * (1 - self._doubt(batch, place, step)) for place, time in enumerate(usual)), max
        )
        reach = self._drafts[min(self._times.largest + AHEAD, len(self._drafts) - 1)]
        return Curve(self._drafts, usual, [*at_best], reach)

    def _doubt(self, batch: int, place: int, step: int) -> float:
        """How far off a time may be, as a share of it."""
        measured = self._times.samples(batch, place)
        if measured >= KNOWN_WELL:
            return 0.0
        return self._times.doubt(batch, place, step) if measured >= FEW else UNMEASURED
