"""Which of the KV cache's slots hold the draft's entries too.

Target and draft share their blocks. A step in which the draft did not run leaves slots
that only the target has filled. They are tracked by block, not by request, so that a
block keeps its history when it is shared through the prefix cache, or given away.
"""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer]


class DraftCache:
    """How many leading slots of each block hold the draft's entries."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._held: Ints = np.zeros(0, dtype=np.int32)
        self._complete = True

    def wrote(self, tables: Ints, starts: Ints, ends: Ints) -> None:
        """Note that the draft ran over positions `starts` to `ends` of each request.

        Args:
            tables: the requests' blocks, [requests, blocks].
            starts: first position of each; the draft holds all before it.
            ends: the position after the last.
        """
        if self._complete:
            return  # every slot counts as held until one is passed over
        rows, columns = self._touched(starts, ends)
        blocks = tables[rows, columns]
        self._grow(blocks)
        self._held[blocks] = np.minimum(ends[rows] - columns * self._size, self._size)
        self._complete = bool((self._held == self._size).all())

    def passed_over(self, tables: Ints, starts: Ints, ends: Ints) -> None:
        """Note that the target alone ran over positions `starts` to `ends` of each request."""
        rows, columns = self._touched(starts, ends)
        blocks = tables[rows, columns]
        self._grow(blocks)
        before = np.maximum(starts[rows] - columns * self._size, 0)
        self._held[blocks] = np.minimum(self._held[blocks], before)
        self._complete = self._complete and not blocks.size

    def held(self, tables: Ints, ends: Ints) -> Ints:
        """The leading positions of each request, at most `ends`, that the draft holds."""
        if self._complete or not ends.any():
            return ends
        columns = np.arange(-(-int(ends.max()) // self._size))
        blocks = tables[:, : columns.size]
        self._grow(blocks)
        needed = np.clip(ends[:, None] - columns * self._size, 0, self._size)
        held = self._held[blocks]
        short = held < needed
        first = short.argmax(axis=1)
        rows = np.arange(ends.size)
        return np.where(short.any(axis=1), first * self._size + held[rows, first], ends)

    def _touched(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Row and column in the block tables of every block with a position of a request."""
        first = starts // self._size
        counts = np.maximum(-(-ends // self._size) - first, 0)
        rows = np.repeat(np.arange(starts.size), counts)
        within = np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, first[rows] + within

    def _grow(self, blocks: Ints) -> None:
        """Count blocks that were not seen before as held."""
        if blocks.size and (missing := int(blocks.max()) + 1 - self._held.size) > 0:
            grown = np.full(missing, self._size, dtype=np.int32)
            self._held = np.concatenate((self._held, grown))
