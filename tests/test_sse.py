import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from specworker import sse
from specworker.sse import Events, grouped

LONG = 60.0


class Body:
    """A body whose pieces the test hands in, one at a time."""

    def __init__(self, *pieces: bytes) -> None:
        self._waiting = list(pieces)
        self._changed = asyncio.Event()
        self._end: bool | Exception = False

    def send(self, piece: bytes) -> None:
        self._waiting.append(piece)
        self._changed.set()

    def end(self, error: Exception | None = None) -> "Body":
        self._end = error or True
        self._changed.set()
        return self

    async def piece(self) -> bytes | None:
        await asyncio.sleep(0)
        while not self._waiting:
            if isinstance(self._end, Exception):
                raise self._end
            if self._end:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.pop(0)


async def events(*pieces: bytes) -> list[str]:
    source = Events(Body(*pieces).end().piece)
    found = []
    while (event := await source.next()) is not None:
        found.append(event)
    assert await source.next() is None
    return found


async def groups(body: Body, seconds: float = LONG) -> list[str]:
    async with aclosing(grouped(Events(body.piece), seconds)) as stream:
        return [group async for group in stream]


@asynccontextmanager
async def opened(body: Body, seconds: float) -> AsyncIterator[AsyncGenerator[str, None]]:
    stream = grouped(Events(body.piece), seconds)
    async with aclosing(stream):
        yield stream


def numbered(count: int) -> list[bytes]:
    return [f"data: {number}\n\n".encode() for number in range(count)]


async def test_events_come_out_whole_with_the_blank_line_that_ends_them() -> None:
    assert await events(b"data: 1\n\ndata: 2\n\n") == ["data: 1\n\n", "data: 2\n\n"]


async def test_events_cut_anywhere_are_put_together_again() -> None:
    body = "event: a\ndata: é日😀\n\ndata: [DONE]\n\n".encode()
    for cut in range(1, len(body)):
        assert await events(body[:cut], body[cut:]) == [
            "event: a\ndata: é日😀\n\n",
            "data: [DONE]\n\n",
        ]


async def test_characters_of_several_bytes_survive_a_byte_at_a_time() -> None:
    body = "data: é日😀\n\ndata: ü\n\n".encode()
    assert await events(*(bytes([byte]) for byte in body)) == ["data: é日😀\n\n", "data: ü\n\n"]


async def test_a_last_event_without_its_blank_line_gets_one() -> None:
    assert await events(b"data: 1\n\ndata: 2") == ["data: 1\n\n", "data: 2\n\n"]


@pytest.mark.parametrize("rest", [b"", b"\n", b" \n"])
async def test_blanks_at_the_end_are_no_event(rest: bytes) -> None:
    assert await events(b"data: 1\n\n", rest) == ["data: 1\n\n"]


async def test_an_empty_body_has_no_events() -> None:
    assert await events() == []
    assert await groups(Body().end()) == []


async def test_a_cancelled_wait_loses_no_event() -> None:
    body = Body(b"data: 1\n\nda")
    source = Events(body.piece)
    assert await source.next() == "data: 1\n\n"
    for piece in (b"ta", b": 2", b"\n", b"\ndata: 3\n\n"):
        waiting = asyncio.create_task(source.next())
        await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        body.send(piece)
    body.end()
    assert [await source.next() for _ in range(3)] == ["data: 2\n\n", "data: 3\n\n", None]


async def test_the_first_event_goes_out_alone_and_at_once() -> None:
    body = Body(*numbered(1))
    async with opened(body, LONG) as stream, asyncio.timeout(5):
        assert await anext(stream) == "data: 0\n\n"


async def test_the_first_event_goes_out_alone_though_others_wait() -> None:
    assert await groups(Body(*numbered(5)).end()) == [
        "data: 0\n\n",
        "".join(f"data: {number}\n\n" for number in range(1, 5)),
    ]


async def test_later_events_are_collected_for_the_interval() -> None:
    loop = asyncio.get_running_loop()
    body = Body(*numbered(3))
    async with opened(body, 0.2) as stream:
        started = loop.time()
        assert await anext(stream) == "data: 0\n\n"
        assert await anext(stream) == "data: 1\n\ndata: 2\n\n"
        assert loop.time() - started >= 0.199


async def test_an_event_after_a_pause_longer_than_the_interval_goes_out_at_once() -> None:
    loop = asyncio.get_running_loop()
    body = Body(*numbered(1))
    async with opened(body, 0.3) as stream:
        assert await anext(stream) == "data: 0\n\n"
        await asyncio.sleep(0.35)
        body.send(b"data: late\n\n")
        started = loop.time()
        assert await anext(stream) == "data: late\n\n"
        assert loop.time() - started < 0.25


async def test_an_event_not_yet_whole_waits_for_its_rest() -> None:
    body = Body(*numbered(2), b"data: ha")
    async with opened(body, 0.02) as stream:
        assert await anext(stream) == "data: 0\n\n"
        assert await anext(stream) == "data: 1\n\n"
        body.send(b"lf\n\n")
        assert await anext(stream) == "data: half\n\n"


async def test_what_waits_goes_out_at_once_when_the_stream_ends() -> None:
    body = Body(*numbered(3)).end()
    async with asyncio.timeout(5):
        assert await groups(body) == ["data: 0\n\n", "data: 1\n\ndata: 2\n\n"]


async def test_the_end_is_noticed_while_a_group_is_collected() -> None:
    body = Body(*numbered(2))
    async with opened(body, LONG) as stream, asyncio.timeout(5):
        assert await anext(stream) == "data: 0\n\n"
        rest = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.01)
        assert not rest.done()
        body.end()
        assert await rest == "data: 1\n\n"
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_without_an_interval_every_event_goes_out_by_itself() -> None:
    assert await groups(Body(*numbered(4)).end(), 0) == [
        f"data: {number}\n\n" for number in range(4)
    ]


async def test_a_group_goes_out_before_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_GROUP_CHARACTERS", 25)
    pieces = numbered(8)
    async with asyncio.timeout(5):
        found = await groups(Body(*pieces).end())
    assert "".join(found) == b"".join(pieces).decode()
    assert max(map(len, found)) < 25 + len("data: 0\n\n")
    assert len(found) == 4


async def test_nothing_is_lost_or_cut_whenever_the_interval_ends() -> None:
    body = Body()

    async def produce() -> None:
        for piece in numbered(300):
            for byte in (piece[:3], piece[3:]):
                body.send(byte)
                await asyncio.sleep(0)
        body.end()

    producer = asyncio.create_task(produce())
    found = await groups(body, 0.0001)
    await producer
    assert "".join(found) == b"".join(numbered(300)).decode()
    assert all(group.endswith("\n\n") and group.startswith("data: ") for group in found)


async def test_a_broken_stream_raises_what_broke_it_after_all_that_came_before() -> None:
    body = Body(*numbered(3)).end(ConnectionError("the answer ended before it was whole"))
    async with opened(body, LONG) as stream, asyncio.timeout(5):
        assert await anext(stream) == "data: 0\n\n"
        assert await anext(stream) == "data: 1\n\ndata: 2\n\n"
        with pytest.raises(ConnectionError, match="before it was whole"):
            await anext(stream)


async def test_closing_a_stream_early_stops_its_reader() -> None:
    body = Body(*numbered(1))
    async with opened(body, LONG) as stream:
        assert await anext(stream) == "data: 0\n\n"
        waiting = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
