"""Server-sent events: cutting a stream into whole ones, and sending them in groups."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable

#: A group stays well under the platform's limit of 1 MB a piece.
MAX_GROUP_CHARACTERS = 250_000


class Events:
    """The events of a body, whole, each with the blank line that ends it.

    Bytes are decoded an event at a time, so no character is ever cut in two.
    """

    def __init__(self, piece: Callable[[], Awaitable[bytes | None]]) -> None:
        """`piece` gives the body's next bytes, None at the end, and may be cancelled."""
        self._piece = piece
        self._rest = b""
        self._ready: deque[str] = deque()
        self._ended = False

    async def next(self) -> str | None:
        """The next event; None after the last. A wait that is cancelled loses nothing."""
        while not self._ready and not self._ended:
            piece = await self._piece()
            if piece is None:
                self._ended = True
                if self._rest.strip():
                    self._ready.append(f"{self._rest.decode()}\n\n")
            else:
                *whole, self._rest = (self._rest + piece).split(b"\n\n")
                self._ready.extend(f"{event.decode()}\n\n" for event in whole)
        return self._ready.popleft() if self._ready else None


async def grouped(events: Events, seconds: float) -> AsyncGenerator[str, None]:
    """Join events into groups: the first alone and at once, then those of each interval.

    Each piece that a job yields costs the platform a call, hence groups. No event is
    cut, and what waits when the stream ends goes out at once.

    Args:
        events: the stream.
        seconds: how long a group collects events after the one before it went out.
    """
    loop = asyncio.get_running_loop()
    due = loop.time()
    while (event := await events.next()) is not None:
        group, size = [event], len(event)
        ended = False
        try:
            async with asyncio.timeout_at(due):
                while size < MAX_GROUP_CHARACTERS:
                    if (event := await events.next()) is None:
                        ended = True
                        break
                    group.append(event)
                    size += len(event)
        except (TimeoutError, ConnectionError):
            pass  # a stream that broke says so again when it is asked for its next event
        due = loop.time() + seconds
        yield "".join(group)
        if ended:
            return
