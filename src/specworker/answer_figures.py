"""A layer of vLLM's application: acceptance figures in the answers that vLLM leaves without.

vLLM tells a request's figures where it is one sequence alone, and in a stream where the
client asks for usage. Here an answer of several choices or prompts, and one of
`/v1/responses`, has the figures of all its sequences; a stream has them in each event that
ends a choice, over what has ended by then; one of `/v1/messages` where it tells its usage.
"""

import json
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specworker.live import Live
from specworker.noted import EVENTS, with_length
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
            send = _Adding(send, self._live).send
        await self._app(scope, receive, send)


class _Adding:
    """Sends an answer on, with figures put in."""

    def __init__(self, send: Send, live: Live) -> None:
        self._send = send
        self._live = live
        self._streams = False
        self._start: Message | None = None  # of a whole answer, held until its length is known
        self._body = b""
        self._id = ""  # of a stream that tells it in its first event alone

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = dict(message.get("headers", ())).get(b"content-type", b"")
            served = message["status"] < 400
            self._streams = served and kind.startswith(EVENTS)
            if served and kind.startswith(b"application/json"):
                self._start = message
                return
        elif self._streams:
            message = {**message, "body": self._events(message.get("body", b""))}
        elif self._start is not None:
            self._body += message.get("body", b"")
            if message.get("more_body"):
                return
            message = {**message, "body": self._added(self._body)}
            await self._send(with_length(self._start, len(message["body"])))
        await self._send(message)

    def _events(self, body: bytes) -> bytes:
        """Some events of a stream; vLLM sends them whole."""
        if not any(carrier in body for carrier in _CARRIERS):
            return body
        return b"\n\n".join(map(self._event, body.split(b"\n\n")))

    def _event(self, event: bytes) -> bytes:
        head, data, text = event.partition(b"data: ")
        return head + data + self._added(text)

    def _added(self, body: bytes) -> bytes:
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
