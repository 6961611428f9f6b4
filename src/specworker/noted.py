"""A layer of vLLM's application: refuses what speculation cannot serve, and notes on answers.

Notes stand under `metrics.notes`, beside vLLM's own figures, in a whole answer and in the
first event of a stream. Answers without notes pass as they are.
"""

import json
from collections.abc import Sequence
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specworker import unsupported
from specworker.unsupported import Unsupported

#: The content type of a stream.
EVENTS = b"text/event-stream"


class Noted:
    """ASGI middleware around the routes that generate."""

    def __init__(
        self, app: ASGIApp, unsupported: Unsupported | None = None, notes: Sequence[str] = ()
    ) -> None:
        """`unsupported` is None where speculation is off; every answer carries `notes`."""
        self._app = app
        self._unsupported = unsupported
        self._notes = tuple(notes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope.get("method") != "POST" or path not in unsupported.ROUTES:
            await self._app(scope, receive, send)
            return
        notes = [*self._notes]
        if self._unsupported is not None:
            messages = await _body(receive)
            content = b"".join(message.get("body", b"") for message in messages)
            body = _parsed(content) if self._unsupported.may_concern(content) else None
            if fields := self._unsupported.fields(path, body):
                if not self._unsupported.drops:
                    error = self._unsupported.refusal(path, body, fields)
                    await JSONResponse(error.body(), error.status)(scope, receive, send)
                    return
                content = json.dumps(unsupported.without(path, body, fields)).encode()
                messages = [{"type": "http.request", "body": content, "more_body": False}]
                scope = with_length(scope, len(content))
                notes += unsupported.notes(fields)
            receive = _after(messages, receive)
        await self._app(scope, receive, _Noting(send, notes).send if notes else send)


class _Noting:
    """Sends an answer on, with notes put in: whole, or in a stream's first event."""

    def __init__(self, send: Send, notes: Sequence[str]) -> None:
        self._send = send
        self._notes = notes
        self._waits = False  # whether the place of the notes is still to come
        self._held = b""
        self._start: Message | None = None  # of a whole answer, held until its length is known

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = dict(message.get("headers", ())).get(b"content-type", b"")
            whole = kind.startswith(b"application/json")
            self._waits = message["status"] < 400 and (whole or kind.startswith(EVENTS))
            if self._waits and whole:
                self._start = message
                return
        elif self._waits:
            self._held += message.get("body", b"")
            if self._start is not None:
                await self._whole(self._start, message)
                return
            message = {**message, "body": self._events(ended=not message.get("more_body"))}
        await self._send(message)

    async def _whole(self, start: Message, message: Message) -> None:
        if message.get("more_body"):
            return
        body = noted(self._held, self._notes)
        await self._send(with_length(start, len(body)))
        await self._send({**message, "body": body})

    def _events(self, *, ended: bool) -> bytes:
        """What of a stream can go on: all, once its first event with data has the notes."""
        ready = b""
        while self._waits and b"\n\n" in self._held:
            event, _, self._held = self._held.partition(b"\n\n")
            head, data, text = event.partition(b"data: ")
            if data:  # a comment, which keeps a connection alive, has none
                event = head + data + noted(text, self._notes)
                self._waits = False
            ready += event + b"\n\n"
        if ended or not self._waits:
            ready, self._held = ready + self._held, b""
        return ready


def noted(body: bytes, notes: Sequence[str]) -> bytes:
    """A JSON object with `notes` in its metrics; anything else, and an error, as it is."""
    answer = _parsed(body)
    if not isinstance(answer, dict) or answer.get("error"):
        return body
    metrics = answer.get("metrics")
    answer["metrics"] = {**(metrics if isinstance(metrics, dict) else {}), "notes": [*notes]}
    return json.dumps(answer, separators=(",", ":")).encode()


def _parsed(content: bytes) -> Any:
    """What a body means; None for no JSON, of which the application says what is wrong."""
    try:
        return json.loads(content)
    except ValueError:
        return None


async def _body(receive: Receive) -> list[Message]:
    """The messages that make up a request's body."""
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    return messages


def _after(messages: list[Message], receive: Receive) -> Receive:
    """A `receive` that gives `messages` before what `receive` gives."""

    async def given() -> Message:
        return messages.pop(0) if messages else await receive()

    return given


def with_length(message: Any, length: int) -> Any:
    """A scope or a message whose headers say that the body has `length` bytes."""
    headers = [header for header in message["headers"] if header[0].lower() != b"content-length"]
    return {**message, "headers": [*headers, (b"content-length", str(length).encode())]}
