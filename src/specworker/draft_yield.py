"""What asking for K drafted tokens yields lately: decaying acceptance by position. Pure.

Position i is conditional on position i - 1, so that a chain of shares is up to date as far
as drafts reached, and holds what was last known beyond.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Shares: TypeAlias = NDArray[np.float64]

#: The share of positions nobody has tried.
PRIOR = 0.7
#: What was known counts as so many trials when new ones come in, however old it is: one
#: lucky draft after a long rest decides nothing, a handful does.
REMEMBERED = 4.0
#: As so many it still counts when all requests are new: their first words are not yet their text.
FORGOTTEN = 12.0
#: Trials by which a position could be better than it was seen to be.
DOUBT = 2.0
#: What is left of an observation, however old, so that it is never lost.
OLDEST = 1e-9


class DraftYield:
    """Tokens a step by K, from the drafts that were asked for, made and accepted.

    Args:
        most: the largest K.
        half_life: steps after which an observation of one request counts half; of more
            requests it takes fewer.
    """

    def __init__(self, most: int, half_life: float) -> None:
        self._half_life = half_life
        self._weight = 1.0
        self._tried, self._kept = np.zeros(most), np.zeros(most)
        self._wanted, self._made = np.zeros(most), np.zeros(most)

    def age(self, batch: int) -> None:
        """Let a step go by, whether it drafts or not."""
        self._weight *= float(2.0 ** (1.0 / max(self._half_life / 4, self._half_life / batch**0.5)))
        if self._weight > 1e30:
            for tried, kept in ((self._tried, self._kept), (self._wanted, self._made)):
                tried /= self._weight
                kept /= self._weight
                _lift(tried, kept, OLDEST)
            self._weight = 1.0

    def forget(self, share: float) -> None:
        """Have what is known count less by a share, but for what is always remembered."""
        for tried, kept in ((self._tried, self._kept), (self._wanted, self._made)):
            floor = np.minimum(tried, FORGOTTEN * self._weight)
            left = np.maximum(tried * (1 - share), floor)
            kept *= np.where(tried > 0, left / np.where(tried > 0, tried, 1.0), 1.0)
            tried[:] = left

    def add(self, asked: int, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Take the figures of a step: of each request, the drafts made and accepted of `asked`."""
        for tried, kept, lengths in (
            (self._tried, self._kept, accepted),
            (self._wanted, self._made, drafted),
        ):
            counts = np.bincount(lengths, minlength=asked + 1)[: asked + 1]
            at_least = counts[::-1].cumsum()[::-1] * self._weight
            _lift(tried[:asked], kept[:asked], REMEMBERED * self._weight)
            kept[:asked] += at_least[1:]
            tried[:asked] += at_least[:-1]

    def accepted(self) -> Shares:
        """By position, the share of requests that had a draft accepted there."""
        return _ratio(self._kept, self._tried).cumprod()

    def accepted_at_best(self) -> Shares:
        """The same if every position were as good as what is known of it allows."""
        known = self._tried / self._weight
        share = _ratio(self._kept, self._tried)
        better: Shares = ((share * known + DOUBT) / (known + DOUBT)).cumprod()
        return better

    def made(self) -> Shares:
        """By position, the share of requests that were given a draft there, of those asked for."""
        return _ratio(self._made, self._wanted).cumprod()


def _lift(tried: Shares, kept: Shares, floor: float) -> None:
    """Have what was ever tried count as `floor` at least; the shares stay. In place."""
    factors = np.where(tried > 0, floor / np.maximum(tried, floor * 1e-40), 1.0).clip(min=1.0)
    tried *= factors
    kept *= factors


def _ratio(kept: Shares, tried: Shares) -> Shares:
    return np.where(tried > 0, kept / np.where(tried > 0, tried, 1.0), PRIOR)
