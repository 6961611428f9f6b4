"""Where a trial's requests go: workers that are started for it, or servers that run already."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specworker import child_server, pausing
from specworker.measured_server import MeasuredServer

#: Told of progress, a line each.
Say = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """A server: a worker of our own that is started for the trial, or one that runs already.

    Attributes:
        variables: the worker's whole environment; None where a server runs.
        url: of the server that runs, without `/v1`.
        key: what that server asks for; empty for nothing.
    """

    variables: Mapping[str, str] | None = field(default=None, repr=False)
    url: str = ""
    key: str = field(default="", repr=False)


@contextlib.asynccontextmanager
async def opened(
    places: Sequence[Place], names: Sequence[str], folder: Path, say: Say
) -> AsyncIterator[list[MeasuredServer]]:
    """The servers at `places`, ready and idle.

    Where they are several, those of our own are stopped. At the end K of one that ran already
    is what it was.

    Raises:
        StartError: one did not start; the reason in words.
        MeasuringError: one cannot be measured.
    """
    servers: list[MeasuredServer] = []
    async with contextlib.AsyncExitStack() as stack:
        for place, name in zip(places, names, strict=True):
            server = await stack.enter_async_context(_opened(place, name, folder, say))
            servers.append(server)
            if len(places) > 1:  # an engine that waits polls
                stack.enter_context(pausing.stopped(server.processes))
        yield servers


def alone(
    servers: Sequence[MeasuredServer], number: int
) -> contextlib.AbstractContextManager[None]:
    """Let one of the servers run, where several take turns."""
    if len(servers) == 1:
        return contextlib.nullcontext()
    return pausing.running(servers[number].processes)


@contextlib.asynccontextmanager
async def _opened(place: Place, name: str, folder: Path, say: Say) -> AsyncIterator[MeasuredServer]:
    if place.variables is None:
        server = MeasuredServer.of(place.url, place.key)
        await server.look()
        async with server.restored():
            yield server
        return
    log = folder / f"{'-'.join(name.split())}.log"
    started = time.monotonic()
    say(f"{name}: the engine starts")
    with child_server.worker(place.variables, log) as (process, url):
        await child_server.ready(process, url, log, lambda text: say(f"{name}: {text}"))
        server = MeasuredServer(url, processes=pausing.tree(process.pid))
        await server.look()
        say(f"{name}: ready after {time.monotonic() - started:.0f} s")
        yield server
