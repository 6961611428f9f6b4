"""How often a drafted token is right, by how many in a row were right before it. Pure.

A lookup drafts what followed the same words before. While an answer copies, its drafts are right
token after token; where it stops copying one is wrong, and the next ones are seldom right. So
what is expected of a drafted token depends on the run of right ones that it goes on with, and
each request is in a run of its own.
"""

from bisect import bisect

import numpy as np
from numpy.typing import NDArray

#: The shortest run of each class of runs; what is longer than the last counts as that.
CLASSES = (0, 1, 2, 4, 8)
#: The share that is expected before anything was seen, and as how many tokens that counts.
PRIOR, SEEN = 0.7, 1.0
#: As so many tokens what was known still counts, however old, if there were as many: one lucky
#: token after a long time decides nothing.
REMEMBERED = 4.0

_LAST = CLASSES[-1]
_CLASS = [bisect(CLASSES, run) - 1 for run in range(_LAST + 1)]


class MatchOdds:
    """Decaying shares of drafted tokens that were right, by the run before each.

    Args:
        half_life: steps after which a token of a batch of one request counts half; of more
            requests it takes fewer.
    """

    def __init__(self, half_life: float) -> None:
        self._half_life = half_life
        self._seen = [SEEN for _ in CLASSES]
        self._right = [SEEN * PRIOR for _ in CLASSES]

    def age(self, batch: int, steps: int = 1) -> None:
        """Let steps of so many requests go by."""
        left = 2.0 ** -(steps * max(batch, 1) ** 0.5 / self._half_life)
        for place, seen in enumerate(self._seen):
            kept = max(seen * left, min(seen, REMEMBERED))
            self._right[place] *= kept / seen
            self._seen[place] = kept

    def add(self, run: int, right: int, *, ends: bool) -> None:
        """Take drafted tokens that went on with a run.

        Args:
            run: right tokens before them.
            right: right tokens among them, from the first on.
            ends: whether the one after these was wrong; else it is not known.
        """
        for length in range(run, run + right):
            place = _CLASS[min(length, _LAST)]
            self._seen[place] += 1
            self._right[place] += 1
        if ends:
            self._seen[_CLASS[min(run + right, _LAST)]] += 1

    def chances(self, most: int) -> NDArray[np.float64]:
        """That all of the next 1, 2, … `most` drafted tokens are right.

        Returns:
            A row for each run from 0 on; the last is that of every longer run.
        """
        odds = [self._right[place] / self._seen[place] for place in _CLASS]
        following = [[odds[min(run + i, _LAST)] for i in range(most)] for run in range(_LAST + 1)]
        chances: NDArray[np.float64] = np.array(following).cumprod(axis=1)
        return chances
