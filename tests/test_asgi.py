import asyncio
import json

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specworker import asgi
from specworker.asgi import QUEUED_PIECES, request


def start(status: int = 200, **headers: str) -> Message:
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
    }


def body(piece: bytes = b"", *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": more}


class Echo:
    """Answers with what it was asked."""

    scope: Scope
    message: Message

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self.message = scope, await receive()
        await send(start(201, **{"Content-Type": "text/plain"}))
        await send(body(self.message["body"]))


async def test_a_request_reaches_the_application_as_one_over_http_would() -> None:
    app = Echo()
    async with request(app, "POST", "/v1/a b?x=1&y=é", {"a": "é"}) as response:
        answer = await response.read()
    assert (app.scope["type"], app.scope["method"]) == ("http", "POST")
    assert (app.scope["path"], app.scope["raw_path"]) == ("/v1/a b", b"/v1/a%20b")
    assert app.scope["query_string"] == "x=1&y=é".encode()
    headers = dict(app.scope["headers"])
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"content-length"] == str(len(answer)).encode()
    assert app.message["type"] == "http.request"
    assert not app.message["more_body"]
    assert json.loads(answer) == {"a": "é"}
    assert response.status == 201
    assert response.headers == {"content-type": "text/plain"}


@pytest.mark.parametrize(
    ("path", "decoded", "raw", "query"),
    [
        ("/v1/models", "/v1/models", b"/v1/models", b""),
        ("/v1/models/org%2Fname", "/v1/models/org/name", b"/v1/models/org%2Fname", b""),
        ("/é?a=%20&b=?", "/é", b"/%C3%A9", b"a=%20&b=?"),
        ("//host/v1/models", "//host/v1/models", b"//host/v1/models", b""),
        ("//[", "//[", b"//%5B", b""),
    ],
)
async def test_a_path_is_decoded_and_is_never_taken_for_a_host(
    path: str, decoded: str, raw: bytes, query: bytes
) -> None:
    app = Echo()
    async with request(app, "GET", path):
        pass
    assert (app.scope["path"], app.scope["raw_path"]) == (decoded, raw)
    assert app.scope["query_string"] == query


async def test_a_request_without_a_body_sends_none() -> None:
    app = Echo()
    async with request(app, "GET", "/v1/models") as response:
        assert await response.read() == b""
    assert app.message["body"] == b""
    assert b"content-type" not in dict(app.scope["headers"])


async def test_pieces_arrive_while_the_application_still_works() -> None:
    go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        await send(body(b"one", more=True))
        await go_on.wait()
        await send(body(b"two", more=True))
        await send(body(b"three"))

    async with request(app, "GET", "/") as response, asyncio.timeout(3):
        assert await response.piece() == b"one"
        go_on.set()
        assert await response.piece() == b"two"
        assert await response.piece() == b"three"
        assert await response.piece() is None
        assert await response.piece() is None


async def test_the_status_is_known_before_the_body_begins() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(404))
        await receive()
        await receive()

    async with asyncio.timeout(3), request(app, "GET", "/") as response:
        assert response.status == 404


async def test_leaving_early_disconnects_the_application() -> None:
    received = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        await send(body(b"one", more=True))
        received.append(await receive())
        received.append(await receive())
        received.append(await receive())

    async with asyncio.timeout(3), request(app, "GET", "/") as response:
        assert await response.piece() == b"one"
    assert [message["type"] for message in received] == [
        "http.request",
        "http.disconnect",
        "http.disconnect",
    ]


async def test_an_application_that_reads_to_the_end_is_not_disconnected_before() -> None:
    disconnected = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def listen() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            disconnected.set()

        listener = asyncio.create_task(listen())
        await send(start())
        for _ in range(3):
            await asyncio.sleep(0.001)
            await send(body(b"x", more=True))
            assert not disconnected.is_set()
        await send(body())
        await listener

    async with asyncio.timeout(3), request(app, "GET", "/") as response:
        assert await response.read() == b"xxx"
        assert not disconnected.is_set()
    assert disconnected.is_set()


async def test_an_application_that_goes_on_sending_hears_that_its_caller_has_gone() -> None:
    raised: list[Exception] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        try:
            while True:
                await send(body(b"x", more=True))
                await asyncio.sleep(0)
        except ConnectionResetError as error:
            raised.append(error)

    async with asyncio.timeout(3), request(app, "GET", "/") as response:
        assert await response.piece() == b"x"
    assert len(raised) == 1


