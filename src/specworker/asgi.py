"""A call to an ASGI application in this process, streamed as it is produced.

httpx's ASGI transport collects a whole body before it returns, so it cannot stream.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from starlette.types import ASGIApp, Message, Scope

#: Pieces of a body that may wait for a slow reader before the application waits too.
QUEUED_PIECES = 256
#: Seconds that an application has to notice that its caller has gone.
LEAVE_SECONDS = 5.0


class Response:
    """The answer of an application: status, headers, and a body that arrives in pieces."""

    def __init__(self, pieces: MemoryObjectReceiveStream[bytes]) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False
        self._pieces = pieces

    async def piece(self) -> bytes | None:
        """The next piece of the body as the application sent it; None after the last.

        A wait that is cancelled loses nothing.

        Raises:
            ConnectionError: the application stopped before the body was whole.
        """
        try:
            return await self._pieces.receive()
        except anyio.EndOfStream:
            if self.complete:
                return None
            raise ConnectionError("the answer ended before it was whole") from None

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
    writer, reader = anyio.create_memory_object_stream[bytes](QUEUED_PIECES)
    response = Response(reader)
    incoming: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]
    started = asyncio.Event()
    left = asyncio.Event()

    async def receive() -> Message:
        if incoming:
            return incoming.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            response.status = message["status"]
            response.headers = {
                key.decode("latin-1").lower(): value.decode("latin-1")
                for key, value in message.get("headers", ())
            }
            started.set()
            return
        try:
            if piece := message.get("body"):
                await writer.send(piece)
        except anyio.BrokenResourceError:
            raise ConnectionResetError("the caller has gone") from None
        if not message.get("more_body"):
            response.complete = True
            writer.close()

    async def run() -> None:
        try:
            await app(_scope(method, path, content, is_json=body is not None), receive, send)
        finally:
            started.set()
            writer.close()

    call = asyncio.create_task(run())
    try:
        await started.wait()
        if not response.status:
            await call  # raises what the application raised
            raise ConnectionError("the application returned without an answer")
        yield response
    finally:
        left.set()
        reader.close()
        await _ended(call)


async def _ended(call: asyncio.Task[None]) -> None:
    """Wait for a call to end; what it raises now has no one left to hear it."""
    try:
        await asyncio.wait({call}, timeout=LEAVE_SECONDS)
    finally:
        call.cancel()
    await asyncio.gather(call, return_exceptions=True)


def _scope(method: str, path: str, content: bytes, *, is_json: bool) -> Scope:
    url = urlsplit(path)
    headers = [(b"host", b"specworker"), (b"content-length", str(len(content)).encode())]
    if is_json:
        headers.append((b"content-type", b"application/json"))
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": url.path,
        "raw_path": quote(url.path).encode(),
        "query_string": url.query.encode(),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 0),
        "server": ("specworker", 80),
    }
