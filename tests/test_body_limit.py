import asyncio
import contextlib
import http.client
import socket
from collections.abc import AsyncIterator, Iterator

import httpx
from starlette.types import Message

from specworker import body_limit
from specworker.body_limit import BodyLimit
from tests.ports import Counting, on_a_port

MB = 1024**2


async def chunks(count: int, size: int = 64 * 1024) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * size


def assert_too_large(answer: httpx.Response) -> None:
    assert answer.status_code == 413
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == (413, "PayloadTooLargeError")
    assert "1 MB" in error["message"]
    assert "MAX_BODY_MB" in error["message"]
    assert answer.headers["connection"] == "close"


async def test_a_body_up_to_the_limit_passes_whether_or_not_it_says_its_length() -> None:
    app = Counting()
    async with on_a_port(BodyLimit(app, 1)) as client:
        assert (await client.post("/", content=b"x" * MB)).json()["bytes"] == MB
        assert (await client.post("/", content=chunks(16))).json()["bytes"] == 2 * MB
        assert (await client.get("/")).status_code == 200
    assert app.called == 3


async def test_a_longer_body_is_refused_by_its_length_and_never_reaches_the_application() -> None:
    app = Counting()
    async with on_a_port(BodyLimit(app, 1)) as client:
        assert_too_large(await client.post("/", content=b"x" * (MB + 1)))
    assert app.called == 0


async def test_a_body_without_a_length_is_refused_when_it_passes_the_limit() -> None:
    app = Counting()
    async with on_a_port(BodyLimit(app, 1)) as client:
        assert_too_large(await client.post("/", content=chunks(17)))
    assert app.left
    assert app.received <= MB


async def test_what_the_application_says_to_a_body_that_was_refused_is_not_sent() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * (MB + 1), "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await BodyLimit(Counting(), 1)({"type": "http", "path": "/", "headers": []}, receive, send)
    assert [message.get("status") for message in sent] == [413, None, None]
    assert [message.get("more_body", False) for message in sent] == [False, True, False]


async def test_a_body_without_an_end_is_cut_off() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 64 * 1024
            await asyncio.sleep(0)

    app = Counting()
    async with on_a_port(BodyLimit(app, 1)) as client:
        started = asyncio.get_running_loop().time()
        # A client that never stops sending may find the connection gone.
        with contextlib.suppress(httpx.WriteError, httpx.ReadError):
            assert_too_large(await client.post("/", content=endless()))
        assert asyncio.get_running_loop().time() - started < body_limit.LINGER_SECONDS + 2
    assert app.received <= MB


async def test_a_client_that_sends_all_before_it_reads_still_reads_why() -> None:
    def ask(port: int) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("POST", "/", body=b"x" * 20 * MB)
        answer = connection.getresponse()
        return answer.status, answer.read()

    async with on_a_port(BodyLimit(Counting(), 1)) as client:
        status, said = await asyncio.to_thread(ask, client.base_url.port or 0)
    assert status == 413
    assert b"MAX_BODY_MB" in said


async def test_a_client_that_asks_first_is_not_told_to_send_its_body() -> None:
    def ask(port: int) -> Iterator[bytes]:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            head = f"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {2 * MB}\r\n"
            connection.sendall(f"{head}expect: 100-continue\r\n\r\n".encode())
            while piece := connection.recv(65536):
                yield piece

    async with on_a_port(BodyLimit(Counting(), 1)) as client:
        said = await asyncio.to_thread(lambda: b"".join(ask(client.base_url.port or 0)))
    assert said.startswith(b"HTTP/1.1 413")
    assert b"100 Continue" not in said
