"""What acceptance promises: tokens per step, speed and goodput (arXiv 2211.17192). Pure.

A step that verifies K drafted tokens is taken to cost as much as a step without, and drafting
each token a share of a step. Large batches, in which verifying costs too, are not seen here:
there measured step times tell.
"""

from collections.abc import Sequence
from itertools import accumulate

#: Speculation must win by this share of the speed without it to be worth having.
MARGIN = 0.1


def expected_length(alpha: float, tokens: int) -> float:
    """Tokens per step where each of `tokens` drafted ones is accepted with chance `alpha`."""
    return sum(alpha**place for place in range(tokens + 1))


def mean_length(by_position: Sequence[float]) -> float:
    """Tokens per verified draft, the bonus token included.

    Args:
        by_position: the share of all drafts whose token 1, 2, … K was accepted.
    """
    return 1 + sum(by_position)


def mean_lengths(by_position: Sequence[float]) -> tuple[float, ...]:
    """The same for each smaller K as well, from K = 0: for methods that draft left to right."""
    return tuple(accumulate(by_position, initial=1.0))


def speedup(length: float, tokens: float, cost: float) -> float:
    """How many times as fast as without drafts.

    Args:
        length: tokens that a step yields.
        tokens: tokens that are drafted for a step.
        cost: of drafting a token, as a share of a step.
    """
    return length / (1 + tokens * cost)


def goodput(batch: int, length: float, step_time: float) -> float:
    """Tokens per second of a whole batch, where a step of it takes `step_time` seconds."""
    return batch * length / step_time
