"""A predicted text as a draft: follow it through an answer, and find it again after an edit. Pure.

The answer is expected to be the prediction with edits in it. An edit that replaced some tokens
is expected again wherever these stand, as where an identifier is renamed, until it is refuted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

#: The longest run of tokens that is looked for after an edit, and that one may replace.
LONGEST = 8
#: How far from where the answer left the prediction a run of 1, 2, 3 tokens may be found.
REACH = {1: 8, 2: 48, 3: 192}
#: A run that may be anywhere.
ANYWHERE = 4
#: Drafted tokens for each token that has agreed since the prediction was found again.
TRUST = 4
#: Tokens that must agree for the prediction to be trusted again.
SURE = 4


@dataclass
class _Edit:
    """A place where the answer leaves the prediction: in the one, and in the other."""

    predicted: int
    answered: int


class Follower:
    """Where in its prediction an answer is.

    Args:
        prediction: the tokens that are expected.
    """

    def __init__(self, prediction: Sequence[int]) -> None:
        self._prediction = list(prediction)
        self._answer: list[int] = []
        self._seen = bytearray(len(self._prediction))
        #: The next predicted token; while lost, the one at which the answer went its own way.
        self._at = 0
        #: What is left of an edit that is expected again, and where that began.
        self._rest: list[int] = []
        self._applied: _Edit | None = None
        self._lost: _Edit | None = None
        #: Tokens in a row that have agreed; at the start the prediction is trusted.
        self._run = LONGEST * TRUST
        self._failures = 0
        #: Edits that are expected again: by the first token that one replaces, all of them.
        self._edits: dict[int, dict[tuple[int, ...], tuple[int, ...]]] = {}

    @property
    def appeared(self) -> int:
        """How many of the predicted tokens have appeared in the answer, in their places."""
        return sum(self._seen)

    @property
    def answered(self) -> int:
        """Tokens of the answer so far."""
        return len(self._answer)

    def advance(self, tokens: Sequence[int]) -> None:
        """Take the next tokens of the answer."""
        for token in tokens:
            self._answer.append(token)
            if self._lost is None:
                self._follow(token)
            else:
                self._find()

    def draft(self, most: int) -> list[int]:
        """The next tokens that are expected, at most so many; none while lost."""
        if self._lost is not None:
            return self._guess(min(most, TRUST))
        most = min(most, self._run * TRUST)
        drafted = self._rest[:most]
        at = self._at
        while len(drafted) < most and at < len(self._prediction):
            if old := self._edit_at(at):
                drafted += self._edits[old[0]][old]
                at += len(old)
            else:
                drafted.append(self._prediction[at])
                at += 1
        return drafted[:most]

    def _follow(self, token: int) -> None:
        """Go on by one token, or notice that the answer goes its own way."""
        if not self._rest and (old := self._edit_at(self._at)):
            self._applied = _Edit(self._at, len(self._answer) - 1)
            self._rest = [*self._edits[old[0]][old]]
            self._at += len(old)
        if self._rest:
            if token == self._rest.pop(0):
                self._agree()
                return
            self._refute()
            return
        self._applied = None
        if self._at < len(self._prediction) and token == self._prediction[self._at]:
            self._seen[self._at] = 1
            self._at += 1
            self._agree()
            return
        self._leave(self._at, len(self._answer) - 1)

    def _agree(self) -> None:
        self._run += 1
        if self._run >= SURE:
            self._failures = 0

    def _refute(self) -> None:
        """Take back an edit that was expected again and did not come."""
        assert self._applied is not None
        began, self._rest, self._applied = self._applied, [], None
        if old := self._edit_at(began.predicted):
            del self._edits[old[0]][old]
        since = self._answer[began.answered :]
        if since == self._prediction[began.predicted :][: len(since)]:
            self._arrive(began.predicted + len(since), len(since))
        else:
            self._leave(began.predicted, began.answered)

    def _leave(self, predicted: int, answered: int) -> None:
        """Note that the answer left the prediction, and look for it at once."""
        if self._run < SURE:
            self._failures += 1
        self._lost = _Edit(predicted, answered)
        self._at = predicted
        self._find()

    def _find(self) -> None:
        """Look for what the answer ends in, the longest run and the nearest place first."""
        if found := self._end_anywhere():
            self._arrive(*found)
            return
        for length in range(min(ANYWHERE - 1, len(self._answer)), self._failures, -1):
            if (end := self._end_near(length)) is not None:
                self._arrive(end, length)
                return

    def _end_near(self, length: int) -> int | None:
        """Where the run of so many tokens ends that is nearest to where the answer left."""
        run, reach = self._answer[-length:], REACH[length]
        low = self._at - reach if length > 1 else self._at
        found = None
        for place in range(max(0, low), min(len(self._prediction) - length, self._at + reach) + 1):
            if self._prediction[place : place + length] == run:
                if place >= self._at:
                    return place + length
                found = place + length
        return found

    def _end_anywhere(self) -> tuple[int, int] | None:
        """Where the longest run ends that the answer ends in, and its length; None for none."""
        ends = self._ends.get(tuple(self._answer[-ANYWHERE:]), ())
        best = max(ends, key=lambda end: (self._agreeing(end), -abs(end - self._at)), default=None)
        return None if best is None else (best, self._agreeing(best))

    @cached_property
    def _ends(self) -> dict[tuple[int, ...], list[int]]:
        """Where every run of ANYWHERE tokens ends."""
        ends: dict[tuple[int, ...], list[int]] = {}
        for end in range(ANYWHERE, len(self._prediction) + 1):
            ends.setdefault(tuple(self._prediction[end - ANYWHERE : end]), []).append(end)
        return ends

    def _agreeing(self, end: int) -> int:
        """Tokens before a place in the prediction that the answer ends in, up to LONGEST."""
        most = min(LONGEST, end, len(self._answer))
        differing = (
            n for n in range(most) if self._prediction[end - 1 - n] != self._answer[-1 - n]
        )
        return next(differing, most)

    def _arrive(self, at: int, length: int) -> None:
        """Follow the prediction again from `at`, the `length` tokens before which agree."""
        left, self._lost = self._lost, None
        self._seen[at - length : at] = b"\x01" * length
        self._at, self._run = at, length
        if left is None:
            return
        old = self._prediction[left.predicted : at - length]
        new = self._answer[left.answered : len(self._answer) - length]
        if not old or not new:  # put in or left out: before the token that comes next
            old, new = ([*part, self._prediction[at - length]] for part in (old, new))
        if old != new and max(len(old), len(new)) <= LONGEST:
            self._edits.setdefault(old[0], {})[tuple(old)] = tuple(new)

    def _edit_at(self, at: int) -> tuple[int, ...] | None:
        """The edit that is expected at a place, by the tokens that it replaces: the longest."""
        if at >= len(self._prediction) or not (edits := self._edits.get(self._prediction[at])):
            return None
        fitting = (old for old in edits if [*old] == self._prediction[at : at + len(old)])
        return max(fitting, key=len, default=None)

    def _guess(self, most: int) -> list[int]:
        """Right after the answer left: what follows if one token replaced another."""
        lost = self._lost
        if lost is None or len(self._answer) != lost.answered + 1 or self._failures:
            return []
        return self._prediction[lost.predicted + 1 :][:most]
