"""Requests over HTTP: on a pod, on a load-balancing endpoint, or on this machine.

The ports are open, and health is answered, before vLLM is imported. The engine loads
beside that in a thread, and its application then answers in the same event loop.
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop

from specworker import loading, start_failure, stopwatch
from specworker.door import Door
from specworker.front import State
from specworker.stopwatch import Stopwatch

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from specworker.engine import Engine
    from specworker.settings import Settings

logger = logging.getLogger(__name__)

#: Seconds between looks at the engine's health.
WATCH_SECONDS = 0.25
#: Seconds for which health checks and requests are still told that the engine has died.
DEATH_SECONDS = 2.0
#: Seconds that an idle connection is kept: longer than by proxies, so that they close first.
KEEP_ALIVE_SECONDS = 75
#: Seconds that connections have to close when no request runs any more.
CLOSE_SECONDS = 2


def run(load: "Callable[[], Engine]", key: Callable[[], str | None], settings: "Settings") -> int:
    """Serve until told to stop, or until the engine dies.

    Args:
        load: loads the engine; blocks.
        key: finds the key that requests must bring, None for none; blocks.
        settings: where and how to serve.

    Returns:
        The exit status: 0 after a stop, 1 when the engine died or never started, 2 when
        the process does not stay to say why.
    """
    listeners = []
    for name, port in settings.ports.items():
        try:
            listeners.append(listen(settings.host, port))
        except OSError as error:
            logger.error(
                "cannot start:\n  %s=%s: nothing can listen there (%s); allowed: a free port",
                name,
                port,
                error.strerror,
            )
            return 2
    return uvloop.run(_Server(load, key, settings).run(listeners))


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; 0 is a free port.

    Raises:
        OSError: nothing can listen there.
    """
    listener = socket.create_server((host, port), backlog=2048)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else answers may take 40 ms
    return listener


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the worker, which has more to end than a server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_server(app: "ASGIApp") -> uvicorn.Server:
    """A server of `app`. What the application logs and starts is its own matter."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
    return _Uvicorn(config)


class _Server:
    """The life of the process: it loads, serves, and ends."""

    def __init__(
        self, load: "Callable[[], Engine]", key: Callable[[], str | None], settings: "Settings"
    ) -> None:
        self._load = load
        self._key = key
        self._settings = settings
        self._door = Door(settings)
        self._stopped = asyncio.Event()
        self._hurried = asyncio.Event()

    async def run(self, listeners: Sequence[socket.socket]) -> int:
        """Serve on `listeners`. Returns the exit status."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stopped.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        server = http_server(self._door)
        serving = asyncio.create_task(server.serve([*listeners]))
        while not (server.started or serving.done()):
            await asyncio.sleep(0.005)
        places = " and ".join("{}:{}".format(*place.getsockname()) for place in listeners)
        logger.info("listening on %s; the engine loads", places)
        async with contextlib.AsyncExitStack() as closing:
            try:
                return await self._live(closing)
            finally:
                server.should_exit = True
                await serving

    async def _live(self, closing: contextlib.AsyncExitStack) -> int:
        start = loading.in_thread(self._start)
        stop = asyncio.create_task(self._stopped.wait())
        await _first(start, stop)
        if not start.done():
            self._door.front.refuse(State.STOPPING)
            logger.info("told to stop before the engine was loaded")
            if engine := await loading.abandon(start):
                closing.push_async_callback(engine.aclose)
            return 0
        clock = Stopwatch()
        try:
            engine = start.result()
            closing.push_async_callback(engine.aclose)
            app = await engine.app()
        except Exception as error:  # noqa: BLE001 - whatever it is, requests are told
            return await self._fail(start_failure.report(error))
        clock.lap("warm-up")
        self._door.log.figures = engine.figures
        self._door.front.serve(app)
        logger.info("ready after %s", stopwatch.line(engine.started | clock.laps))
        death = asyncio.create_task(_death(engine))
        await _first(death, stop)
        if not stop.done():
            await self._die()
            return 1
        death.cancel()
        await self._drain()
        return int(engine.client.errored and not self._hurried.is_set())

    def _start(self) -> "Engine":
        self._door.guard.accept(self._key())
        return self._load()

    def _interrupt(self) -> None:
        """Stop at once: whoever presses Ctrl-C does not wait, and the engine is told so too."""
        self._hurried.set()
        self._stopped.set()

    async def _fail(self, reason: str) -> int:
        """Stay and tell why nothing is served. A worker that ends is started again, and paid."""
        if self._settings.where == "local" or self._settings.on_start_failure == "exit":
            return 2
        self._door.front.refuse(State.FAILED, reason)
        logger.warning("ON_START_FAILURE=answer: every request is answered with the reason")
        await self._stopped.wait()
        return 1

    async def _die(self) -> None:
        logger.error("the engine died: no more requests are taken, and the worker ends")
        self._door.front.refuse(State.DEAD)
        await asyncio.sleep(DEATH_SECONDS)
        await self._cut_off()

    async def _drain(self) -> None:
        self._door.front.refuse(State.STOPPING)
        seconds = self._settings.drain_timeout_s
        logger.info("told to stop: what runs has %s s to finish", seconds)
        ended = asyncio.create_task(self._door.in_flight.ended(seconds))
        hurry = asyncio.create_task(self._hurried.wait())
        await _first(ended, hurry)
        await self._cut_off()

    async def _cut_off(self) -> None:
        self._door.in_flight.cut_off()
        await self._door.in_flight.ended(CLOSE_SECONDS)


async def _first(*events: "asyncio.Future[Any]") -> None:
    """Wait until the first of them has come."""
    await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)


async def _death(engine: "Engine") -> None:
    """Wait until the engine has died."""
    while not engine.client.errored:
        await asyncio.sleep(WATCH_SECONDS)
