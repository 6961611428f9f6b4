"""A controller of K at work in a scheduler: what it is told of each step, and what it says."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specworker.adaptive_k import AdaptiveK
from specworker.inside_vllm.change_log import ChangeLog

#: Steps whose tokens may still be under way.
UNDER_WAY = 8


@dataclass(frozen=True)
class _Step:
    """A step that was made, the K that its drafts were asked for with, and whose they are."""

    output: Any
    asked: int
    names: tuple[str, ...]


class Adapting:
    """Tells a controller of the steps that a scheduler makes, in their order.

    Args:
        most: the largest K.
        by_batch: the largest K by the number of requests in a step; None for no such limit.
        choices: the K to choose from.
        overlaps: whether a step is made while the one before still runs.
        rests: whether a draft reads nothing while K is 0, and what it missed afterwards.
    """

    def __init__(
        self,
        most: int,
        by_batch: Sequence[int] | None,
        *,
        choices: Sequence[int],
        overlaps: bool,
        rests: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most = most
        self._controller = AdaptiveK(
            most,
            by_batch,
            choices=[k for k in choices if k < most] + [most],
            settle=2 if overlaps else 1,
            clock=clock,
            on_change=ChangeLog(clock),
        )
        self._asked = 0  # of the step made last
        self._rests = rests
        self._unread: dict[str, int] = {}  # tokens that the draft missed, by request
        self._steps: deque[_Step] = deque(maxlen=UNDER_WAY)

    def choose(self, batch: int, useful: int | None = None) -> int:
        """K for a step of `batch` requests, which is made now; more than `useful` is wasted."""
        return self._controller.choose(batch, sum(self._unread.values()), useful)

    def made(self, output: Any, own: Mapping[str, Any], asked: int) -> None:
        """Take a step as vLLM's scheduler made it.

        Args:
            output: vLLM's scheduler output.
            own: the requests, by their ids, that have terms of their own.
            asked: the K that its drafters are told.
        """
        scheduled, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
        decoding = [
            name for name, count in scheduled.items() if count == 1 + len(drafts.get(name, ()))
        ]
        if self._rests:
            self._note_unread(scheduled, output.finished_req_ids, asked)
        if scheduled and len(decoding) == len(scheduled):
            self._controller.verifies(sum(map(len, drafts.values())))
        new = {request.req_id for request in output.scheduled_new_reqs}
        new |= output.scheduled_cached_reqs.resumed_req_ids
        if new:
            self._controller.renew(len(new) / len(scheduled))
        names = tuple(name for name in decoding if name not in new and name not in own)
        self._steps.append(_Step(output, self._asked, names))
        self._asked = asked

    def _note_unread(
        self, scheduled: Mapping[str, int], finished: Iterable[str], asked: int
    ) -> None:
        """Keep what the draft has not read of each request."""
        for name in finished:
            self._unread.pop(name, None)
        for name, count in scheduled.items():
            self._unread[name] = 0 if asked else self._unread.get(name, 0) + count

    def landed(
        self, output: Any, sampled: Sequence[Sequence[int]], rows: Mapping[str, int]
    ) -> None:
        """Take a step's tokens, those of each request at its row."""
        step = next((step for step in self._steps if step.output is output), None)
        if step is None or not sampled:
            return
        self._steps.remove(step)
        drafts = output.scheduled_spec_decode_tokens
        accepted = [
            min(len(tokens) - 1, len(drafts.get(name, ())), step.asked)
            for name in step.names
            if name in rows and (tokens := sampled[rows[name]])
        ]
        self._controller.observe_drafts(step.asked, accepted)

    def rest(self) -> None:
        """Say that nothing runs any more."""
        self._controller.rest()

    def resume(self) -> None:
        """Say that the steps since the last one were not told of."""
        self._controller.rest()
        self._steps.clear()
        self._unread.clear()
        self._asked = 0

    def state(self) -> dict[str, Any]:
        """What the controller knows, in types that pass between processes."""
        return self._controller.state().tell()
