"""What a decode step costs, by the size of the batch and by K. Pure."""

from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence

#: Steps of which the median is taken.
WINDOW = 48
#: Steps after which what was measured counts half in how sure it is.
HALF_LIFE = 1000.0
#: The spread of a step's time, as a share of it.
SPREAD = 0.15
#: How far below what it is taken to be the time of a K may lie that is smaller than any that was
#: measured, or that was measured once.
UNBOUNDED = 0.8
#: The same of a K that was measured with another size of the batch alone.
SCALED = 0.6
#: Measurements of which the smaller is no step that was held up.
TWICE = 2


class StepTimes:
    """Medians by bucket of batch sizes and by the index of a K among those to choose from."""

    def __init__(self, choices: int) -> None:
        self._choices = choices
        self._seen: dict[int, list[_Median]] = {}
        self._curves: dict[int, list[float]] = {}

    def add(self, batch: int, choice: int, seconds: float, step: int) -> None:
        """Take the time of a step, the `step`th."""
        size = bucket(batch)
        if size not in self._seen:
            self._seen[size] = [_Median() for _ in range(self._choices)]
        self._seen[size][choice].add(seconds, step)
        self._curves.pop(size, None)

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
            measured_below = any(median.newest for median in seen[:choice])
            return SPREAD if measured_below else UNBOUNDED
        if len(seen[choice].newest) < TWICE:
            return UNBOUNDED
        age = step - seen[choice].step
        sure = len(seen[choice].newest) * 2.0 ** (-age / HALF_LIFE)
        return min(SPREAD, SPREAD / float(sure**0.5))

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
                self._curves[size] = _filled(seen, near)
            else:
                return self._curves_of_nearest(size, others)
        return self._curves[size]

    def _curves_of_nearest(self, size: int, others: list[int]) -> list[float]:
        if not others:
            return []
        nearest = min(others, key=lambda other: abs(other - size))
        return _filled(self._seen[nearest], [])


class _Median:
    """The median of the last values."""

    def __init__(self) -> None:
        self.newest: deque[float] = deque()
        self._sorted: list[float] = []
        self.step = 0

    def add(self, value: float, step: int) -> None:
        self.step = step
        self.newest.append(value)
        insort(self._sorted, value)
        if len(self.newest) > WINDOW:
            self._sorted.remove(self.newest.popleft())

    @property
    def value(self) -> float:
        """Of two values the smaller: a step is held up more often than it is hastened."""
        return self._sorted[(len(self._sorted) - 1) // 2]


def usual_choices(most: int) -> list[int]:
    """0 to 4, then K that grow by about a third each, and the largest."""
    choices = [k for k in (0, 1, 2, 3, 4) if k < most]
    while choices[-1:] and choices[-1] >= 4 and choices[-1] * 4 // 3 + 1 < most:
        choices.append(choices[-1] * 4 // 3 + 1)
    return [*choices, most]


def nearest(choices: Sequence[int], drafted: float) -> int:
    """The index of the K that drafts of so many tokens a request are most like.

    That of 0 for no drafts alone: where one request of a batch has a draft, a step can take much
    longer than where none has.
    """
    if not drafted:
        return 0
    return min(range(1, len(choices)), key=lambda index: abs(choices[index] - drafted))


def bucket(batch: int) -> int:
    """Sizes of about the same cost: 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, 17-24, …"""
    if batch <= 4:
        return batch
    power = (batch - 1).bit_length()
    return 2 * power + (2 * batch > 3 << (power - 1)) - 1


def _filled(seen: list[_Median], near: Sequence[float]) -> list[float]:
    """Times for every choice; `near` are those of another size, or none."""
    known = [index for index, median in enumerate(seen) if median.newest]
    times: list[float] = []
    weights = [len(median.newest) or 0.5 for median in seen]
    anchor = max(known, key=lambda index: len(seen[index].newest))
    for index, median in enumerate(seen):
        if median.newest:
            times.append(median.value)
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
