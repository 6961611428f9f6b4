"""The rehearsal platform, under the real Runpod SDK and the real OpenAI client."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import openai
import pytest

from specworker import demo_model, rehearsal, rehearsal_run
from specworker.__main__ import main
from specworker.rehearsal import Platform
from specworker.rehearsal_jobs import MAX_CHUNK_BYTES, Fault, Faults, Job, Status
from specworker.rehearsal_server import serving
from tests.endpoints import SOON, Endpoint, an_endpoint

MANY = 300

WORKER = """
import asyncio, json
from pathlib import Path

import runpod


def event(text):
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "echo",
             "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    return f"data: {json.dumps(chunk)}\\n\\n"


def completion(text):
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "echo",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text},
                         "finish_reason": "stop"}]}


async def chat(body):
    words = body["messages"][-1]["content"].split()
    if words[0] == "fail":
        yield {"error": json.dumps({"error": {"message": "no such thing", "code": 404}})}
    elif words[0] == "slow":
        await asyncio.sleep(60)
    elif body.get("stream"):
        for word in words:
            if word == "break":
                yield {"error": "broken"}
            yield event(word)
            await asyncio.sleep(0.2)
        yield "data: [DONE]\\n\\n"
    else:
        yield completion(" ".join(words))


async def handler(job):
    given = job["input"]
    try:
        if given.get("openai_route") == "/v1/models":
            yield {"object": "list", "data": [{"id": "echo", "object": "model"}]}
        elif "openai_route" in given:
            async for output in chat(given["openai_input"]):
                yield output
        else:
            if "progress" in given:
                runpod.serverless.progress_update(job, given["progress"])
            for piece in given.get("pieces", ["done"]):
                yield float(piece) if piece == "NaN" else piece
                await asyncio.sleep(given.get("pause", 0))
    except (asyncio.CancelledError, GeneratorExit):  # the latter when it waits for a post
        (Path(__file__).parent / job["id"]).write_text("cancelled")
        raise


if __name__ == "__main__":
    runpod.serverless.start({
        "handler": handler,
        "concurrency_modifier": lambda _: 100,
        "return_aggregate_stream": True,
    })
