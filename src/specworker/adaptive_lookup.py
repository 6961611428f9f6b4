"""Drafts that a lookup found, of which each request gets as many as pay, step by step. Pure.

What a lookup found is there before a step and costs nothing until it is verified. Its first
tokens are taken, of all requests the likeliest first, as long as they are worth the time that they
take: goodput (arXiv 2406.14066), where a second is worth the tokens that it brought lately. How
likely each is shows in every request, whether its drafts are verified or not (`match_odds`).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specworker.adaptation import Adaptation
from specworker.match_odds import MatchOdds
from specworker.step_times import bucket, usual_choices
from specworker.trial_budget import Budget
from specworker.verify_times import Curve, VerifyTimes

Figures = NDArray[np.float64]

#: Steps after which a drafted token of a single request counts half, and after which the tokens
#: and the seconds of a step do.
HALF_LIFE, RATE_HALF_LIFE = 96.0, 64.0
#: Share of the time that steps may lose whose time is not well known, and steps' time at once.
BUDGET, ALLOWANCE = 0.008, 8.0
#: By how many of its tokens a step must promise to be better to be taken for its time's sake.
PROMISING = 0.02
#: Steps' time that such a step is taken to lose at most until its time was measured a
#: few times.
RASH = 3.0
#: Steps for which what is known well stands, and after which K is told anew: the most drafts
#: that a request was given in them.
EVERY, REVIEW = 4, 32


@dataclass
class _Step:
    began: float
    batch: int
    usual: float = 0.0
    drafted: int | None = None
    tokens: int = 0


@dataclass(frozen=True)
class _Known:
    """What is known of steps of about the same size.

    Attributes:
        step: when that was.
        size: the bucket of their sizes.
        chances: those of drafts, as `MatchOdds` has them.
        curve: what they take.
    """

    step: int
    size: int
    chances: Figures
    curve: Curve


class _Rate:
    """Tokens a second, lately."""

    def __init__(self) -> None:
        self.tokens = self.seconds = self.requests = 0.0

    def add(self, step: _Step, seconds: float) -> None:
        left = 2.0 ** (-1 / RATE_HALF_LIFE)
        self.tokens = self.tokens * left + step.tokens
        self.seconds = self.seconds * left + seconds
        self.requests = self.requests * left + step.batch


class AdaptiveLookup:
    """Allots drafts in one engine, whose steps it is told of in their order.

    Args:
        most: the most drafts of a request in a step.
        largest_batch: the most requests in a step.
        choices: the K that its state tells of.
        clock: seconds, from any point on.
        on_change: is told in words when K has changed.
    """

    def __init__(
        self,
        most: int,
        largest_batch: int,
        *,
        choices: Sequence[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[str], None] | None = None,
    ) -> None:
        self._most = most
        self._choices = tuple(choices if choices is not None else usual_choices(most))
        self._times = VerifyTimes(most, largest_batch)
        self._odds = MatchOdds(HALF_LIFE)
        self._rates: dict[int, _Rate] = {}
        self._budget = Budget(BUDGET, ALLOWANCE)
        self._clock, self._on_change = clock, on_change
        self._step: _Step | None = None
        self._known: _Known | None = None
        self._steps = self._aged = self._peak = self._tokens = self._changes = 0
        self._reason = ""
        #: Of one request, by its K: drafts that are there, and those of them that are right.
        self._offered, self._right = np.zeros(most + 1), np.zeros(most + 1)
        self._noted = 0.0  # the share of these that is known
        self._batch = 1

    def allot(
        self, batch: int, runs: Sequence[int], lengths: Sequence[int], taken: int = 0
    ) -> list[int]:
        """How many drafts each request is to have verified in the step that begins now.

        Args:
            batch: requests in the step.
            runs: of those that have drafts, how many drafted tokens in a row were right.
            lengths: how many drafts there are of each.
            taken: drafts besides these that the step verifies.
        """
        now = self._clock()
        if self._step:
            self._measure(self._step, now - self._step.began)
        self._step = _Step(now, batch)
        self._batch = batch or self._batch
        self._steps += 1
        known = self._known
        if known is None or known.size != bucket(batch) or self._steps - known.step >= EVERY:
            known = self._known = self._learned(batch)
        by_request = known.chances[np.minimum(np.asarray(runs, int), len(known.chances) - 1)]
        there = np.arange(self._most) < np.asarray(lengths, int)[:, None]
        rows, _ = places = np.nonzero(there)
        chance = by_request[places]
        likeliest = np.argsort(-chance, kind="stable")  # of a request the first ones first
        count = self._count(known, self._step, chance[likeliest], taken)
        given: list[int] = np.bincount(rows[likeliest[:count]], minlength=len(lengths)).tolist()
        self._note(batch, there, there * by_request, given)
        return given

    def verifies(self, batch: int, drafted: int) -> None:
        """Say of the step that runs that it only decodes, and how many drafts it verifies.

        The time of a step of which this is not said does not count.
        """
        if self._step is not None:
            self._step.batch, self._step.drafted = batch, drafted

    def observe(self, run: int, right: int, *, ends: bool) -> None:
        """Take what became of a request's drafts, as `MatchOdds.add` does."""
        self._odds.add(run, right, ends=ends)

    def gained(self, tokens: int) -> None:
        """Say how many tokens the step that ran has brought."""
        if self._step is not None:
            self._step.tokens = tokens

    def rest(self) -> None:
        """Say that no step follows the one that has ended: the time until the next is none's."""
        self._step = None

    def state(self) -> Adaptation:
        """What is known now; the figures by K are those of requests that all have the same."""
        batch, curve = self._batch, self._times.curve(self._batch, self._steps)
        offered, right = (kept / (self._noted or 1.0) for kept in (self._offered, self._right))
        return Adaptation(
            self._most,
            self._tokens,
            self._step.batch if self._step else 0,
            {k: 1 + float(right[k]) for k in self._choices},
            {k: float(curve.seconds(batch * offered[k])) for k in self._choices if curve.usual},
            self._changes,
            self._budget.lost,
            self._reason,
            self._gain(batch, curve),
        )

    def _measure(self, step: _Step, seconds: float) -> None:
        """Take the time of a step that has ended."""
        if step.drafted is None:
            return
        if not self._times.has_seen(step.batch):
            self._budget.grant()
        self._times.add(step.batch, step.drafted, seconds, self._steps)
        if not self._times.is_settled(step.batch, step.drafted):
            self._known = None
        self._rates.setdefault(bucket(step.batch), _Rate()).add(step, seconds)
        self._budget.earn(1, step.usual or seconds)

    def _learned(self, batch: int) -> _Known:
        """What is known now of steps of about this size."""
        self._odds.age(batch, self._steps - self._aged)
        self._aged = self._steps
        chances, curve = self._odds.chances(self._most), self._times.curve(batch, self._steps)
        return _Known(self._steps, bucket(batch), chances, curve)

    def _count(self, known: _Known, step: _Step, likeliest: Figures, taken: int) -> int:
        """How many of the likeliest drafts a step verifies."""
        curve = known.curve
        likeliest = likeliest[: max(0, curve.reach - taken)]
        if not curve.usual or not len(likeliest):
            return 0
        drafts = taken + np.arange(len(likeliest) + 1, dtype=np.float64)
        tokens = step.batch + np.concatenate(([0.0], likeliest.cumsum()))
        seconds = curve.seconds(drafts)
        rate = self._rates.get(known.size)
        second = rate.tokens / rate.seconds if rate else float((tokens / seconds).max())
        worth, hoped = tokens - second * seconds, tokens - second * curve.seconds_at_best(drafts)
        best, other = int(worth.argmax()), int(hoped.argmax())
        step.usual = float(seconds[best])
        if hoped[other] - worth[best] <= PROMISING * tokens[best]:
            return best
        lost = float(worth[best] - worth[other]) / second
        if not self._times.is_sure(step.batch, int(drafts[other])):
            lost = min(lost, RASH * step.usual)
        if not self._budget.affords(lost, step.usual):
            return best
        self._budget.pay(lost, step.usual)
        return other

    def _note(
        self, batch: int, offered: NDArray[np.bool_], right: Figures, given: Sequence[int]
    ) -> None:
        """Keep what the drafts of a step promised, now and then, and tell K anew."""
        self._peak = max(self._peak, max(given, default=0))
        if self._steps % EVERY or not batch:
            return
        left = 2.0 ** (-EVERY / REVIEW)
        for kept, of_step in ((self._offered, offered), (self._right, right)):
            kept *= left
            kept[1:] += (1 - left) * of_step.sum(axis=0).cumsum() / batch
        self._noted = self._noted * left + (1 - left)
        if self._steps % REVIEW:
            return
        old, new, self._peak = self._tokens, self._peak, 0
        if new > old or new < old / 2:
            self._tokens, self._changes = new, self._changes + 1
            self._reason = self._change(batch, old, new)
            if self._on_change is not None:
                self._on_change(self._reason)

    def _change(self, batch: int, old: int, new: int) -> str:
        """Why K is another, in words."""
        at = f"tokens per step at batch {batch}"
        if not new:
            return f"K {old} → 0: {1 + self._right[old] / self._noted:.1f} {at} does not pay"
        change = f"K {old} → {new}"
        if (rate := self._rates.get(bucket(batch))) is None:
            return f"{change} at batch {batch}"
        gain = self._gain(batch, self._times.curve(batch, self._steps))
        return f"{change}: {rate.tokens / rate.requests:.1f} {at}, {gain:.2f} times as fast as at 0"

    def _gain(self, batch: int, curve: Curve) -> float | None:
        """How many times as fast as without drafts it is; None while unknown."""
        rate = self._rates.get(bucket(batch))
        if rate is None or not curve.usual:
            return None
        return rate.tokens / rate.seconds * curve.usual[0] / batch
