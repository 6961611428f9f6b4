import asyncio
import logging
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from specworker.job_record import Figures
from specworker.request_log import RequestLog
from tests.ports import on_a_port


def application() -> FastAPI:
    app = FastAPI()

    @app.post("/v1/completions")
    async def complete(body: dict[str, Any]) -> Any:
        async def events() -> Any:
            yield "data: {}\n\n"
            if "error" in body:
                yield f'data: {{"error": {{"message": "no", "code": {body["error"]}}}}}\n\n'
            while body.get("endless"):
                await asyncio.sleep(0.01)
                yield "data: {}\n\n"

        if body.get("stream"):
            return StreamingResponse(events(), media_type="text/event-stream")
        return JSONResponse({"text": "secret"}, body.get("status", 200))

    @app.post("/until-left")
    async def wait(request: Request) -> Any:
        while not await request.is_disconnected():
            await asyncio.sleep(0.01)
        return JSONResponse(None)

    @app.get("/v1/responses/{name}")
    async def show(name: str) -> str:
        return name

    app.get("/metrics")(lambda: JSONResponse({}))
    app.get("/health")(lambda: JSONResponse({}, 503))
    return app


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    for other in ("uvicorn", "uvicorn.error"):  # the server's own lines
        caplog.set_level(logging.WARNING, other)
    caplog.set_level(logging.INFO, "specworker")
    logging.getLogger("specworker").propagate = True
    return caplog


async def test_a_request_is_one_line_with_its_figures(log: pytest.LogCaptureFixture) -> None:
    logged = RequestLog(application())
    logged.figures = lambda scope: Figures(
        f"cmpl-{scope['method']}",
        {"prompt_tokens": 7, "completion_tokens": 5},
        {"mean_acceptance_length": 2.5},
    )
    async with on_a_port(logged) as client:
        for stream in (False, True):
            answer = await client.post("/v1/completions", json={"stream": stream})
            assert answer.status_code == 200
    assert len(log.messages) == 2
    for line in log.messages:
        assert line.startswith("request cmpl-POST route=POST /v1/completions status=200 ")
        for figure in ("prompt=7", "completion=5", "ttft=", "tokens/s=", "acceptance length=2.50"):
            assert figure in line


async def test_nothing_that_a_client_made_up_is_in_the_log(log: pytest.LogCaptureFixture) -> None:
    async with on_a_port(RequestLog(application())) as client:
        await client.get("/v1/responses/secret?secret=1", headers={"x-request-id": "secret"})
        await client.get("/secret/%0Asecret")
        await client.post("/v1/completions", json={"prompt": "secret", "status": 400})
    assert [line.split(" ttft")[0] for line in log.messages] == [
        "request route=GET /v1/responses/{name} status=200",
        "request route=GET none status=404",
        "request route=POST /v1/completions status=400",
    ]


async def test_an_error_inside_a_stream_is_the_status_that_is_logged(
    log: pytest.LogCaptureFixture,
) -> None:
    async with on_a_port(RequestLog(application())) as client:
        for code in ("503", '"many"'):
            body = {"stream": True, "error": code}
            assert (await client.post("/v1/completions", json=body)).status_code == 200
    known, unknown = log.messages
    assert "status=503" in known
    assert "status=500" in unknown


async def logged(log: pytest.LogCaptureFixture) -> str:
    for _ in range(100):
        if log.messages:
            break
        await asyncio.sleep(0.02)
    (line,) = log.messages
    return line


async def test_a_client_that_hangs_up_is_logged_as_such(log: pytest.LogCaptureFixture) -> None:
    async with on_a_port(RequestLog(application())) as client:
        body = {"stream": True, "endless": True}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            await anext(aiter(answer.aiter_raw()))
        assert "status=499" in await logged(log)


async def test_an_answer_to_a_client_that_hung_up_is_none(log: pytest.LogCaptureFixture) -> None:
    async with on_a_port(RequestLog(application())) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/until-left", timeout=0.2)
        assert "status=499" in await logged(log)


async def test_what_monitors_ask_for_is_logged_only_where_it_fails(
    log: pytest.LogCaptureFixture,
) -> None:
    async with on_a_port(RequestLog(application())) as client:
        for path in ("/metrics", "/health"):
            await client.get(path)
    (line,) = log.messages
    assert line.startswith("request route=GET /health status=503")
