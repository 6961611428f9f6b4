"""K, the tokens drafted a step, chosen step by step for the best measured goodput. Pure.

Goodput is tokens a second: for a batch, what asking for K tokens yields (`draft_yield`) over
what such a step takes (`step_times`). What is not known is tried out of a budget of time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specworker.draft_yield import DraftYield, Shares
from specworker.step_times import TWICE, StepTimes, bucket, usual_choices

#: Share of the time that trying another K may lose, and steps' time it may lose at once.
BUDGET, ALLOWANCE = 0.008, 12.0
#: Steps between two decisions, that a K is tried for, and between two trials at least.
EVERY, TRIAL, GAP = 4, 4, 8
#: Steps of a K that must have been measured before it is taken, and for which it stays then.
ENOUGH, STAY = 3, 12
#: Steps after which an observed draft of a single request counts half.
HALF_LIFE = 48.0
#: By how much another K must be better, the larger and the smaller.
LARGER, SMALLER = 0.03, 0.02
#: Steps' time that a step of a K is taken to lose at most until it has been measured twice, since
#: any one may have been held up; a trial that loses more is broken off after that.
RASH = 3.0


@dataclass(frozen=True)
class State:
    """What a controller knows, for a reader.

    Attributes:
        tokens: K as it is.
        batch: requests in the last step.
        yields: tokens that a request is expected to gain in a step, by K.
        seconds: what a step of such a batch is expected to take, by K; empty while unknown.
        changes: how often K has changed, trials aside.
        trials: share of the measured time that trying other K lost.
        reason: the last change in words; empty before the first.
    """

    tokens: int
    batch: int
    yields: dict[int, float]
    seconds: dict[int, float]
    changes: int
    trials: float
    reason: str


@dataclass
class _Step:
    began: float
    batch: int
    choice: int
    drafted: int | None = None


@dataclass(frozen=True)
class _Outlook:
    """Tokens that a request gains in a step, and seconds that it takes, by choice."""

    tokens: Sequence[float]
    seconds: Sequence[float]

    def goodput(self, choice: int) -> float:
        return self.tokens[choice] / self.seconds[choice]

    def lost(self, choice: int, current: int) -> float:
        """Seconds that a step of a choice takes longer than its tokens otherwise would."""
        return max(0.0, self.seconds[choice] - self.tokens[choice] / self.goodput(current))


class AdaptiveK:
    """Chooses K for one engine, whose steps it is told of in their order.

    Args:
        most: the largest K.
        limit_by_batch: the largest K by the number of requests in a step, that of none first;
            None where it does not depend on it.
        choices: the K to choose from; a few that grow by about a third each where not given.
        lookup: whether a draft that is not made costs nothing. A step's time then depends on
            the drafts that it verifies, otherwise on K.
        settle: steps after a change of K, or of the batch, of which the time tells nothing:
            one that drafts with the new K but verifies drafts of the old; more where steps
            overlap.
        clock: seconds, from any point on.
        on_change: is told every change in words.
    """

    def __init__(
        self,
        most: int,
        limit_by_batch: Sequence[int] | None = None,
        *,
        choices: Sequence[int] | None = None,
        lookup: bool = False,
        settle: int = 1,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[str], None] | None = None,
    ) -> None:
        self._choices = tuple(choices if choices is not None else usual_choices(most))
        if self._choices[:1] != (0,) or sorted({*self._choices}) != [*self._choices]:
            raise ValueError(f"choices={choices}: not 0 and rising numbers after it")
        if self._choices[-1] > most:
            raise ValueError(f"choices={choices}: above the largest K, {most}")
        self._limits = limit_by_batch
        self._lookup, self._settle = lookup, settle
        self._clock, self._on_change = clock, on_change
        self._yield = DraftYield(max(most, 1), HALF_LIFE)
        self._times = StepTimes(len(self._choices))
        self._step: _Step | None = None
        self._steps = self._alike = self._since = self._current = 0
        self._trial: int | None = None
        self._trial_ends = GAP
        self._budget: float | None = None
        self._measured = self._lost = 0.0
        self._changes, self._reason = 0, ""

    def choose(self, batch: int) -> int:
        """K for the step of `batch` requests that begins now; ends the step before it."""
        now = self._clock()
        if last := self._step:
            self._measure(last, now - last.began)
        self._steps += 1
        self._yield.age(max(batch, 1))
        allowed = self._allowed(batch)
        choice = self._chosen(batch, allowed)
        same = last and (last.choice, bucket(last.batch)) == (choice, bucket(batch))
        self._alike = self._alike + 1 if same else 0
        self._step = _Step(now, batch, choice)
        return self._choices[choice]

    def verifies(self, drafted: int) -> None:
        """Say of the step that runs that it only decodes, and how many drafts it verifies.

        The time of a step of which this is not said does not count.
        """
        if self._step is not None:
            self._step.drafted = drafted

    def rest(self) -> None:
        """Say that no step follows the one that has ended: the time until the next is none's."""
        self._step = None

    def observe_drafts(self, asked: int, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Take the figures of a step: of each request, the drafts made and accepted.

        `asked` is K of the step that made them. Requests with a K or a draft of their own
        are left out.
        """
        if asked and drafted:
            self._yield.add(asked, drafted, accepted)

    def state(self) -> State:
        """What is known now."""
        batch = self._step.batch if self._step else 0
        curve = self._times.curve(batch)
        outlook = self._outlook(curve, self._yield.accepted())
        return State(
            self._choices[self._current],
            batch,
            dict(zip(self._choices, outlook.tokens, strict=True)),
            dict(zip(self._choices, outlook.seconds, strict=bool(curve))),
            self._changes,
            self._lost / self._measured if self._measured else 0.0,
            self._reason,
        )

    def _allowed(self, batch: int) -> int:
        """The index of the largest K that a batch allows."""
        if self._limits is None:
            return len(self._choices) - 1
        limit = self._limits[min(batch, len(self._limits) - 1)]
        return max(i for i, k in enumerate(self._choices) if k <= limit)

    def _measure(self, step: _Step, seconds: float) -> None:
        """Take the time of a step that has ended."""
        if step.drafted is None:
            return
        choice = step.choice
        if self._lookup:
            mean = step.drafted / max(step.batch, 1)
            choice = min(range(len(self._choices)), key=lambda i: abs(self._choices[i] - mean))
        elif self._alike < self._settle or step.drafted != step.batch * self._choices[choice]:
            return
        self._times.add(step.batch, choice, seconds, self._steps)
        if self._budget is None:
            self._budget = ALLOWANCE * seconds

    def _outlook(self, curve: Sequence[float], accepted: Shares) -> _Outlook:
        """What a step is expected to be, given the seconds of one whose drafts are all made."""
        gained = [0.0, *accepted.cumsum().tolist()]
        tokens = [1 + gained[k] for k in self._choices]
        if not self._lookup or not curve:
            return _Outlook(tokens, curve)
        made = [0.0, *self._yield.made().cumsum().tolist()]
        seconds = [curve[0]]
        for i in range(1, len(curve)):
            low, high = self._choices[i - 1], self._choices[i]
            share = (made[high] - made[low]) / (high - low)
            seconds.append(seconds[-1] + share * (curve[i] - curve[i - 1]))
        return _Outlook(tokens, seconds)

    def _chosen(self, batch: int, allowed: int) -> int:
        """The index of the K of the next step."""
        current = min(self._current, allowed)
        is_between = self._trial is None and self._steps % EVERY
        if is_between or not (curve := self._times.curve(batch)):
            return current
        outlook = self._outlook(curve, self._yield.accepted())
        self._account(batch, current, outlook)
        if self._trial is not None:
            if self._trial <= allowed and self._goes_on(batch, current, outlook):
                return self._trial
            self._trial, self._trial_ends, self._since = None, self._steps, self._steps - STAY
        if self._steps - self._since >= STAY:
            current = self._better(batch, current, allowed, outlook)
        if self._steps - self._trial_ends >= GAP:
            self._try_another(batch, current, allowed, outlook)
        return current if self._trial is None else self._trial

    def _account(self, batch: int, current: int, outlook: _Outlook) -> None:
        """Earn, of a step, time to try with, and pay for a step that was a trial."""
        if self._budget is None:
            return
        usual = outlook.seconds[current]
        if self._steps % EVERY == 0:
            self._measured += EVERY * usual
            self._budget = min(self._budget + EVERY * BUDGET * usual, ALLOWANCE * usual)
        if self._trial is not None:
            lost = self._loss(batch, self._trial, current, outlook)
            self._lost += lost
            self._budget -= lost

    def _goes_on(self, batch: int, current: int, outlook: _Outlook) -> bool:
        """Whether the trial is not over, nor dearer than what is measured of it can be worth."""
        if self._trial is None or self._steps >= self._trial_ends:
            return False
        lost = self._loss(batch, self._trial, current, outlook)
        return lost <= RASH * outlook.seconds[current]

    def _loss(self, batch: int, other: int, current: int, outlook: _Outlook) -> float:
        """Seconds that a step of another choice is expected to lose."""
        lost = outlook.lost(other, current)
        is_known = self._times.samples(batch, other) >= TWICE
        return lost if is_known else min(lost, RASH * outlook.seconds[current])

    def _better(self, batch: int, current: int, allowed: int, outlook: _Outlook) -> int:
        """The choice to stay with from now on: another where it is better by more than a little."""
        known = [i for i in range(allowed + 1) if i == current or self._is_known(batch, i)]
        best = max(known, key=outlook.goodput)
        gain = outlook.goodput(best) / outlook.goodput(current)
        if best == current or gain < 1 + (LARGER if best > current else SMALLER):
            return current
        old, new = self._choices[current], self._choices[best]
        if new == 0:
            seen = f"{outlook.tokens[current]:.1f} tokens per step at batch {batch} does not pay"
        else:
            seen = f"{outlook.tokens[best]:.1f} tokens per step at batch {batch}"
            seen += f", {gain:.2f} times as fast"
        self._reason = f"K {old} → {new}: {seen}"
        self._current, self._since = best, self._steps
        self._changes += 1
        if self._on_change is not None:
            self._on_change(self._reason)
        return best

    def _is_known(self, batch: int, choice: int) -> bool:
        """Whether the time of a choice has been measured; of lookups, drafts tell it anyway."""
        return self._lookup or self._times.samples(batch, choice) >= ENOUGH

    def _try_another(self, batch: int, current: int, allowed: int, outlook: _Outlook) -> None:
        """Begin a trial of the K that could gain most for what it may lose, if that is earned.

        No K is left out on the way up: a step's time can leap where kernels or graphs change,
        so what was never measured must promise to pay by what is known of its drafts.
        """
        if self._budget is None:
            return
        hoped = self._outlook((), self._yield.accepted_at_best()).tokens
        best: tuple[float, int, float] | None = None
        for other in range(allowed + 1):
            if other == current or (other > current + 1 and not self._is_known(batch, other - 1)):
                continue
            known = self._is_known(batch, other)
            tokens = hoped[other] if known or other < current else outlook.tokens[other]
            doubt = self._times.doubt(batch, other, self._steps)
            seconds = outlook.seconds[other] * (1 - doubt)
            gain = tokens / seconds / outlook.goodput(current) - 1
            if gain <= 0:
                continue
            lost = self._loss(batch, other, current, outlook)
            if best is None or lost / gain < best[0]:
                best = lost / gain, other, lost * TRIAL
        if best and best[2] <= self._budget:
            self._trial, self._trial_ends = best[1], self._steps + TRIAL
