"""A call to an ASGI application in this process, streamed as it is produced.

httpx's ASGI transport collects a whole body before it returns, so it cannot stream.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, unquote

from starlette.types import ASGIApp, Message, Scope

#: Pieces of a body that may wait for a slow reader before the application waits too.
#: Few, so that vLLM joins the tokens of a slow stream instead of sending each on its own.
QUEUED_PIECES = 4
#: Seconds that an application has to notice that its caller has gone.
LEAVE_SECONDS = 1.0


class Response:
    """The answer of an application: status, headers, and a body that arrives in pieces.

    Attributes:
        scope: of the request, in which the application leaves what it says of it.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUED_PIECES)

    async def piece(self) -> bytes | None:
        """The next piece of the body as the application sent it; None after the last.

        A wait that is cancelled loses nothing.

        Raises:
            ConnectionError: the application stopped before the body was whole.
        """
        piece = await self._pieces.get()
        if piece is None:
            self._pieces.put_nowait(None)  # for whoever asks again
            if not self.complete:
                raise ConnectionError("the answer ended before it was whole")
        return piece

    async def read(self) -> bytes:
        """The whole body."""
        body = bytearray()
        while (piece := await self.piece()) is not None:
            body += piece
        return bytes(body)


@asynccontextmanager
async def request(
    app: ASGIApp, method: str, path: str, body: Any = None
) -> AsyncIterator[Response]:
    """Call `app` and yield its response once the status is known.

    Leaving the context before the body has ended disconnects, which is how vLLM learns
    to abort its request.

    Args:
        app: the application.
        method: the HTTP method.
        path: the path, with its query string if it has one.
        body: what to send as JSON; nothing when None.

    Raises:
        Exception: what the application itself raised before it answered.
    """
    content = b"" if body is None else json.dumps(body).encode()
    response = Response(_scope(method, path, content, is_json=body is not None))
    incoming: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]
    started = asyncio.Event()
    left = asyncio.Event()

    async def receive() -> Message:
        if incoming:
            return incoming.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if left.is_set():
            raise ConnectionResetError("the caller has gone")
        if message["type"] == "http.response.start":
            response.status = message["status"]
            response.headers = {
                key.decode("latin-1").lower(): value.decode("latin-1")
                for key, value in message.get("headers", ())
            }
            started.set()
            return
        if piece := message.get("body"):
            await response._pieces.put(piece)
        if not message.get("more_body"):
            response.complete = True
            await response._pieces.put(None)

    async def run() -> None:
        try:
            await app(response.scope, receive, send)
        except SystemExit as end:  # which would end the event loop, and every other request
            raise RuntimeError("the application tried to end the process") from end
        finally:
            started.set()
            if not (response.complete or left.is_set()):
                await response._pieces.put(None)

    call = asyncio.create_task(run())
    try:
        await started.wait()
        if not response.status:
            await call  # raises what the application raised
            raise ConnectionError("the application returned without an answer")
        yield response
    finally:
        left.set()
        while not response._pieces.empty():  # an application that waits for room goes on
            response._pieces.get_nowait()
        await _ended(call)


async def _ended(call: asyncio.Task[None]) -> None:
    """Wait for a call to end; what it raises now has no one left to hear it."""
    try:
        await asyncio.wait({call}, timeout=LEAVE_SECONDS)
    finally:
        call.cancel()
    await asyncio.gather(call, return_exceptions=True)


def _scope(method: str, path: str, content: bytes, *, is_json: bool) -> Scope:
    place, _, query = path.partition("?")
    headers = [(b"host", b"specworker"), (b"content-length", str(len(content)).encode())]
    if is_json:
        headers.append((b"content-type", b"application/json"))
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(place),
        "raw_path": quote(place, safe="/%").encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 0),
        "server": ("specworker", 80),
        "state": {},
    }
