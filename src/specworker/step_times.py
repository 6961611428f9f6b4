"""What a decode step costs, by the size of the batch and by K. Pure."""

import math
from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence

#: Steps of which the usual time is taken, and since when at most if there are newer ones: what
#: else the machine does, and the length of the texts, change all times.
WINDOW, OLD = 48, 500
#: Steps after which what was measured counts half in how sure it is.
HALF_LIFE = 1000.0
#: The spread of a step's time, as a share of it.
SPREAD = 0.15
#: How far below what it is taken to be the time of a K may lie that is smaller than any that was
#: measured, or of which there are too few measurements.
UNBOUNDED = 0.8
#: The same of a K that was measured with another size of the batch alone.
SCALED = 0.6
#: Measurements of which the shortest is seldom a step that was held up; up to which it is taken;
#: and from which on it is none.
FEW, SOME, SURE = 2, 3, 5


class StepTimes:
    """Usual times by bucket of batch sizes and by the index of a K among those to choose from.

    Args:
        choices: how many there are to choose from.
        least: measurements of a time without which it is as if there were none.
    """

    def __init__(self, choices: int, least: int = 1) -> None:
        self._choices, self._least = choices, least
        self._seen: dict[int, list[_Usual]] = {}
        self._curves: dict[int, list[float]] = {}
        self._largest = 0

    def add(self, batch: int, choice: int, seconds: float, step: int) -> None:
        """Take the time of a step, the `step`th."""
        size = bucket(batch)
        if size not in self._seen:
            self._seen[size] = [_Usual() for _ in range(self._choices)]
        self._seen[size][choice].add(seconds, step)
        if len(self._seen[size][choice].newest) >= self._least:
            self._largest = max(self._largest, choice)
        self._curves.pop(size, None)

    @property
    def largest(self) -> int:
        """The largest choice that was measured, with any size of the batch; 0 before any was."""
        return self._largest

    def has_seen(self, batch: int) -> bool:
        """Whether a step of a batch of about this size was timed."""
        return bucket(batch) in self._seen

    def samples(self, batch: int, choice: int) -> int:
        """Steps that were measured."""
        seen = self._seen.get(bucket(batch))
        return len(seen[choice].newest) if seen else 0

    def doubt(self, batch: int, choice: int, step: int) -> float:
        """How far off the time of a choice may be, as a share of it."""
        seen = self._seen.get(bucket(batch))
        if not seen:
            return SPREAD
        if not seen[choice].newest:
            if any(size[choice].newest for size in self._seen.values()):
                return SCALED
            measured_below = any(usual.newest for usual in seen[:choice])
            return SPREAD if measured_below else UNBOUNDED
        left: float = 2.0 ** (-(step - seen[choice].step) / HALF_LIFE)
        if len(seen[choice].newest) >= SURE:
            return SPREAD / math.sqrt(max(1.0, len(seen[choice].newest) * left))
        at_least = UNBOUNDED if len(seen[choice].newest) < FEW else SPREAD
        return max(at_least, 1 - left)

    def curve(self, batch: int) -> list[float]:
        """Seconds of a step by choice, rising; empty before anything was measured.

        Where a batch of this size has not been measured, what the nearest size costs is
        scaled to what is known of this one; without, times lie on lines between those that
        are known and are level outside of them.
        """
        size = bucket(batch)
        if size not in self._curves:
            seen = self._seen.get(size)
            others = [other for other in self._seen if other != size]
            if seen:
                near = self._curves_of_nearest(size, others)
                self._curves[size] = _filled(seen, near, self._least)
            else:
                return self._curves_of_nearest(size, others)
        return self._curves[size]

    def _curves_of_nearest(self, size: int, others: list[int]) -> list[float]:
        if not others:
            return []
        nearest = min(others, key=lambda other: abs(other - size))
        return _filled(self._seen[nearest], [], self._least)


