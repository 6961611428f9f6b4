"""A layer of vLLM's application: acceptance figures in the answers that vLLM leaves without.

vLLM tells a request's figures where it is one sequence alone, and in a stream where the
client asks for usage. Here an answer of several choices or prompts, and one of
`/v1/responses`, has the figures of all its sequences; a stream has them in each event that
ends a choice, over what has ended by then; one of `/v1/messages` where it tells its usage.
"""

import json
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from specworker.answer_editing import Editing
from specworker.live import Live
from specworker.unsupported import ROUTES

KEY = "speculative_decoding"
#: What only an answer that has its figures already holds.
_PRESENT = b'"speculative_decoding":{'
#: What only those events hold that carry figures, or the id of their answer.
_CARRIERS = (
    b'"finish_reason":"',
    b'"choices":[]',
    b'"type":"response.completed"',
    b'"type":"response.incomplete"',
    b'"type":"message_start"',
    b'"type":"message_delta"',
)


class AnswerFigures:
    """ASGI middleware around the routes that generate."""

    def __init__(self, app: ASGIApp, live: Live) -> None:
        self._app = app
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope.get("method") == "POST" and path in ROUTES:
            send = Editing(send, _Adding(self._live).added, _CARRIERS).send
        await self._app(scope, receive, send)


class _Adding:
    """Puts figures into an answer.

    Its id is remembered: some streams tell it in their first event alone.
    """

    def __init__(self, live: Live) -> None:
        self._live = live
        self._id = ""

    def added(self, body: bytes) -> bytes:
        """A JSON object with its figures; anything else, and one that has them, as it is."""
        if _PRESENT in body:
            return body
        try:
            whole = json.loads(body)
        except ValueError:
            return body
        answer = whole.get("response", whole) if isinstance(whole, dict) else None
        if not isinstance(answer, dict):
            return body
        if isinstance(message := answer.get("message"), dict):
            self._id = _id(message)
        if (figures := self._live.answer(_id(answer) or self._id)) is None:
            return body
        metrics = answer.get("metrics")
        answer["metrics"] = {**(metrics if isinstance(metrics, dict) else {}), KEY: figures}
        return json.dumps(whole, separators=(",", ":")).encode()


def _id(answer: dict[str, Any]) -> str:
    """The id of an answer; empty where it says none."""
    return str(answer.get("id") or answer.get("request_id") or "")
