"""The whole chain: OpenAI's client, the platform, the real SDK, the worker, a real engine."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from specworker.rehearsal_jobs import Fault, Faults, Status
from tests.endpoints import ENGINE_SOON, SOON, Endpoint, an_endpoint
from tests.engines import Rack

pytestmark = pytest.mark.engine("of its own")

Environments = Mapping[str, dict[str, str]]
SAY: Any = [{"role": "user", "content": "Say: one two three one two three one two"}]
LONG: Any = {"model": "demo", "max_tokens": 300, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
async def endpoint(
    tmp_path_factory: pytest.TempPathFactory, rack: Rack, environments: Environments
) -> AsyncIterator[Endpoint]:
    await rack.close()
    folder = tmp_path_factory.mktemp("endpoint")
    tools = {"ENABLE_AUTO_TOOL_CHOICE": "true", "TOOL_CALL_PARSER": "hermes"}
    async with an_endpoint(folder, environment=environments["ngram"] | tools) as running:
        yield running


async def running_requests(endpoint: Endpoint) -> float:
    metrics = await endpoint.answered({"route": "/metrics"})
    (line,) = [
        line
        for line in str(metrics.output[0]).splitlines()
        if line.startswith("vllm:num_requests_running")
    ]
    return float(line.split()[-1])


async def test_the_models_are_listed(endpoint: Endpoint) -> None:
    assert [model.id for model in (await endpoint.openai.models.list()).data] == ["demo"]


async def test_a_chat_is_answered_with_its_acceptance(endpoint: Endpoint) -> None:
    answer = await endpoint.openai.chat.completions.create(
        model="demo", messages=SAY, max_completion_tokens=24, temperature=0
    )
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 24
    figures = (answer.model_extra or {})["metrics"]["speculative_decoding"]
    assert figures["num_spec_tokens"] == 3


async def test_a_streamed_chat_is_the_chat_without_streaming(endpoint: Endpoint) -> None:
    asked: dict[str, Any] = {
        "model": "demo",
        "messages": SAY,
        "max_completion_tokens": 32,
        "temperature": 0,
    }
    whole = await endpoint.openai.chat.completions.create(**asked)
    text, usage = "", None
    stream = await endpoint.openai.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens


async def test_completions_take_n_logprobs_stop_and_seed(endpoint: Endpoint) -> None:
    create = endpoint.openai.completions.create
    two = await create(model="demo", prompt="One, two,", n=2, max_tokens=8, temperature=1, seed=3)
    again = await create(model="demo", prompt="One, two,", n=2, max_tokens=8, temperature=1, seed=3)
    assert len({choice.index for choice in two.choices}) == 2
    assert [c.text for c in two.choices] == [c.text for c in again.choices]
    scored = await create(model="demo", prompt="One, two,", logprobs=2, max_tokens=4)
    logprobs = scored.choices[0].logprobs
    assert logprobs is not None
    assert len(logprobs.tokens or []) == 4
    stopped = await create(
        model="demo", prompt="1, 2, 3, 4,", stop=["7"], max_tokens=40, temperature=0
    )
    assert "7" not in stopped.choices[0].text
    assert stopped.choices[0].finish_reason == "stop"


async def test_structured_output_is_json(endpoint: Endpoint) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    answer = await endpoint.openai.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Ann is 30 years old. Answer in JSON."}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": schema},
        },
        max_completion_tokens=120,
        temperature=0,
    )
    assert set(json.loads(answer.choices[0].message.content or "")) == {"name", "age"}


async def test_a_required_tool_is_called(endpoint: Endpoint) -> None:
    parameters: Any = {
        "type": "object",
        "properties": {"unit": {"type": "string", "enum": ["celsius", "kelvin"]}},
        "required": ["unit"],
    }
    tools: Any = [{"type": "function", "function": {"name": "read", "parameters": parameters}}]
    answer = await endpoint.openai.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "What is the temperature in celsius?"}],
        tools=tools,
        tool_choice="required",
        max_completion_tokens=120,
        temperature=0,
    )
    (call, *_) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "read"
    json.loads(call.function.arguments)  # a model this small fills them in as it likes


async def test_responses_are_answered(endpoint: Endpoint) -> None:
    answer = await endpoint.openai.responses.create(
        model="demo", input="Say hi", max_output_tokens=16, temperature=0
    )
    assert answer.output_text


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_refuses_reaches_the_client_in_words(
    endpoint: Endpoint, stream: bool
) -> None:
    with pytest.raises(openai.InternalServerError) as refused:
        await endpoint.openai.chat.completions.create(
            model="nobody", messages=SAY, stream=stream, max_completion_tokens=4
        )
    assert "nobody" in refused.value.response.text
    assert "Traceback" not in refused.value.response.text


async def test_embeddings_of_a_generating_model_are_refused(endpoint: Endpoint) -> None:
    with pytest.raises(openai.InternalServerError) as refused:
        await endpoint.openai.embeddings.create(model="demo", input="text")
    assert "Traceback" not in refused.value.response.text


async def test_three_hundred_jobs_drain_while_the_platform_fails(endpoint: Endpoint) -> None:
    faults = [Fault(), Fault(drop=True), Fault(502), Fault(), Fault(429), Fault()]
    endpoint.platform.faults = Faults(job_done=faults * 40, job_stream=faults * 40)
    body = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
    jobs = [
        endpoint.platform.submit(
            {"prompt": f"{n}, {n + 1},", "sampling_params": body, "stream": n % 2 == 0}
        )
        for n in range(300)
    ]
    assert await endpoint.platform.until(lambda: all(job.ended for job in jobs), ENGINE_SOON)
    assert {job.status for job in jobs} == {Status.COMPLETED}
    assert all("".join(job.output).endswith("data: [DONE]\n\n") for job in jobs[::2])
    usages = {job.output[0]["usage"]["completion_tokens"] for job in jobs[1::2]}
    assert usages == {4}
    for job in jobs:
        assert endpoint.log.count(f"job {job.id} ") == 1


async def test_a_stop_frees_the_engine_and_leaves_the_others(endpoint: Endpoint) -> None:
    endpoint.platform.faults = Faults()
    jobs = [
        endpoint.platform.submit(
            {"prompt": f"{n},", "sampling_params": {"max_tokens": 150, "ignore_eos": True}}
        )
        for n in range(3)
    ]
    assert await endpoint.platform.until(lambda: all(job.taken_at for job in jobs), SOON)
    await asyncio.sleep(1)
    stopped_at = time.monotonic()
    endpoint.platform.stop(jobs[1])
    while f"job {jobs[1].id} " not in endpoint.log and time.monotonic() < stopped_at + 5:
        await asyncio.sleep(0.02)
    took = time.monotonic() - stopped_at
    assert f"job {jobs[1].id} route=POST /v1/completions status=499" in endpoint.log
    assert took < 1
    for job in (jobs[0], jobs[2]):
        assert await endpoint.ended(job)
        assert job.output[0]["usage"]["completion_tokens"] == 150
    assert await running_requests(endpoint) == 0


async def test_the_log_says_what_jobs_cost_and_nothing_that_users_wrote(
    endpoint: Endpoint,
) -> None:
    job = await endpoint.answered(
        {"prompt": "Xylophones are", "sampling_params": {"max_tokens": 5}}
    )
    (line,) = [line for line in endpoint.log.splitlines() if f"job {job.id} " in line]
    message = json.loads(line)["message"]
    for figure in ("status=200", "prompt=", "completion=5", "ttft=", "tokens/s=", "acceptance"):
        assert figure in message
    assert "Xylophones" not in endpoint.log
    ours = [line for line in endpoint.log.splitlines() if line.startswith("{")]
    assert any("vLLM" in json.loads(line)["message"] for line in ours)
    assert not any(line.startswith(("INFO", "WARNING", "(EngineCore", "(Worker")) for line in ours)


async def test_at_sigterm_streams_finish_and_every_process_is_gone(endpoint: Endpoint) -> None:
    processes = [psutil.Process(endpoint.worker.pid)]
    processes += processes[0].children(recursive=True)
    stream = await endpoint.openai.completions.create(prompt="1, 2,", stream=True, **LONG)
    text = (await anext(aiter(stream))).choices[0].text
    os.kill(endpoint.worker.pid, signal.SIGTERM)
    finish = None
    async for chunk in stream:
        text += chunk.choices[0].text
        finish = chunk.choices[0].finish_reason or finish
    assert finish == "length"
    assert await endpoint.exit_status(within=30) == 0
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert alive == []


async def test_a_killed_engine_fails_its_jobs_and_ends_the_worker(
    tmp_path: Path, rack: Rack, environments: Environments
) -> None:
    await rack.close()
    async with an_endpoint(tmp_path, environment=environments["tiny ngram"]) as endpoint:
        worker = psutil.Process(endpoint.worker.pid)
        processes = worker.children(recursive=True)
        (core,) = [child for child in processes if "EngineCore" in " ".join(child.cmdline())]
        jobs = [
            endpoint.platform.submit(
                {
                    "prompt": "w1 w2",
                    "stream": streams,
                    "sampling_params": {"max_tokens": 900, "ignore_eos": True},
                }
            )
            for streams in (True, False)
        ]
        assert await endpoint.platform.until(lambda: bool(jobs[0].chunks), SOON)
        core.kill()
        killed_at = time.monotonic()
        for job in jobs:
            assert await endpoint.ended(job)
            assert job.status is Status.FAILED
            assert json.loads(str(job.error))["error"]["code"] >= 500
        assert time.monotonic() - killed_at < 5
        assert '"error"' in str(jobs[0].chunks[-1].output)
        assert await endpoint.exit_status(within=20) == 1
        _, alive = psutil.wait_procs(processes, timeout=10)
        assert alive == []


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"MODEL_NAME": "/does/not/exist"}, "there is no such folder"),
        ({"MAX_MODEL_LEN": "many"}, "MAX_MODEL_LEN=many"),
        ({"KV_CACHE_MEMORY_BYTES": "900G"}, "KV"),
        ({"SPECULATIVE_CONFIG": '{"method": "ngram", "nope": 1}'}, "nope"),
    ],
)
async def test_a_worker_that_cannot_start_answers_each_job_with_the_reason(
    tmp_path: Path,
    rack: Rack,
    environments: Environments,
    variables: dict[str, str],
    says: str,
) -> None:
    await rack.close()
    environment = environments["tiny plain"] | variables
    async with an_endpoint(tmp_path, environment=environment) as endpoint:
        for _ in range(2):
            job = await endpoint.answered({"prompt": "x"})
            assert job.status is Status.FAILED
            message = json.loads(str(job.error))["error"]["message"]
            assert says in message
            assert not any(word in message for word in ("Traceback", "/does", "/models"))
        os.kill(endpoint.worker.pid, signal.SIGTERM)
        assert await endpoint.exit_status(within=SOON) == 1


async def test_on_start_failure_exit_ends_the_worker(
    tmp_path: Path, environments: Environments
) -> None:
    environment = {"MODEL_NAME": "/does/not/exist", "ON_START_FAILURE": "exit"}
    with pytest.raises(AssertionError, match="there is no such folder"):
        async with an_endpoint(tmp_path, environment=environment):
            pass
