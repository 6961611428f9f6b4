"""The requests that are being answered: how many, and how they end when time is up."""

import asyncio
import json

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specworker.errors import RequestError

UNFINISHED = RequestError(
    "The worker ended before this request was finished. Send it again.",
    status=503,
    kind="ServiceUnavailableError",
)


class InFlight:
    """ASGI middleware: knows what runs, and can put an end to it in words."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_cut_off = False

    async def ended(self, within: float) -> bool:
        """Wait until nothing runs, up to `within` seconds. Whether nothing does."""
        try:
            async with asyncio.timeout(within):
                while self._tasks:
                    await asyncio.wait(set(self._tasks))
        except TimeoutError:
            return False
        return True

    def cut_off(self) -> None:
        """End what still runs; its clients are told why, as far as that can be done."""
        self._is_cut_off = True
        for task in self._tasks:
            task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        task = asyncio.current_task()
        if scope["type"] != "http" or task is None:
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        self._tasks.add(task)
        try:
            await self._app(scope, receive, answer.send)
        except asyncio.CancelledError:
            if not self._is_cut_off:
                raise
            task.uncancel()
            await answer.end(scope, receive)
        finally:
            self._tasks.discard(task)


class _Answer:
    """An answer on its way, as far as it has come."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_started = False
        self._streams = False
        self._is_complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self._is_complete = not message.get("more_body")
        else:
            self._has_started = True
            kind = dict(message.get("headers", ())).get(b"content-type", b"")
            self._streams = kind.startswith(b"text/event-stream")
        await self._send(message)

    async def end(self, scope: Scope, receive: Receive) -> None:
        """End it before its time. What is half sent and no stream is left as it is."""
        if not self._has_started:
            headers = {"retry-after": "1"}
            refusal = JSONResponse(UNFINISHED.body(), UNFINISHED.status, headers)
            await refusal(scope, receive, self._send)
        elif self._streams and not self._is_complete:
            events = f"data: {json.dumps(UNFINISHED.body())}\n\ndata: [DONE]\n\n"
            await self._send({"type": "http.response.body", "body": events.encode()})
