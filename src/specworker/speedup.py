"""How many times as fast as without drafts, and how sure that is. Pure.

Rounds are paired, a variant's with that of `off` of the same number, since what slows the machine
down slows both. The logarithm of their ratio is what spreads evenly: twice as fast is as far
from 1 as half as fast. Its mean lies within Student's t-interval (Student 1908).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median, stdev
from typing import Any

#: How surely the true speed-up lies within the bounds: 5% lie on either side.
SURE = 0.9
#: One-sided 95% quantiles of Student's t, for 1 to 30 degrees of freedom.
QUANTILES = (
    *(6.3138, 2.9200, 2.3534, 2.1318, 2.0150, 1.9432, 1.8946, 1.8595, 1.8331, 1.8125),
    *(1.7959, 1.7823, 1.7709, 1.7613, 1.7531, 1.7459, 1.7396, 1.7341, 1.7291, 1.7247),
    *(1.7207, 1.7171, 1.7139, 1.7109, 1.7081, 1.7056, 1.7033, 1.7011, 1.6991, 1.6973),
)
#: Rounds without which nothing is known of how sure it is.
FEWEST_ROUNDS = 2


@dataclass(frozen=True)
class Speedup:
    """A variant's tokens per second over those of `off` in the same round.

    Attributes:
        median: of the rounds.
        low: the lowest round.
        high: the highest.
        rounds: how many there are.
        lower: what it surely surpasses; 0 where one round tells nothing.
        upper: what it surely stays below; infinite where one round tells nothing.
    """

    median: float
    low: float
    high: float
    rounds: int
    lower: float = 0.0
    upper: float = math.inf

    @classmethod
    def of(cls, ratios: Sequence[float]) -> "Speedup":
        """Of at least one ratio, each above 0."""
        found = (median(ratios), min(ratios), max(ratios), len(ratios))
        if len(ratios) < FEWEST_ROUNDS:
            return cls(*found)
        logs = [math.log(ratio) for ratio in ratios]
        middle = fmean(logs)
        reach = quantile(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
        return cls(*found, math.exp(middle - reach), math.exp(middle + reach))

    @property
    def is_settled(self) -> bool:
        """Whether there are rounds enough to say how sure it is."""
        return self.rounds >= FEWEST_ROUNDS

    @property
    def is_faster(self) -> bool:
        """Whether it is surely faster than `off`."""
        return self.lower > 1

    @property
    def is_slower(self) -> bool:
        """Whether it is surely slower than `off`."""
        return self.upper < 1

    def pays(self, margin: float) -> bool:
        """Whether it is surely faster, and by the margin in half of the rounds."""
        return self.is_faster and self.median >= 1 + margin

    def __str__(self) -> str:
        """`2.91 (2.80–3.02)`; of one round, which tells no interval, `2.91`."""
        interval = f" ({self.lower:.2f}–{self.upper:.2f})" if self.is_settled else ""
        return f"{self.median:.2f}{interval}"

    def as_object(self) -> dict[str, Any]:
        """For programs; `lower` and `upper` are null where one round tells nothing."""
        return {
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "lower": self.lower if self.is_settled else None,
            "upper": self.upper if self.is_settled else None,
            "rounds": self.rounds,
        }


def quantile(degrees: int) -> float:
    """The one-sided 95% quantile of Student's t; above 30 degrees to the third place."""
    if degrees <= len(QUANTILES):
        return QUANTILES[degrees - 1]
    normal = NormalDist().inv_cdf(0.95)
    return normal + (normal**3 + normal) / (4 * degrees)