"""


@pytest.fixture(scope="module")
async def endpoint(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Endpoint]:
    async with an_endpoint(tmp_path_factory.mktemp("worker"), WORKER) as running:
        yield running


@pytest.fixture
def faults(endpoint: Endpoint) -> Faults:
    endpoint.platform.faults = Faults()
    return endpoint.platform.faults


def outputs(job: Job) -> list[Any]:
    return [chunk.output for chunk in job.chunks]


def statuses(job: Job, path: str) -> list[int | None]:
    return [post.status for post in job.posts if post.path == path]


def say(content: str) -> Any:
    return [{"role": "user", "content": content}]


# The endpoint's own routes.


async def test_runsync_answers_with_the_whole_output(endpoint: Endpoint) -> None:
    answer = (await endpoint.http.post("runsync", json={"input": {"pieces": ["a", "ü€😀"]}})).json()
    assert (answer["status"], answer["output"]) == ("COMPLETED", ["a", "ü€😀"])
    assert answer["workerId"] == "worker-1"
    assert answer["executionTime"] >= 0 <= answer["delayTime"]


async def test_runsync_answers_after_its_wait_though_the_job_runs(endpoint: Endpoint) -> None:
    body = {"input": {"pieces": ["a", "b"], "pause": 0.8}}
    answer = (await endpoint.http.post("runsync?wait=1000", json=body)).json()
    assert answer["status"] == "IN_PROGRESS"
    assert await endpoint.ended(endpoint.platform.jobs[answer["id"]])


async def test_a_job_is_queued_streamed_once_and_then_reported(endpoint: Endpoint) -> None:
    body = {"input": {"pieces": ["a", {"b": 1}, "c"], "pause": 0.2}}
    queued = (await endpoint.http.post("run", json=body)).json()
    assert queued["status"] == "IN_QUEUE"
    streamed, answers = [], 0
    while True:
        answer = (await endpoint.http.get(f"stream/{queued['id']}")).json()
        answers += 1
        streamed += [piece["output"] for piece in answer["stream"]]
        if answer["status"] == "COMPLETED" and not answer["stream"]:
            break
    assert streamed == ["a", {"b": 1}, "c"]
    assert answers > 2
    status = (await endpoint.http.get(f"status/{queued['id']}")).json()
    assert (status["status"], status["output"]) == ("COMPLETED", ["a", {"b": 1}, "c"])
    chunks = endpoint.platform.jobs[queued["id"]].chunks
    assert all(later.at - sooner.at > 0.15 for sooner, later in pairwise(chunks))


async def test_progress_is_no_result(endpoint: Endpoint) -> None:
    job = endpoint.platform.submit({"progress": "half", "pieces": ["a", "b"], "pause": 0.5})
    assert await endpoint.platform.until(lambda: job.progress, SOON) == "half"
    assert (await endpoint.http.get(f"status/{job.id}")).json()["output"] == "half"
    assert await endpoint.ended(job)
    assert job.output == ["a", "b"]


async def test_what_is_no_json_fails_the_job(endpoint: Endpoint) -> None:
    job = endpoint.platform.submit({"pieces": ["a", "NaN"]})
    assert await endpoint.ended(job)
    assert job.status is Status.FAILED
    assert "NaN is no JSON number" in job.error
    assert outputs(job) == ["a"]
    assert statuses(job, "job-stream") == [200, 400]
    assert job.posts[1].raw == b'{"output": NaN}'


async def test_a_chunk_over_the_limit_is_refused(endpoint: Endpoint) -> None:
    job = endpoint.platform.submit({"pieces": ["x" * MAX_CHUNK_BYTES, "y"]})
    assert await endpoint.ended(job)
    assert statuses(job, "job-stream") == [400, 200]
    assert outputs(job) == ["y"]
    assert len(job.output) == 2


async def test_a_cancelled_job_stops_in_the_handler_and_reports_nothing(
    endpoint: Endpoint,
) -> None:
    job = endpoint.platform.submit({"pieces": ["a"] * 100, "pause": 0.2})
    sibling = endpoint.platform.submit({"pieces": ["a"] * 3, "pause": 0.2})
    assert await endpoint.platform.until(lambda: job.chunks and sibling.chunks, SOON)
    answer = (await endpoint.http.post(f"cancel/{job.id}")).json()
    assert answer == {"id": job.id, "status": "CANCELLED"}
    assert await endpoint.told_to_stop(job)
    assert await endpoint.ended(sibling)
    assert sibling.status is Status.COMPLETED
    assert job.status is Status.CANCELLED
    assert statuses(job, "job-done") == []


async def test_a_time_out_stops_a_job_like_a_cancel(endpoint: Endpoint) -> None:
    job = endpoint.platform.submit({"pieces": ["a"] * 100, "pause": 0.2})
    assert await endpoint.platform.until(lambda: job.chunks, SOON)
    endpoint.platform.stop(job, Status.TIMED_OUT)
    assert await endpoint.told_to_stop(job)
    assert job.report()["status"] == "TIMED_OUT"


async def test_many_jobs_drain(endpoint: Endpoint) -> None:
    jobs = [endpoint.platform.submit({"pieces": [number]}) for number in range(MANY)]
    assert await endpoint.platform.until(lambda: all(job.ended for job in jobs), SOON)
    assert [job.output for job in jobs] == [[number] for number in range(MANY)]
    health = (await endpoint.http.get("health")).json()
    assert health["jobs"]["inQueue"] == health["jobs"]["inProgress"] == 0
    assert health["workers"]["idle"] == 1


async def test_the_platform_itself_costs_a_stream_nothing(endpoint: Endpoint) -> None:
    job = endpoint.platform.submit({"pieces": list(range(100))})
    assert await endpoint.ended(job)
    assert median(later.at - sooner.at for sooner, later in pairwise(job.chunks)) < 0.02


async def test_pings_name_the_running_jobs(endpoint: Endpoint) -> None:
    job = endpoint.platform.submit({"pieces": ["a", "b"], "pause": 1.5})
    assert await endpoint.platform.until(
        lambda: any(job.id in ping.jobs for ping in endpoint.platform.pings), SOON
    )
    ping = endpoint.platform.pings[-1]
    assert (ping.worker, ping.parameters["runpod_version"]) == ("worker-1", "1.12.0")
    assert await endpoint.ended(job)


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b"{"])
async def test_what_is_no_job_is_refused(endpoint: Endpoint, body: bytes) -> None:
    assert (await endpoint.http.post("run", content=body)).status_code == 400


@pytest.mark.parametrize("route", ["status/none", "stream/none", "cancel/none"])
async def test_an_unknown_job_is_not_found(endpoint: Endpoint, route: str) -> None:
    method = "POST" if route.startswith("cancel") else "GET"
    assert (await endpoint.http.request(method, route)).status_code == 404


# The OpenAI front.


async def test_a_chat_completion_streams_as_it_is_generated(endpoint: Endpoint) -> None:
    loop = asyncio.get_running_loop()
    words: list[str | None] = []
    times: list[float] = []
    stream = await endpoint.openai.chat.completions.create(
        model="echo", messages=say("one two three"), stream=True
    )
    async for chunk in stream:
        words.append(chunk.choices[0].delta.content)
        times.append(loop.time())
    assert words == ["one", "two", "three"]
    assert times[-1] - times[0] > 0.3


async def test_a_chat_completion_comes_out_of_the_list_it_is_in(endpoint: Endpoint) -> None:
    answer = await endpoint.openai.chat.completions.create(model="echo", messages=say("one two"))
    assert answer.choices[0].message.content == "one two"
    job = list(endpoint.platform.jobs.values())[-1]
    assert job.input["openai_route"] == "/v1/chat/completions"
    assert job.input["openai_input"]["model"] == "echo"


async def test_a_get_is_forwarded_without_input(endpoint: Endpoint) -> None:
    models = await endpoint.openai.models.list()
    assert [model.id for model in models.data] == ["echo"]
    assert list(endpoint.platform.jobs.values())[-1].input["openai_input"] == {}


@pytest.mark.parametrize("streams", [False, True])
async def test_a_failed_job_is_an_error_500_that_carries_its_error(
    endpoint: Endpoint, streams: bool
) -> None:
    with pytest.raises(openai.InternalServerError) as failure:
        await endpoint.openai.chat.completions.create(
            model="echo", messages=say("fail"), stream=streams
        )
    assert failure.value.status_code == 500
    assert "no such thing" in failure.value.response.json()["error"]


async def test_a_stream_that_fails_midway_just_ends(endpoint: Endpoint) -> None:
    stream = await endpoint.openai.chat.completions.create(
        model="echo", messages=say("one break two"), stream=True
    )
    assert [chunk.choices[0].delta.content async for chunk in stream] == ["one"]
    job = list(endpoint.platform.jobs.values())[-1]
    assert (job.status, job.error) == (Status.FAILED, "broken")


@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_that_leaves_the_front_cancels_its_job(
    endpoint: Endpoint, streams: bool
) -> None:
    route = "openai/v1/chat/completions"
    if streams:
        body = {"messages": say("word " * 100), "stream": True}
        async with endpoint.http.stream("POST", route, json=body) as answer:
            async for _ in answer.aiter_raw():
                break
    else:
        with pytest.raises(httpx.ReadTimeout):
            await endpoint.http.post(route, json={"messages": say("slow")}, timeout=0.3)
    job = list(endpoint.platform.jobs.values())[-1]
    assert await endpoint.ended(job)
    assert job.status is Status.CANCELLED
    assert await endpoint.told_to_stop(job)


# What goes wrong.


async def test_faults_of_the_stream_reach_the_sdk_in_order(
    endpoint: Endpoint, faults: Faults
) -> None:
    faults.job_stream = [
        Fault(status=500),
        Fault(),
        Fault(status=429),
        Fault(drop=True),
        Fault(drop=True, counted=True),
        Fault(delay=0.5),
    ]
    job = endpoint.platform.submit({"pieces": ["1", "2", "3", "4", "5", "6"]})
    assert await endpoint.ended(job)
    assert statuses(job, "job-stream") == [500, 200, 429, None, None, 200, 200]
    assert outputs(job) == ["1", "4", "5", "6"]
    assert job.output == ["1", "2", "3", "4", "5", "6"]
    assert job.posts[6].at - job.posts[5].at > 0.4
    assert not faults.job_stream


async def test_faults_of_the_result_reach_the_sdk_in_order(
    endpoint: Endpoint, faults: Faults
) -> None:
    faults.job_done = [Fault(status=429), Fault(drop=True), Fault(drop=True, counted=True)]
    jobs = []
    for _ in range(3):
        job = endpoint.platform.submit({})
        assert await endpoint.platform.until(lambda job=job: len(job.posts) == 2, SOON)  # type: ignore[misc]
        jobs.append(job)
    faults.job_done = [Fault(status=502)]
    jobs.append(endpoint.platform.submit({}))
    assert await endpoint.ended(jobs[-1])
    assert [statuses(job, "job-done") for job in jobs] == [[429], [None], [None], [502, 200]]
    assert [job.status for job in jobs] == ["IN_PROGRESS", "IN_PROGRESS", "COMPLETED", "COMPLETED"]
    for job in jobs:
        endpoint.platform.stop(job)


async def test_held_jobs_wait_until_they_are_released(endpoint: Endpoint, faults: Faults) -> None:
    faults.hold = True
    job, withdrawn = endpoint.platform.submit({}), endpoint.platform.submit({})
    assert not await endpoint.platform.until(lambda: job.taken_at, 0.3)
    endpoint.platform.stop(withdrawn)
    endpoint.platform.release()
    assert await endpoint.ended(job)
    assert withdrawn.status is Status.CANCELLED
    assert not withdrawn.posts


async def test_at_sigterm_the_sdk_ends_what_runs_and_loses_what_its_open_poll_brings(
    tmp_path: Path,
) -> None:
    async with an_endpoint(tmp_path, WORKER) as endpoint:
        platform = endpoint.platform
        running = platform.submit({"pieces": ["a", "b"], "pause": 0.8})
        assert await platform.until(lambda: running.chunks and platform.polls["job-take"], SOON)
        endpoint.worker.send_signal(signal.SIGTERM)
        assert await endpoint.ended(running)
        await asyncio.sleep(0.5)
        caught = platform.submit({})
        assert await platform.until(lambda: caught.taken_at, SOON)
        platform.drain()
        assert await asyncio.to_thread(endpoint.worker.wait, SOON) == 0
    assert running.status is Status.COMPLETED
    assert caught.status is Status.IN_PROGRESS
    assert not caught.posts
    assert rehearsal_run.tally(platform) == "Jobs: 1 completed, 1 never reported."


async def test_a_poll_whose_worker_has_gone_takes_no_job() -> None:
    platform = Platform()
    with serving(platform) as base_url:
        async with httpx.AsyncClient(base_url=f"{base_url}/v2/x/job-take/") as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.get("gone", timeout=0.2)
            assert await platform.until(lambda: not platform.polls["job-take"], SOON)
            job = platform.submit("anything \ud800")
            assert (await client.get("here")).json() == {"id": job.id, "input": "anything \ud800"}
    assert job.worker == "here"


async def test_a_poll_ends_by_itself() -> None:
    with serving(Platform(poll_seconds=0.2)) as base_url:
        async with httpx.AsyncClient(base_url=f"{base_url}/v2/x") as client:
            assert (await client.get("job-take/one")).status_code == 204
            assert (await client.get("job-stop/one")).status_code == 204


async def test_a_closing_platform_keeps_nobody_waiting() -> None:
    platform = Platform()
    with serving(platform) as base_url:
        async with httpx.AsyncClient(base_url=f"{base_url}/v2/x", timeout=SOON) as client:
            calls = [
                asyncio.create_task(client.get("job-stop/one")),
                asyncio.create_task(client.post("runsync", json={"input": 1})),
                asyncio.create_task(client.post("openai/v1/chat/completions", json={})),
            ]
            assert await platform.until(
                lambda: len(platform.jobs) == 2 and platform.polls["job-stop"], SOON
            )
            platform.close()
            answers = await asyncio.gather(*calls)
    assert sorted(answer.status_code for answer in answers) == [200, 204, 500]


# The command line.


def test_the_environment_leaves_the_placeholders_to_the_sdk() -> None:
    variables = rehearsal.environment("http://localhost:1", "pod")
    assert "/job-take/$ID?" in variables["RUNPOD_WEBHOOK_GET_JOB"]
    assert "/job-done/$RUNPOD_POD_ID/$ID?" in variables["RUNPOD_WEBHOOK_POST_OUTPUT"]
    assert "/job-stream/$RUNPOD_POD_ID/$ID?" in variables["RUNPOD_WEBHOOK_POST_STREAM"]
    assert variables["RUNPOD_WEBHOOK_PING"].endswith("/ping/$RUNPOD_POD_ID")
    assert variables["RUNPOD_POD_ID"] == "pod"


async def command(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "specworker", "platform", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def url_of(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    line = (await asyncio.wait_for(process.stderr.readline(), SOON)).decode()
    return line.removeprefix("Platform at ").partition(";")[0]


async def test_ctrl_c_stops_the_worker_and_counts_the_jobs(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    process = await command("--", sys.executable, str(script))
    async with httpx.AsyncClient(base_url=await url_of(process), timeout=SOON) as client:
        answer = (await client.post("runsync", json={"input": {}})).json()
        assert answer["output"] == ["done"]
    process.send_signal(signal.SIGINT)
    data, messages = await asyncio.wait_for(process.communicate(), SOON)
    assert process.returncode == 0
    assert data == b""
    assert b"openai/v1/chat/completions" in messages
    assert messages.decode().splitlines()[-1] == "Jobs: 1 completed."


async def test_a_second_ctrl_c_kills_the_worker() -> None:
    ignores = "import signal, time; signal.signal(15, signal.SIG_IGN)"
    # Again and again: the first may come before the URL.
    stubborn = f"{ignores}\nfor _ in range(600): print(1); time.sleep(0.1)"
    process = await command("--", sys.executable, "-uc", stubborn)
    await url_of(process)
    assert process.stderr is not None
    told = False
    async for line in process.stderr:
        if line == b"1\n" and not told:
            told = True
            process.send_signal(signal.SIGINT)
        elif line.startswith(b"Stopping"):
            process.send_signal(signal.SIGINT)
            break
    await asyncio.wait_for(process.communicate(), SOON)
    assert process.returncode == 128 + signal.SIGKILL


async def test_a_worker_that_ends_ends_the_rehearsal_with_its_status() -> None:
    process = await command("--", sys.executable, "-c", "raise SystemExit(3)")
    _, messages = await asyncio.wait_for(process.communicate(), SOON)
    assert process.returncode == 3
    assert messages.endswith(b"Jobs: none.\n")


async def test_without_a_worker_its_variables_go_to_stdout() -> None:
    process = await command("--no-worker")
    url = await url_of(process)
    process.send_signal(signal.SIGTERM)
    data, _ = await asyncio.wait_for(process.communicate(), SOON)
    assert process.returncode == 0
    assert f"export RUNPOD_WEBHOOK_GET_JOB='{url}/job-take/$ID?gpu=none'" in data.decode()


async def test_what_cannot_start_says_so() -> None:
    process = await command("--", "/no/such/worker")
    _, messages = await asyncio.wait_for(process.communicate(), SOON)
    assert process.returncode == 2
    assert b"cannot start: " in messages
    assert b"/no/such/worker" in messages


def test_a_command_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "command" in capsys.readouterr().err


def test_a_worker_without_a_model_serves_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "prepare", lambda: Path("/demo"))
    assert rehearsal_run.demo_environment({"MODEL_NAME": ""}) == {
        "MODEL_NAME": "/demo",
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE": demo_model.NAME,
        "NGRAM_PROMPT_LOOKUP_MAX": "4",
    }
    assert "NGRAM_PROMPT_LOOKUP_MAX" not in rehearsal_run.demo_environment(
        {"SPECULATIVE_METHOD": "suffix"}
    )
    assert rehearsal_run.demo_environment({"MODEL_NAME": "org/model"}) == {}
