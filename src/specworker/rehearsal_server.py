"""The rehearsal platform on a port of this machine, beside whatever else the process does."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from specworker.rehearsal import Platform
from specworker.rehearsal_app import app


@contextmanager
def serving(platform: Platform, port: int = 0) -> Iterator[str]:
    """Serve `platform` on loopback, in a thread of its own, and yield the base URL.

    Leaving the context closes the platform.

    Args:
        platform: the state to serve.
        port: where; 0 for a free port.

    Raises:
        OSError: the port is taken.
    """
    listener = socket.create_server(("127.0.0.1", port))
    # asyncio does this for its own sockets alone; without it each answer may take 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(
        app(platform),
        http=_Protocol,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="rehearsal", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        platform.close()
        server.should_exit = True
        thread.join()


class _Protocol(H11Protocol):
    """Lets a route reach its connection, to close it without an answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {"transport": transport}