class _Usual:
    """What the last values usually are."""

    def __init__(self) -> None:
        self.newest: deque[tuple[float, int]] = deque()
        self._sorted: list[float] = []
        self.step = 0

    def add(self, value: float, step: int) -> None:
        self.step = step
        self.newest.append((value, step))
        insort(self._sorted, value)
        while len(self.newest) > (SURE if step - self.newest[0][1] > OLD else WINDOW):
            self._sorted.remove(self.newest.popleft()[0])

    @property
    def value(self) -> float:
        """The median; of few the shortest: a step is held up more often than it is hastened."""
        return self._sorted[0 if len(self._sorted) <= SOME else (len(self._sorted) - 1) // 2]


def usual_choices(most: int) -> list[int]:
    """0 to 4, then K that grow by about a third each, and the largest."""
    choices = [k for k in (0, 1, 2, 3, 4) if k < most]
    while choices[-1:] and choices[-1] >= 4 and choices[-1] * 4 // 3 + 1 < most:
        choices.append(choices[-1] * 4 // 3 + 1)
    return [*choices, most]


def nearest(counts: Sequence[int], drafted: int) -> int:
    """The index of the number of drafts that is nearest: of 0 for none alone.

    Where one request of a batch has a draft, a step can take much longer than where none has.
    """
    if not drafted:
        return 0
    return min(range(1, len(counts)), key=lambda index: abs(counts[index] - drafted))


def bucket(batch: int) -> int:
    """Sizes of about the same cost: 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, 17-24, …"""
    if batch <= 4:
        return batch
    power = (batch - 1).bit_length()
    return 2 * power + (2 * batch > 3 << (power - 1)) - 1


def _filled(seen: list[_Usual], near: Sequence[float], least: int) -> list[float]:
    """Times for every choice; `near` are those of another size, or none."""
    known = [index for index, usual in enumerate(seen) if len(usual.newest) >= least]
    known = known or [index for index, usual in enumerate(seen) if usual.newest]
    times: list[float] = []
    weights = [len(seen[i].newest) if i in known else 0.5 for i in range(len(seen))]
    anchor = max(known, key=lambda index: len(seen[index].newest))
    for index, usual in enumerate(seen):
        if index in known:
            times.append(usual.value)
        elif near:
            times.append(_like(near, {i: seen[i].value for i in known}, index, anchor))
        else:
            below = max((k for k in known if k < index), default=None)
            above = min((k for k in known if k > index), default=None)
            if below is not None and above is not None:
                share = (index - below) / (above - below)
                times.append(seen[below].value * (1 - share) + seen[above].value * share)
            else:
                times.append(seen[known[0] if below is None else below].value)
    return _rising(times, weights)


def _like(near: Sequence[float], known: Mapping[int, float], index: int, anchor: int) -> float:
    """The time of a choice that grows over the known ones as it does for another size."""
    low, high = min(known), max(known)
    if low == high or near[high] <= near[low]:
        return near[index] * known[anchor] / near[anchor]
    if index < low:  # on a line it could be nothing, or less
        return near[index] * known[low] / near[low]
    slope = max(0.0, (known[high] - known[low]) / (near[high] - near[low]))
    nearest = min(known, key=lambda choice: abs(choice - index))
    return known[nearest] + slope * (near[index] - near[nearest])


def _rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nearest values that never fall: neighbours that do are levelled."""
    levels: list[list[float]] = []
    for value, weight in zip(values, weights, strict=True):
        levels.append([value, weight, 1])
        while len(levels) > 1 and levels[-2][0] > levels[-1][0]:
            value_2, weight_2, count_2 = levels.pop()
            value_1, weight_1, count_1 = levels.pop()
            total = weight_1 + weight_2
            mean = (value_1 * weight_1 + value_2 * weight_2) / total
            levels.append([mean, total, count_1 + count_2])
    return [value for value, _, count in levels for _ in range(int(count))]
