"""The Serverless worker under the real SDK and a platform that fails; no engine needed."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from specworker import serverless
from specworker.errors import ConfigurationError, StartError
from specworker.rehearsal_jobs import Fault, Faults, Job, Status
from specworker.settings import Settings
from tests.endpoints import SOON, Endpoint, an_endpoint

#: The real worker around an application that does as its route says.
WORKER = """
import asyncio, json, os, sys
from types import SimpleNamespace

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from specworker import logs, serverless
from specworker.job_record import Figures
from specworker.settings import Settings

running = 0
most = 0
client = SimpleNamespace(errored=False)


def error(message, code):
    return {"error": {"message": message, "type": "E", "param": None, "code": code}}


async def whole(request):
    global running, most
    running += 1
    most = max(most, running)
    try:
        body = await request.json()
        await asyncio.sleep(body.get("seconds", 0))
        return JSONResponse({"said": body.get("say"), "usage": {"completion_tokens": 3}})
    finally:
        running -= 1


async def stream(request):
    body = await request.json()

    async def events():
        for number in range(body["events"]):
            event = {"n": number} | ({"text": body["error_text"]} if "error_text" in body else {})
            yield f"data: {json.dumps(event)}\\n\\n"
            await asyncio.sleep(body.get("pause", 0))
        if "error" in body:
            yield f"data: {json.dumps(error('broke', 503))}\\n\\n"
        yield "data: [DONE]\\n\\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def odd(request):
    text = '{"nan": NaN, "half": "\\\\ud800", "text": "ü😀"}'
    return Response(text, media_type="application/json")


async def large(request):
    return JSONResponse({"text": "x" * 2_000_000})


async def cancelled(request):
    raise asyncio.CancelledError


async def exits(request):
    sys.exit("/root/secret/file hf_abcdefghijk")


async def dies(request):
    client.errored = True
    return JSONResponse(error("EngineDead", 500), 500)


async def peak(request):
    return JSONResponse({"most": most})


app = Starlette(routes=[Route(f"/{f.__name__}", f, methods=["GET", "POST"])
                        for f in (whole, stream, odd, large, cancelled, exits, dies, peak)])


async def opened():
    await asyncio.sleep(float(os.environ.get("WARM_UP", "0")))
    return app


if __name__ == "__main__":
    logs.configure(as_json=True)
    engine = SimpleNamespace(
        app=opened, client=client, served_name="fake", started={}, figures=lambda scope: Figures()
    )
    sys.exit(serverless.Worker(engine, Settings.from_env(os.environ)).run())