async def test_an_application_that_ignores_the_disconnect_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asgi, "LEAVE_SECONDS", 0.01)
    cancelled = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with asyncio.timeout(3), request(app, "GET", "/"):
        pass
    assert cancelled.is_set()


@pytest.mark.parametrize("waiting_for", ["status", "piece"])
async def test_cancelling_the_caller_disconnects_the_application(waiting_for: str) -> None:
    received = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if waiting_for == "piece":
            await send(start())
        received.append((await receive())["type"])
        received.append((await receive())["type"])

    async def call() -> None:
        async with request(app, "GET", "/") as response:
            await response.piece()

    caller = asyncio.create_task(call())
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert received == ["http.request", "http.disconnect"]


async def test_what_the_caller_raises_comes_out_unchanged() -> None:
    with pytest.raises(LookupError, match="mine"):
        async with request(Echo(), "GET", "/"):
            raise LookupError("mine")


async def test_an_exception_before_the_answer_comes_out_as_it_is() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise LookupError("before")

    with pytest.raises(LookupError, match="before"):
        async with request(app, "GET", "/"):
            pytest.fail("there is no response")


async def test_an_application_that_does_not_answer_is_a_broken_connection() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        return

    with pytest.raises(ConnectionError, match="without an answer"):
        async with request(app, "GET", "/"):
            pytest.fail("there is no response")


async def fails(scope: Scope, receive: Receive, send: Send) -> None:
    await send(start())
    await send(body(b"one", more=True))
    raise LookupError("after")


async def returns(scope: Scope, receive: Receive, send: Send) -> None:
    await send(start())
    await send(body(b"one", more=True))


@pytest.mark.parametrize("app", [fails, returns])
async def test_a_body_that_breaks_off_is_a_broken_connection(app: ASGIApp) -> None:
    async with request(app, "GET", "/") as response:
        assert await response.piece() == b"one"
        for _ in range(2):
            with pytest.raises(ConnectionError, match="before it was whole"):
                await response.piece()


async def test_an_exception_after_a_whole_body_disturbs_nobody() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        await send(body(b"whole"))
        raise LookupError("too late")

    async with request(app, "GET", "/") as response:
        assert await response.read() == b"whole"


async def test_a_slow_reader_holds_the_application_up() -> None:
    sent = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await send(start())
        for _ in range(9 * QUEUED_PIECES):
            await send(body(b"x", more=True))
            sent += 1
        await send(body())

    async with asyncio.timeout(3), request(app, "GET", "/") as response:
        await asyncio.sleep(0.01)
        assert sent == QUEUED_PIECES
        for _ in range(10):
            assert await response.piece() == b"x"
        await asyncio.sleep(0.01)
        assert sent == QUEUED_PIECES + 10
        assert len(await response.read()) == 9 * QUEUED_PIECES - 10


async def test_leaving_frees_an_application_that_waits_for_a_slow_reader() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        while True:
            await send(body(b"x", more=True))

    async with asyncio.timeout(3), request(app, "GET", "/"):
        await asyncio.sleep(0.01)


async def test_leaving_does_not_wait_for_an_application_that_failed_unheard() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        for _ in range(QUEUED_PIECES):
            await send(body(b"x", more=True))
        raise LookupError("unheard")

    async with asyncio.timeout(3), request(app, "GET", "/"):
        await asyncio.sleep(0.01)


async def test_pieces_sent_before_the_end_are_all_read_after_it() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        for number in range(5):
            await send(body(str(number).encode(), more=True))
        await send(body())

    async with request(app, "GET", "/") as response:
        await asyncio.sleep(0.01)
        assert await response.read() == b"01234"


async def test_empty_pieces_are_left_out() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        await send(body(b"", more=True))
        await send(body(b"a", more=True))
        await send({"type": "http.response.body"})

    async with request(app, "GET", "/") as response:
        assert await response.piece() == b"a"
        assert await response.piece() is None


@pytest.mark.parametrize("steps", range(6))
async def test_a_wait_cancelled_as_its_piece_arrives_does_not_lose_it(steps: int) -> None:
    numbers: asyncio.Queue[int | None] = asyncio.Queue()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        while (number := await numbers.get()) is not None:
            await send(body(str(number).encode(), more=True))
        await send(body())

    async with asyncio.timeout(3), request(app, "GET", "/") as response:
        waiting = asyncio.create_task(response.piece())
        await asyncio.sleep(0.001)
        numbers.put_nowait(7)
        numbers.put_nowait(None)
        for _ in range(steps):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        found = None if waiting.cancelled() else waiting.result()
        assert (found or b"") + await response.read() == b"7"
