"""Whether speculation pays, in words and with the reason. Pure.

A step that verifies K drafted tokens costs as much as a step without and K drafted tokens
(arXiv 2211.17192), and yields the mean acceptance length. What drafting costs is not seen
from here, nor what verifying costs in a large batch: without a measurement at K = 0, the
verdict is an estimate.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Literal

from specworker import theory
from specworker.acceptance import Acceptance
from specworker.adaptation import Adaptation
from specworker.live import Finished, Live, Setup, Window

Kind = Literal["paying", "not_paying", "no_drafts", "off", "idle"]

#: Speculation must be so many times as fast to be worth it.
WORTH = 1 + theory.MARGIN
#: A mean acceptance length above this looks as if it paid, and so needs a reason if not.
PROMISING = 1.5
#: Requests that a comparison needs on either side, and the tokens that each must have.
ENOUGH_REQUESTS, ENOUGH_TOKENS = 5, 16
#: The last requests that it looks at.
COMPARED = 1000

ADVICE = "turn it off or change the method"


@dataclass(frozen=True)
class Verdict:
    """A verdict.

    Attributes:
        kind: what it is.
        text: the same in words, with the reason.
        is_estimate: whether no measurement without drafts stands behind it.
    """

    kind: Kind
    text: str
    is_estimate: bool = False


def now(live: Live) -> Verdict:
    """The verdict on the last minute, or on the time since K was changed."""
    if live.adaptation:
        return adapting(live.setup, live.adaptation, live.running, live.since_change())
    measured = speedup(islice(live.finished(), COMPARED), live.tokens)
    return of(live.setup, live.tokens, live.running, live.since_change(), measured)


def of(
    setup: Setup, tokens: int, running: int, window: Window, measured: float | None = None
) -> Verdict:
    """The verdict.

    Args:
        setup: what the engine speculates with.
        tokens: K as it is set.
        running: requests in the batch.
        window: figures of the time in question.
        measured: how many times as fast requests were as at K = 0; None for unknown.
    """
    if reason := _off(setup, tokens, running):
        return Verdict("off", reason)
    counts = window.counts
    if not counts.generated:
        return Verdict("idle", "idle: nothing was generated")
    if not counts.drafts:
        return Verdict("no_drafts", f"no drafts: {_why_none(setup)}")
    length = counts.mean_length
    if measured is not None:
        worth = measured >= WORTH
        seen = f"{length:.1f} tokens per step, {measured:.1f} times as fast as at K = 0"
        return Verdict(
            "paying" if worth else "not_paying", f"{seen}: {'paying off' if worth else ADVICE}"
        )
    if _estimate(setup, counts) >= WORTH:
        return Verdict("paying", f"{length:.1f} tokens per step: paying off", is_estimate=True)
    but = f", but a drafted one is taken to cost {setup.cost:.0%} of a step"
    seen = f"{length:.1f} tokens per step{but if length >= PROMISING else ''}"
    return Verdict("not_paying", f"{seen}: {ADVICE}", is_estimate=True)


def adapting(setup: Setup, known: Adaptation, running: int, window: Window) -> Verdict:
    """The verdict where K adapts, which turns drafting off by itself where it does not pay.

    Args:
        setup: what the engine speculates with.
        known: what is known of K.
        running: requests in the batch.
        window: figures of the time in question.
    """
    if running and setup.tokens_at(running) == 0:
        return Verdict("off", _off_at(setup, running))
    counts = window.counts
    if not counts.generated:
        return Verdict("idle", "idle: nothing was generated")
    if not known.tokens:
        reason = known.reason or "no larger K has been found to pay"
        return Verdict("off", f"off for now, K adapts: {reason}")
    if not counts.drafts:
        return Verdict("no_drafts", f"no drafts: {_why_none(setup)}")
    gain = known.gain or _estimate(setup, counts)
    seen = f"{counts.mean_length:.1f} tokens per step, K adapts and is {known.tokens}"
    seen += f", about {gain:.1f} times as fast as at K = 0"
    if gain >= WORTH:
        return Verdict("paying", f"{seen}: paying off", is_estimate=True)
    return Verdict("not_paying", f"{seen}: hardly worth it", is_estimate=True)


def _estimate(setup: Setup, counts: Acceptance) -> float:
    """How many times as fast as at K = 0 drafting is where nothing but its cost slows it."""
    return theory.speedup(counts.mean_length, counts.drafted / counts.drafts, setup.cost)


def _off(setup: Setup, tokens: int, running: int) -> str | None:
    """Why nothing is drafted by decision; None where something is."""
    if setup.method is None:
        return f"off: {setup.fallback or 'no speculation is set'}"
    if tokens == 0:
        return f"off: K is set to 0{f', but {setup.at_zero}' if setup.at_zero else ''}"
    if running and setup.tokens_at(running) == 0:
        return _off_at(setup, running)
    return None


def _off_at(setup: Setup, running: int) -> str:
    limit = setup.disable_by_batch_size
    return f"off above batch {limit}" if limit else f"off at batch {running}"


def _why_none(setup: Setup) -> str:
    if setup.cost == 0:
        reason = "nothing matched"
    else:
        reason = "the requests are too short, or beyond the draft's window"
    limit = setup.disable_by_batch_size
    return f"{reason}, or the batch was above {limit}" if limit else reason


def speedup(finished: Iterable[Finished], tokens: int) -> float | None:
    """How many times as fast requests were with K = `tokens` as with K = 0.

    The median of TPOT at K = 0 over that at K, of batches of about the same size (within a
    factor of two), of the size most often seen at K. None where either has been too seldom.
    """
    without: dict[int, list[float]] = {}
    with_drafts: dict[int, list[float]] = {}
    for request in finished:
        if request.tpot is None or request.tokens < ENOUGH_TOKENS:
            continue
        if request.k == 0:
            without.setdefault(request.running.bit_length(), []).append(request.tpot)
        elif request.k == tokens and request.drafted:
            with_drafts.setdefault(request.running.bit_length(), []).append(request.tpot)
    sizes = [
        size
        for size in without.keys() & with_drafts.keys()
        if min(len(without[size]), len(with_drafts[size])) >= ENOUGH_REQUESTS
    ]
    if not sizes:
        return None
    size = max(sizes, key=lambda size: len(with_drafts[size]))
    return median(without[size]) / median(with_drafts[size])
