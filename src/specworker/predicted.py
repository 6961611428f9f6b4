"""A request's prediction, and how much of it came true: what OpenAI's usage says of it."""

import json
from collections.abc import Callable, Sequence
from contextvars import ContextVar

from specworker.following import Follower

DETAILS = "completion_tokens_details"
#: What only those events of a stream hold that tell usage.
CARRIERS = (b'"usage":{',)


class Predicted:
    """A prediction, and the choices of the answer to its request.

    A token counts as accepted where it has appeared in the answer, in its place, whatever
    drafted it; as rejected where it has not, so far. Of several choices each has all of them.
    """

    def __init__(self, prediction: Sequence[int]) -> None:
        self._prediction = prediction
        self._choices: dict[int, tuple[Follower, Callable[[], Sequence[int]]]] = {}

    def watch(self, choice: int, written: Callable[[], Sequence[int]]) -> None:
        """Have `written` asked for the tokens of a choice so far."""
        self._choices[choice] = (Follower(self._prediction), written)

    def details(self, choice: int | None = None, tokens: int | None = None) -> dict[str, int]:
        """The figures of one choice, up to so many of its tokens; or of all that is written."""
        accepted, rejected = 0, 0
        for index, (follower, written) in self._choices.items():
            if choice in (None, index):
                follower.advance(written()[follower.answered : tokens])
                accepted += follower.appeared
                rejected += len(self._prediction) - follower.appeared
        return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}

    def told(self, body: bytes) -> bytes:
        """An answer, or the data of an event, with the figures in its usage, if it has usage."""
        try:
            answer = json.loads(body)
        except ValueError:
            return body
        usage = answer.get("usage") if isinstance(answer, dict) else None
        if not isinstance(usage, dict):
            return body
        (choice, *_) = answer.get("choices") or [{}]
        if "delta" in choice:  # the usage is that of this choice, up to this event
            figures = self.details(choice["index"], usage["completion_tokens"])
        else:
            figures = self.details()
        usage[DETAILS] = {**(usage.get(DETAILS) or {}), **figures}
        return json.dumps(answer, separators=(",", ":")).encode()


#: That of the request which is being answered, for where vLLM takes up its choices.
current: ContextVar[Predicted | None] = ContextVar("predicted", default=None)
