import asyncio
import json
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from specworker.in_flight import InFlight
from tests.ports import on_a_port


class Slow:
    """Answers at `/whole` and `/stream` only when told to; `/half` is half sent until then."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._answer(scope, receive, send)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def events() -> Any:
            yield "data: {}\n\n"
            self.asked.set()
            await self.go.wait()
            yield "data: [DONE]\n\n"

        kinds = {"/stream": "text/event-stream", "/half": "application/json"}
        if kind := kinds.get(scope["path"]):
            await StreamingResponse(events(), media_type=kind)(scope, receive, send)
            return
        self.asked.set()
        await self.go.wait()
        await JSONResponse({"done": True})(scope, receive, send)


async def test_nothing_runs_before_a_request_and_after_it() -> None:
    app = Slow()
    running = InFlight(app)
    assert await running.ended(0)
    async with on_a_port(running) as client:
        answer = asyncio.create_task(client.get("/whole"))
        await app.asked.wait()
        assert not await running.ended(0.05)
        app.go.set()
        assert await running.ended(5)
        assert (await answer).json() == {"done": True}


async def test_an_answer_that_had_not_begun_ends_as_a_refusal() -> None:
    app = Slow()
    running = InFlight(app)
    async with on_a_port(running) as client:
        answer = asyncio.create_task(client.get("/whole"))
        await app.asked.wait()
        running.cut_off()
        assert await running.ended(5)
        assert (await answer).status_code == 503
        assert (await answer).headers["retry-after"] == "1"
        error = (await answer).json()["error"]
        assert (error["code"], error["type"]) == (503, "ServiceUnavailableError")
    assert app.cancelled == 1


async def test_a_stream_ends_in_an_event_that_says_why() -> None:
    app = Slow()
    running = InFlight(app)
    async with on_a_port(running) as client, client.stream("GET", "/stream") as answer:
        await app.asked.wait()
        running.cut_off()
        text = (await answer.aread()).decode()
    first, error, done, rest = text.split("\n\n")
    assert (first, done, rest) == ("data: {}", "data: [DONE]", "")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == 503


async def test_an_answer_that_is_half_sent_is_broken_off() -> None:
    app = Slow()
    running = InFlight(app)
    async with on_a_port(running) as client, client.stream("GET", "/half") as answer:
        await app.asked.wait()
        running.cut_off()
        with pytest.raises(httpx.RemoteProtocolError):
            await answer.aread()


async def test_a_request_that_is_cancelled_by_others_is_not_answered_for_them() -> None:
    app = Slow()
    running = InFlight(app)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    call = asyncio.create_task(running({"type": "http", "path": "/whole"}, receive, send))
    await app.asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await running.ended(0)