"""


def call(route: str, **body: Any) -> dict[str, Any]:
    return {"route": f"/{route}", "body": body or {"x": 1}}


def error_of(job: Job) -> dict[str, Any]:
    assert job.status is Status.FAILED
    error = json.loads(str(job.error))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


def streamed(job: Job) -> str:
    return "".join(chunk.output for chunk in job.chunks if isinstance(chunk.output, str))


@pytest.fixture(scope="module")
async def endpoint(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Endpoint]:
    environment = {"MAX_RESULT_MB": "1", "MAX_CONCURRENCY": "30", "STREAM_INTERVAL_MS": "20"}
    folder = tmp_path_factory.mktemp("worker")
    async with an_endpoint(folder, WORKER, environment=environment) as running:
        yield running


async def test_a_job_is_answered_and_logged_in_one_line(endpoint: Endpoint) -> None:
    job = await endpoint.answered(call("whole", say="a private word"))
    assert job.status is Status.COMPLETED
    assert job.output == [{"said": "a private word", "usage": {"completion_tokens": 3}}]
    lines = [line for line in endpoint.log.splitlines() if job.id in line and "route=" in line]
    assert len(lines) == 1
    message = json.loads(lines[0])["message"]
    assert "route=POST /whole status=200 completion=3 ttft=" in message
    assert "a private word" not in endpoint.log


@pytest.mark.parametrize("fault", [Fault(drop=True), Fault(429), Fault(502), Fault(500)])
async def test_no_chunk_of_a_stream_is_lost_to_a_failing_platform(
    endpoint: Endpoint, fault: Fault
) -> None:
    endpoint.platform.faults = Faults(job_stream=[Fault(), fault, fault, Fault(), fault])
    job = await endpoint.answered(call("stream", events=20, pause=0.03))
    expected = [f'data: {{"n": {number}}}\n\n' for number in range(20)] + ["data: [DONE]\n\n"]
    assert streamed(job) == "".join(expected)
    assert "".join(job.output) == "".join(expected)
    assert job.status is Status.COMPLETED


@pytest.mark.parametrize("fault", [Fault(drop=True), Fault(429), Fault(502)])
async def test_no_result_is_lost_to_a_failing_platform(endpoint: Endpoint, fault: Fault) -> None:
    endpoint.platform.faults = Faults(job_done=[fault, fault, fault])
    job = await endpoint.answered(call("whole", say="kept"))
    assert job.output[0]["said"] == "kept"


async def test_values_that_json_cannot_carry_are_replaced_and_reported(endpoint: Endpoint) -> None:
    job = await endpoint.answered(call("odd"))
    assert job.output == [{"nan": None, "half": "?", "text": "ü😀"}]


@pytest.mark.parametrize("route", ["cancelled", "exits"])
async def test_whatever_breaks_inside_ends_in_a_reported_error(
    endpoint: Endpoint, route: str
) -> None:
    error = error_of(await endpoint.answered(call(route)))
    assert error["code"] == 500
    assert not any(word in json.dumps(error) for word in ("Traceback", "/root", "hf_"))
    assert (await endpoint.answered(call("whole", say="goes on"))).status is Status.COMPLETED


async def test_an_error_in_a_stream_is_sent_as_an_event_and_fails_the_job(
    endpoint: Endpoint,
) -> None:
    job = await endpoint.answered(call("stream", events=2, error=True))
    assert '"message": "broke"' in streamed(job)
    assert streamed(job).endswith("data: [DONE]\n\n")
    assert error_of(job) == {"message": "broke", "type": "E", "param": None, "code": 503}


async def test_a_result_over_the_limit_fails_in_words(endpoint: Endpoint) -> None:
    error = error_of(await endpoint.answered(call("large")))
    assert error["code"] == 413
    assert "MAX_RESULT_MB" in error["message"]


async def test_a_stream_over_the_limit_says_so_in_an_event_and_fails(endpoint: Endpoint) -> None:
    job = await endpoint.answered(call("stream", events=3, error_text="error " * 100_000))
    assert error_of(job)["code"] == 413
    assert "MAX_RESULT_MB" in streamed(job)
    assert streamed(job).endswith("data: [DONE]\n\n")


async def test_a_stop_ends_its_job_alone(endpoint: Endpoint) -> None:
    jobs = [endpoint.platform.submit(call("whole", say=str(n), seconds=3)) for n in range(3)]
    running = lambda: all(job.status is Status.IN_PROGRESS for job in jobs)  # noqa: E731
    assert await endpoint.platform.until(running, SOON)
    await asyncio.sleep(0.3)
    endpoint.platform.stop(jobs[1])
    deadline = time.monotonic() + 2
    while f"{jobs[1].id} route" not in endpoint.log and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert f"job {jobs[1].id} route=POST /whole status=499" in endpoint.log
    for job in (jobs[0], jobs[2]):
        assert await endpoint.ended(job)
        assert job.status is Status.COMPLETED


async def test_many_jobs_drain_with_no_loss_no_duplicate_and_bounded_concurrency(
    endpoint: Endpoint,
) -> None:
    jobs = [endpoint.platform.submit(call("whole", say=str(n), seconds=0.02)) for n in range(300)]
    for job in jobs:
        assert await endpoint.ended(job)
    assert [job.output[0]["said"] for job in jobs] == [str(n) for n in range(300)]
    assert all(len([p for p in job.posts if p.path == "job-done"]) == 1 for job in jobs)
    peak = (await endpoint.answered({"route": "/peak"})).output[0]["most"]
    assert 3 < peak <= 30


async def test_no_job_is_taken_before_the_engine_is_ready(tmp_path: Path) -> None:
    began = time.monotonic()
    async with an_endpoint(tmp_path, WORKER, environment={"WARM_UP": "2"}) as endpoint:
        assert time.monotonic() - began > 2
        assert (await endpoint.answered(call("whole", say="x"))).status is Status.COMPLETED
        assert endpoint.log.index("ready") < endpoint.log.index("route=")


async def test_at_sigterm_what_runs_is_finished_and_nothing_is_started(tmp_path: Path) -> None:
    async with an_endpoint(tmp_path, WORKER) as endpoint:
        running = endpoint.platform.submit(call("whole", say="finished", seconds=2))
        assert await endpoint.platform.until(lambda: running.taken_at is not None, SOON)
        await asyncio.sleep(0.5)
        os.kill(endpoint.worker.pid, signal.SIGTERM)
        await asyncio.sleep(0.3)
        late = endpoint.platform.submit(call("whole", say="late"))
        assert await endpoint.ended(running)
        assert await endpoint.exit_status(within=10) == 0
        assert running.output[0]["said"] == "finished"
        if late.status is not Status.IN_QUEUE:  # the poll that was open brought it
            assert error_of(late)["code"] == 503
            assert "Send it again" in error_of(late)["message"]


async def test_a_job_caught_at_sigterm_is_failed_and_not_dropped(tmp_path: Path) -> None:
    async with an_endpoint(tmp_path, WORKER, faults=Faults(hold=True)) as endpoint:
        caught = endpoint.platform.submit(call("whole", say="late"))
        os.kill(endpoint.worker.pid, signal.SIGTERM)
        await asyncio.sleep(0.2)
        endpoint.platform.release()
        assert await endpoint.ended(caught)
        assert error_of(caught)["code"] == 503
        assert await endpoint.exit_status(within=10) == 0


async def test_an_idle_worker_ends_soon_after_sigterm(tmp_path: Path) -> None:
    async with an_endpoint(tmp_path, WORKER) as endpoint:
        began = time.monotonic()
        os.kill(endpoint.worker.pid, signal.SIGTERM)
        assert await endpoint.exit_status(within=10) == 0
        assert time.monotonic() - began < 5


async def test_a_job_that_outlasts_the_drain_is_failed_in_words(tmp_path: Path) -> None:
    environment = {"DRAIN_TIMEOUT_S": "1"}
    async with an_endpoint(tmp_path, WORKER, environment=environment) as endpoint:
        job = endpoint.platform.submit(call("whole", seconds=30))
        assert await endpoint.platform.until(lambda: job.taken_at is not None, SOON)
        await asyncio.sleep(0.5)
        os.kill(endpoint.worker.pid, signal.SIGTERM)
        assert await endpoint.ended(job)
        assert "shut down before this job was finished" in error_of(job)["message"]
        assert await endpoint.exit_status(within=10) == 0


async def test_a_dead_engine_fails_its_jobs_and_ends_the_worker_with_an_error(
    tmp_path: Path,
) -> None:
    async with an_endpoint(tmp_path, WORKER) as endpoint:
        job = await endpoint.answered(call("dies"))
        assert error_of(job)["code"] == 500
        assert await endpoint.exit_status(within=10) == 1


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ConfigurationError(["A=1: wrong", "B=2: wrong"]), "A=1: wrong; B=2: wrong"),
        (StartError("ValueError: too large"), "ValueError: too large"),
        (ImportError("libcuda.so of /usr/lib/cuda/lib64"), "ImportError: libcuda.so of <path>"),
    ],
)
def test_whatever_keeps_the_engine_from_starting_is_what_the_jobs_hear(
    monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(serverless, "answer_with", lambda cause, _: heard.append(cause))

    def load() -> Any:
        raise error

    assert serverless.run(load, Settings()) == 1
    assert heard == [says]
    assert serverless.run(load, Settings.from_env({"ON_START_FAILURE": "exit"})) == 2
    assert heard == [says]
