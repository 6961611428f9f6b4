"""What asking for K drafted tokens yields lately: decaying acceptance by position. Pure.

Position i is conditional on position i - 1, so that a chain of shares is up to date as far
as drafts reached, and holds what was last known beyond. A position of which little is known is
taken to be like the one before it.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Shares: TypeAlias = NDArray[np.float64]

#: The share of a first position that nobody has tried.
PRIOR = 0.7
#: As so many trials of a position the one before it counts.
LIKE_BEFORE = 1.0
#: What was known counts as so many trials when new ones come in, however old it is, if there
#: were as many: one lucky draft after a long rest decides nothing, a handful does.
REMEMBERED = 4.0
#: As so many it still counts when all requests are new: their first words are not yet their text.
FORGOTTEN = 12.0
#: Trials by which a position could be better than it was seen to be.
DOUBT = 2.0
#: What is left of an observation, however old, so that it is never lost.
OLDEST = 1e-9


class DraftYield:
    """Tokens a step by K, from the drafts that were asked for and accepted.

    Args:
        most: the largest K.
        half_life: steps after which an observation of one request counts half; of more
            requests it takes fewer.
    """

    def __init__(self, most: int, half_life: float) -> None:
        self._half_life = half_life
        self._weight = 1.0
        self._accepted = _Chain(most)

    def age(self, batch: int) -> None:
        """Let a step go by, whether it drafts or not."""
        self._weight *= float(2.0 ** (1.0 / max(self._half_life / 4, self._half_life / batch**0.5)))
        if self._weight > 1e30:
            self._accepted.rescale(self._weight)
            self._weight = 1.0

    def forget(self, share: float) -> None:
        """Have what is known count less by a share, but for what is always remembered."""
        self._accepted.forget(share, FORGOTTEN * self._weight)

    def add(self, asked: int, accepted: Sequence[int]) -> None:
        """Take the figures of a step: of each request, the drafts accepted of `asked`."""
        self._accepted.add(asked, accepted, self._weight)

    def accepted(self) -> Shares:
        """By position, the share of requests that had a draft accepted there."""
        return self._accepted.shares(self._weight).cumprod()

    def accepted_at_best(self) -> Shares:
        """The same if every position were as good as what is known of it allows."""
        return self._accepted.at_best(self._weight).cumprod()


class _Chain:
    """Trials by position, each of those that the position before was kept in."""

    def __init__(self, most: int) -> None:
        self._tried, self._kept, self._ever = np.zeros(most), np.zeros(most), np.zeros(most)

    def add(self, asked: int, lengths: Sequence[int], weight: float) -> None:
        """Take of each request how many positions of `asked` were kept."""
        counts = np.bincount(lengths, minlength=asked + 1)[: asked + 1]
        at_least = counts[::-1].cumsum()[::-1]
        self._lift(np.minimum(self._ever, REMEMBERED) * weight, asked)
        self._kept[:asked] += at_least[1:] * weight
        self._tried[:asked] += at_least[:-1] * weight
        self._ever[:asked] += at_least[:-1]

    def forget(self, share: float, floor: float) -> None:
        """Have trials count less by a share, down to a floor."""
        left = np.maximum(self._tried * (1 - share), np.minimum(self._tried, floor))
        self._kept *= left / np.where(self._tried > 0, self._tried, 1.0)
        self._tried = left

    def rescale(self, weight: float) -> None:
        """Have a trial that counted `weight` count 1."""
        self._tried /= weight
        self._kept /= weight
        self._lift(np.where(self._ever > 0, OLDEST, 0.0), len(self._tried))

    def shares(self, weight: float) -> Shares:
        """By position, the share of trials in which it was kept."""
        known = np.maximum(self._tried / weight, np.minimum(self._ever, REMEMBERED))
        own = self._kept / np.where(self._tried > 0, self._tried, 1.0)
        found = np.empty(len(own))
        before, likened = PRIOR, 0.0
        for position, trials in enumerate(known):
            if trials + likened:
                before = (own[position] * trials + before * likened) / (trials + likened)
            found[position], likened = before, LIKE_BEFORE
        return found

    def at_best(self, weight: float) -> Shares:
        """The same if some trials more had all been kept."""
        known = self._tried / weight
        better: Shares = (self.shares(weight) * known + DOUBT) / (known + DOUBT)
        return better

    def _lift(self, floor: Shares, count: int) -> None:
        """Have the first trials count as `floor` at least; the shares stay."""
        tried, kept = self._tried[:count], self._kept[:count]
        factors = np.where(tried > 0, floor[:count] / np.maximum(tried, 1e-300), 1.0).clip(min=1.0)
        tried *= factors
        kept *= factors
