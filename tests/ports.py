"""Applications on real sockets, behind the worker's own HTTP server."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from specworker.server import http_server, listen


@asynccontextmanager
async def on_ports(app: ASGIApp, *listeners: socket.socket) -> AsyncIterator[None]:
    """Serve `app` on `listeners`."""
    server = http_server(app)
    serving = asyncio.create_task(server.serve([*listeners]))
    try:
        while not server.started:
            await asyncio.sleep(0.005)
        yield
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def on_a_port(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    """A client of `app`, which is served on a port of this machine."""
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with on_ports(app, listener), httpx.AsyncClient(base_url=url, timeout=10) as client:
        yield client


class Counting:
    """A stand-in for the engine's application: says how long the request's body was.

    Attributes:
        called: how often it was asked.
        received: bytes of bodies that reached it.
        left: whether a client left before its body was whole.
    """

    def __init__(self) -> None:
        self.called = self.received = 0
        self.left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.called += 1
        more = True
        while more:
            message = await receive()
            self.left = message["type"] == "http.disconnect"
            self.received += len(message.get("body", b""))
            more = message.get("more_body", False)
        await JSONResponse({"path": scope["path"], "bytes": self.received})(scope, receive, send)
