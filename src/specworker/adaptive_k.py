"""K, the tokens drafted a step, chosen step by step for the best measured goodput. Pure.

Goodput is tokens a second: for a batch, what asking for K tokens yields (`draft_yield`) over
what such a step takes (`step_times`). What is not known is tried out of a budget of time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specworker.adaptation import Adaptation
from specworker.draft_yield import DraftYield
from specworker.k_trial import RASH, USUAL, Situation, Trial
from specworker.outlook import Outlook
from specworker.step_times import StepTimes, bucket, usual_choices
from specworker.trial_budget import Budget, CatchingUp

#: Share of the time that trying another K may lose, and steps' time it may lose at once; half
#: of it is added for every size of the batch that is new.
BUDGET, ALLOWANCE = 0.008, 8.0
#: Steps' time of it that is left for new requests, and for a K whose time is not known.
RESERVE = 2.0
#: Steps between two decisions, between two trials at least, and for which a K stays.
EVERY, GAP, STAY = 4, 8, 12
#: Steps after which an observed draft of a single request counts half.
HALF_LIFE = 64.0
#: By how much another K must be better, the larger and the smaller.
LARGER, SMALLER = 0.03, 0.02
#: Steps in which what a draft must read before it drafts again has to be made up for.
AHEAD = 100


@dataclass
class _Step:
    began: float
    batch: int
    choice: int
    unread: int = 0
    drafted: int | None = None


class AdaptiveK:
    """Chooses K for one engine, whose steps it is told of in their order.

    Args:
        most: the largest K.
        limit_by_batch: the largest K by the number of requests in a step, that of none first;
            None where it does not depend on it.
        choices: the K to choose from; a few that grow by about a third each where not given.
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
        self._settle = settle
        self._clock, self._on_change = clock, on_change
        self._yield = DraftYield(max(most, 1), HALF_LIFE)
        self._times = StepTimes(len(self._choices))
        self._step: _Step | None = None
        self._steps = self._alike = self._since = self._current = 0
        self._trial: Trial | None = None
        self._trial_ended = GAP
        self._size = 0  # the bucket of the last batch
        self._renewed = False
        self._budget = Budget(BUDGET, ALLOWANCE)
        self._catching_up = CatchingUp()
        self._resumed: tuple[_Step, float] | None = None  # the last to catch up, and its seconds
        self._changes, self._reason = 0, ""

    def choose(self, batch: int, unread: int = 0, useful: int | None = None) -> int:
        """K for the step that begins now; ends the step before it.

        Args:
            batch: requests in it.
            unread: their tokens that the draft has yet to read before it drafts again.
            useful: the most drafts that any of them can take before its last token; None where
                that is not known.
        """
        now = self._clock()
        if last := self._step:
            self._measure(last, now - last.began)
        self._steps += 1
        self._yield.age(max(batch, 1))
        allowed = self._allowed(batch)
        choice = self._chosen(batch, allowed, unread)
        if useful is not None:
            choice = min(choice, self._largest(useful))
        same = last and (last.choice, bucket(last.batch)) == (choice, bucket(batch))
        self._alike = self._alike + 1 if same else 0
        self._step = _Step(now, batch, choice, unread)
        return self._choices[choice]

    def verifies(self, drafted: int) -> None:
        """Say of the step that runs that it only decodes, and how many drafts it verifies.

        The time of a step of which this is not said does not count.
        """
        if self._step is not None:
            self._step.drafted = drafted

    def renew(self, share: float) -> None:
        """Say that a share of the requests is new, whose text may be of another kind."""
        self._yield.forget(share)
        self._renewed = True

    def rest(self) -> None:
        """Say that no step follows the one that has ended: the time until the next is none's."""
        self._step = None

    def observe_drafts(self, asked: int, accepted: Sequence[int]) -> None:
        """Take the figures of a step: of each request, the drafts that were accepted.

        `asked` is K of the step that made them. Requests with a K or a draft of their own
        are left out.
        """
        if asked and accepted:
            self._yield.add(asked, accepted)
            if self._trial and asked == self._choices[self._trial.choice]:
                self._trial.tokens.append(1 + sum(accepted) / len(accepted))

    def state(self) -> Adaptation:
        """What is known now."""
        batch = self._step.batch if self._step else 0
        curve = self._times.curve(batch)
        outlook = Outlook.of(self._choices, curve, self._yield.accepted())
        return Adaptation(
            self._choices[-1],
            self._choices[self._current],
            batch,
            dict(zip(self._choices, outlook.tokens, strict=True)),
            dict(zip(self._choices, outlook.seconds, strict=bool(curve))),
            self._changes,
            self._budget.lost,
            self._reason,
            outlook.gain(self._current, 0) if curve else None,
        )

    def _allowed(self, batch: int) -> int:
        """The index of the largest K that a batch allows."""
        if self._limits is None:
            return len(self._choices) - 1
        return self._largest(self._limits[min(batch, len(self._limits) - 1)])

    def _largest(self, limit: int) -> int:
        """The index of the largest K up to a limit."""
        return max(i for i, k in enumerate(self._choices) if k <= limit)

    def _measure(self, step: _Step, seconds: float) -> None:
        """Take the time of a step that has ended."""
        if step.drafted is None:
            return
        choice = step.choice
        if self._alike < self._settle or step.drafted != step.batch * self._choices[choice]:
            if choice and step.unread:
                self._resumed = step, seconds
            return
        if not self._times.has_seen(step.batch):
            self._budget.grant()
        self._times.add(step.batch, choice, seconds, self._steps)
        if self._trial and choice == self._trial.choice:
            self._trial.seconds.append(seconds)
        if self._resumed and self._resumed[0].choice == choice:
            self._take_catching_up(*self._resumed)
        self._resumed = None

    def _take_catching_up(self, step: _Step, seconds: float) -> None:
        """Take what the first step with drafts after a rest took longer than the next ones."""
        curve = self._times.curve(step.batch)
        more = max(0.0, seconds - curve[step.choice])
        self._catching_up.add(more, step.unread)
        if self._trial and self._trial.choice == step.choice:
            self._budget.pay(more, curve[self._current])

    def _chosen(self, batch: int, allowed: int, unread: int) -> int:
        """The index of the K of the next step."""
        current = min(self._current, allowed)
        is_other, self._size = self._size != bucket(batch), bucket(batch)
        is_due = self._trial or self._renewed or is_other or self._steps % EVERY == 0
        if not is_due or not (curve := self._times.curve(batch)):
            return current
        outlook = Outlook.of(self._choices, curve, self._yield.accepted())
        situation = Situation(self._times, batch, self._steps, current, outlook)
        self._account(situation)
        if trial := self._trial:
            may = trial.choice <= allowed and not is_other
            if may and self._goes_on(trial, situation):
                return trial.choice
            self._trial, self._trial_ended, self._since = None, self._steps, self._steps - STAY
        if is_other:  # K was chosen for another size
            self._since = self._steps - STAY
        if self._steps - self._since >= STAY:
            situation = self._better(situation, allowed, unread)
        if self._steps - self._trial_ended >= GAP:
            self._try_another(situation, allowed, unread)
            self._renewed = False
        return self._trial.choice if self._trial else situation.current

    def _account(self, situation: Situation) -> None:
        """Earn, of a step, time to try with, and pay for a step that was a trial."""
        if self._steps % EVERY == 0:
            self._budget.earn(EVERY, situation.usual)
        if self._trial:
            self._budget.pay(situation.loses(self._trial.choice), situation.usual)

    def _goes_on(self, trial: Trial, situation: Situation) -> bool:
        """Whether a trial is not over, nor dearer than its tokens can be worth."""
        tried, current, outlook = trial.choice, situation.current, situation.outlook
        if self._steps >= trial.ends:
            wins = situation.is_known(tried) and outlook.gain(tried, current) >= 1 + LARGER
            if trial.is_long or wins:
                return False
            seen = trial.goodput(outlook.seconds[tried])
            return seen > (1 + LARGER) * outlook.goodput(current)
        lost = trial.takes() - outlook.tokens[tried] / outlook.goodput(current)
        return lost <= RASH * situation.usual

    def _better(self, situation: Situation, allowed: int, unread: int) -> Situation:
        """The K to stay with from now on: another where it is better by more than a little."""
        current, outlook = situation.current, situation.outlook
        known = [i for i in range(allowed + 1) if i == current or situation.is_known(i)]
        best = max(known, key=outlook.goodput)
        gain = outlook.gain(best, current)
        if best == current or gain < 1 + (LARGER if best > current else SMALLER):
            return situation
        if self._catching_up.cost(unread) > AHEAD * (gain - 1) * situation.usual:
            return situation
        self._reason = outlook.change(self._choices, current, best, situation.batch)
        self._current, self._since = best, self._steps
        self._changes += 1
        if self._on_change is not None:
            self._on_change(self._reason)
        return replace(situation, current=best)

    def _try_another(self, situation: Situation, allowed: int, unread: int) -> None:
        """Begin a trial of the K that is worth it most, if what it may lose was earned."""
        hoped = Outlook.of(self._choices, (), self._yield.accepted_at_best()).tokens
        proposal = situation.proposal(hoped, allowed, self._catching_up.cost(unread))
        if proposal is None:
            return
        reserve = RESERVE if proposal.is_known and not self._renewed else 0.0
        if self._budget.affords(proposal.lost, situation.usual, reserve):
            self._trial = Trial(proposal.choice, self._steps + USUAL)
