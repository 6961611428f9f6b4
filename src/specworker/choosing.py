"""Which K to draft with at which batch size, by goodput: what a step yields over what it takes.

Pure. Only what was measured is chosen from: a step may take ten times as long at one K more,
where CUDA graphs end, so that nothing is concluded from neighbours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from specworker import theory
from specworker.drafting import ANY_BATCH_SIZE
from specworker.theory import MARGIN


@dataclass(frozen=True)
class Choice:
    """A K, and how many times as fast as K = 0 it is."""

    tokens: int
    gain: float = 1.0


def best(
    lengths: Mapping[int, float], step_times: Mapping[int, float], margin: float = MARGIN
) -> Choice:
    """The K of most goodput for a batch; of equal ones the smallest.

    Args:
        lengths: K -> tokens that a step yields.
        step_times: K -> what a step takes, 0 among them, in any unit.
        margin: the share of the goodput of K = 0 that another K must win to be chosen.
    """
    found = Choice(0)
    for tokens, gain in sorted(gains(lengths, step_times).items()):
        if gain >= 1 + margin and gain > found.gain:
            found = Choice(tokens, gain)
    return found


def gains(lengths: Mapping[int, float], step_times: Mapping[int, float]) -> dict[int, float]:
    """K -> how many times as fast as K = 0, for each K of which both are known.

    The batch is the same for all of them, and cancels out.
    """
    plain = theory.goodput(1, 1.0, step_times[0])
    return {
        tokens: theory.goodput(1, lengths[tokens], step_times[tokens]) / plain
        for tokens in step_times.keys() & lengths.keys()
        if tokens
    }


def mean_gain(choices: Mapping[int, Choice]) -> float:
    """The gain over all batch sizes alike: the geometric mean."""
    return float(prod(choice.gain for choice in choices.values()) ** (1 / len(choices)))


def fixed(by_batch: Mapping[int, Mapping[int, float]], margin: float = MARGIN) -> Choice:
    """The one K that gains most over all batch sizes alike; of equal ones the smallest.

    Args:
        by_batch: batch size -> K -> how many times as fast as K = 0.
        margin: the share that it must gain to be chosen.
    """
    common = set.intersection(*(set(found) for found in by_batch.values()))
    found = Choice(0)
    for tokens in sorted(common - {0}):
        gain = mean_gain({size: Choice(tokens, of[tokens]) for size, of in by_batch.items()})
        if gain >= 1 + margin and gain > found.gain:
            found = Choice(tokens, gain)
    return found


def schedule(choices: Mapping[int, int]) -> list[list[int]]:
    """K by batch size as vLLM takes it: rows of [first size, last size, K].

    Between two sizes that were measured the smaller K of the two holds; above the largest one,
    its K.

    Args:
        choices: batch size -> K.
    """
    sizes = sorted(choices)
    rows = [[1, sizes[0], choices[sizes[0]]]]
    for lower, upper in pairwise(sizes):
        if upper > lower + 1:
            rows.append([lower + 1, upper - 1, min(choices[lower], choices[upper])])
        rows.append([upper, upper, choices[upper]])
    rows[-1][1] = ANY_BATCH_SIZE
    joined = [rows[0]]
    for first, last, tokens in rows[1:]:
        if tokens == joined[-1][2]:
            joined[-1][1] = last
        else:
            joined.append([first, last, tokens])
    return joined


def limit(rows: list[list[int]]) -> int | None:
    """The largest batch that drafts, where a schedule says no more than that; else None."""
    if len(rows) == 2 and rows[0][2] and not rows[1][2]:
        return rows[0][1]
    return None
