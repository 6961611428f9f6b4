"""The longest body that a request may have. What is longer is refused, and not read whole."""

import asyncio
import contextlib

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specworker.errors import RequestError

#: Seconds for which a refused body is still taken off the connection, and thrown away: a
#: client that sends it whole before it reads would else find its connection reset.
LINGER_SECONDS = 2.0


class BodyLimit:
    """ASGI middleware. A body that says its length is judged by that, another as it comes."""

    def __init__(self, app: ASGIApp, megabytes: int) -> None:
        self._app = app
        self._limit = megabytes * 1024**2
        error = RequestError(
            f"The request's body is larger than the {megabytes} MB that this server takes "
            "(MAX_BODY_MB).",
            status=413,
            kind="PayloadTooLargeError",
        )
        self._refusal = JSONResponse(error.body(), error.status, {"connection": "close"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length")
        if length is None:
            counted = _Counted(self, receive, send)
            await self._app(scope, counted.receive, counted.send)
        elif int(length) > self._limit:
            await self.refuse(receive, send)
        else:
            await self._app(scope, receive, send)

    def exceeded_by(self, received: int) -> bool:
        """Whether a body of which `received` bytes have come is too long."""
        return received > self._limit

    async def refuse(self, receive: Receive, send: Send) -> None:
        """Answer in place of the application."""
        start = {"status": self._refusal.status_code, "headers": self._refusal.raw_headers}
        await send({"type": "http.response.start", **start})
        # Whole for the client, but the server closes the connection only after the last part.
        body = {"type": "http.response.body", "body": self._refusal.body, "more_body": True}
        await send(body)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while (await receive()).get("more_body"):
                    pass
        await send({"type": "http.response.body"})


class _Counted:
    """A request whose body does not say its length."""

    def __init__(self, limit: BodyLimit, receive: Receive, send: Send) -> None:
        self._limit = limit
        self._receive = receive
        self._send = send
        self._received = 0
        self._is_answered = False
        self._is_refused = False

    async def receive(self) -> Message:
        """The next part of the body. The application takes a refusal for a client that left."""
        if not self._is_refused:
            message = await self._receive()
            self._received += len(message.get("body", b""))
            if not self._limit.exceeded_by(self._received):
                return message
            self._is_refused = True
            if not self._is_answered:
                await self._limit.refuse(self._receive, self._send)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send on what the application answers, unless the request was refused."""
        if not self._is_refused:
            self._is_answered = True
            await self._send(message)
