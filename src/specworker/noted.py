"""A layer of vLLM's application: what requests say of speculation, and notes on answers.

What speculation cannot serve is refused; what only the worker knows is told to vLLM in its
own terms. Notes stand under `metrics.notes`, beside vLLM's own figures, in a whole answer and
in the first event of a stream. Answers without notes pass as they are.
"""

import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeAlias

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specworker import predicted, request_body, request_speculation, unsupported
from specworker.answer_editing import EVENTS, Editing
from specworker.errors import RequestError
from specworker.predicted import Predicted
from specworker.request_body import Body, with_length
from specworker.request_speculation import RequestSpeculation
from specworker.unsupported import Unsupported

#: Under which a request's state holds its prediction, for the log.
STATE = "predicted"
#: Gives the token ids of a text.
Tokenize: TypeAlias = Callable[[str], Awaitable[Sequence[int]]]


class Noted:
    """ASGI middleware around the routes that generate."""

    def __init__(
        self,
        app: ASGIApp,
        unsupported: Unsupported | None = None,
        notes: Sequence[str] = (),
        speculation: RequestSpeculation | None = None,
        tokenize: Tokenize | None = None,
    ) -> None:
        """Wrap `app`.

        Args:
            app: vLLM's application.
            unsupported: what becomes of fields that vLLM refuses; None where speculation is off.
            notes: what every answer carries.
            speculation: what requests may ask about their own speculation; None to leave them
                as they are.
            tokenize: for predictions, where `speculation` takes them.
        """
        self._app = app
        self._unsupported = unsupported
        self._notes = tuple(notes)
        self._speculation = speculation
        self._tokenize = tokenize

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope.get("method") != "POST" or path not in unsupported.ROUTES:
            await self._app(scope, receive, send)
            return
        notes, prediction = [*self._notes], None
        if self._unsupported is not None or self._speculation is not None:
            body = await request_body.read(receive)
            try:
                notes += self._left_out(path, body)
                prediction = await self._told(path, body)
            except RequestError as error:
                await JSONResponse(error.body(), error.status)(scope, receive, send)
                return
            receive, scope = body.receive, body.scope(scope)
        send = _Noting(send, notes).send if notes else send
        if prediction is None:
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})[STATE] = prediction
        with _current(prediction):
            send = Editing(send, prediction.told, predicted.CARRIERS).send
            await self._app(scope, receive, send)

    def _left_out(self, path: str, body: Body) -> list[str]:
        """Leave out of a body what vLLM refuses. Returns notes on it.

        Raises:
            RequestError: the request is refused for it.
        """
        if self._unsupported is None or not self._unsupported.may_concern(body.content):
            return []
        fields = self._unsupported.fields(path, body.parsed)
        if not fields:
            return []
        if not self._unsupported.drops:
            raise self._unsupported.refusal(path, body.parsed, fields)
        body.replace(unsupported.without(path, body.parsed, fields))
        return unsupported.notes(fields)

    async def _told(self, path: str, body: Body) -> Predicted | None:
        """Put what a request says about its own speculation in vLLM's terms.

        Returns its prediction, if it has one.

        Raises:
            RequestError: it cannot be served.
        """
        if self._speculation is None or not self._speculation.may_concern(body.content):
            return None
        asked = self._speculation.asked(path, body.parsed)
        ids: Sequence[int] = ()
        if asked.prediction and self._tokenize is not None:
            ids = await self._tokenize(asked.prediction)
        if request_speculation.concerns(body.parsed):
            body.replace(request_speculation.sent(path, body.parsed, asked.tokens, ids))
        return Predicted(ids) if ids else None


@contextlib.contextmanager
def _current(prediction: Predicted) -> Iterator[None]:
    """Have vLLM's part of the work know the prediction of the request that it is for."""
    token = predicted.current.set(prediction)
    try:
        yield
    finally:
        predicted.current.reset(token)


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
    answer = request_body.parsed(body)
    if not isinstance(answer, dict) or answer.get("error"):
        return body
    metrics = answer.get("metrics")
    answer["metrics"] = {**(metrics if isinstance(metrics, dict) else {}), "notes": [*notes]}
    return json.dumps(answer, separators=(",", ":")).encode()
