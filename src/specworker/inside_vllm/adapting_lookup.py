"""Drafts of a lookup that pay, at work in a scheduler that holds them as tokens."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from specworker.adaptive_lookup import AdaptiveLookup
from specworker.inside_vllm.change_log import ChangeLog
from specworker.terms import agreeing


class AdaptingLookup:
    """Leaves each request the drafts that pay, and tells the controller what became of all.

    The lookup is asked for the most drafts in every step, since what it found is worth knowing
    though nothing of it be verified.

    Args:
        most: the most drafts of a request in a step.
        largest_batch: the most requests in a step.
        choices: the K that the state tells of.
    """

    def __init__(
        self,
        most: int,
        largest_batch: int,
        *,
        choices: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most = most
        self._controller = AdaptiveLookup(
            most,
            largest_batch,
            choices=[k for k in choices if k < most] + [most],
            clock=clock,
            on_change=ChangeLog(clock),
        )
        self._offered: dict[str, list[int]] = {}  # what was found for the step being made
        self._runs: dict[str, int] = {}  # drafted tokens in a row that were right

    def choose(self, _batch: int, useful: int) -> int:
        """K for the lookup after the step that is made now; more than `useful` is wasted."""
        return min(self.most, useful)

    def settle(self, running: Sequence[Any], others: Collection[str]) -> None:
        """Leave each request the drafts that pay in the step that is about to be made.

        Args:
            running: the requests that may be in it, as vLLM's scheduler has them.
            others: those, by their ids, whose drafts are no lookup's.
        """
        found = [one for one in running if one.spec_token_ids and one.request_id not in others]
        drafts = sum(len(one.spec_token_ids) for one in running)
        lengths = [min(len(one.spec_token_ids), _useful(one)) for one in found]
        runs = [self._runs.get(one.request_id, 0) for one in found]
        taken = drafts - sum(len(one.spec_token_ids) for one in found)
        given = self._controller.allot(len(running), runs, lengths, taken)
        for request, count in zip(found, given, strict=True):
            self._offered[request.request_id] = request.spec_token_ids
            request.spec_token_ids = request.spec_token_ids[:count]

    def made(self, output: Any, _own: Mapping[str, Any], _asked: int) -> None:
        """Take a step as vLLM's scheduler made it."""
        scheduled, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
        for name in output.finished_req_ids:
            self._offered.pop(name, None)
            self._runs.pop(name, None)
        if all(count == 1 + len(drafts.get(name, ())) for name, count in scheduled.items()):
            self._controller.verifies(len(scheduled), sum(map(len, drafts.values())))

    def landed(
        self, output: Any, sampled: Sequence[Sequence[int]], rows: Mapping[str, int]
    ) -> None:
        """Take a step's tokens, those of each request at its row."""
        gained = 0
        for name in output.num_scheduled_tokens:
            offered = self._offered.pop(name, None)
            came = sampled[rows[name]] if name in rows and sampled else ()
            gained += len(came)
            if offered is None:
                self._runs.pop(name, None)
            elif came:
                run, right = self._runs.get(name, 0), agreeing(offered, came)
                ends = right < min(len(offered), len(came))
                self._controller.observe(run, right, ends=ends)
                self._runs[name] = 0 if ends else run + right
        self._controller.gained(gained)

    def rest(self) -> None:
        """Say that nothing runs any more."""
        self._controller.rest()

    def resume(self) -> None:
        """Say that the steps since the last one were not told of."""
        self._controller.rest()
        self._offered.clear()
        self._runs.clear()

    def state(self) -> dict[str, Any]:
        """What the controller knows, in types that pass between processes."""
        return self._controller.state().tell()


def _useful(request: Any) -> int:
    """The most drafts of the next step that a request can use before its last token."""
    return max(0, int(request.max_tokens) - int(request.num_output_tokens) - 1)
