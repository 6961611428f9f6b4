"""A real worker over HTTP: its own process, a real engine, real clients."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import openai
import psutil
import pytest

from specworker.door import Door
from specworker.engine import Engine
from specworker.settings import Settings
from tests.engines import Rack, events, outputs
from tests.ports import on_a_port
from tests.servers import ENGINE_SOON, ROOT, SOON, Process, process

of_its_own = pytest.mark.engine("of its own")

KEY = "sk-for-the-tests"
BEARER = {"authorization": f"Bearer {KEY}"}
SAY: Any = [{"role": "user", "content": "Say: one two three one two three one two"}]
ENDLESS: Any = {"model": "demo", "prompt": "1, 2,", "max_tokens": 900, "ignore_eos": True}
PARAMETERS: Any = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["celsius", "kelvin"]}},
    "required": ["unit"],
}
TOOL: Any = {"type": "function", "function": {"name": "read", "parameters": PARAMETERS}}
ASKS_FOR_TOOL: Any = [{"role": "user", "content": "What is the temperature in celsius?"}]

Environments = Mapping[str, dict[str, str]]


@contextmanager
def serving(folder: Path, *arguments: str, **environment: str) -> Iterator[Process]:
    """A worker with vLLM's caches of the machine, so that it starts sooner."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    with process(folder, *arguments, XDG_CACHE_HOME=cache, **environment) as worker:
        worker.client.headers.update(BEARER)
        yield worker


@pytest.fixture(scope="module")
async def server(
    tmp_path_factory: pytest.TempPathFactory, rack: Rack, environments: Environments
) -> AsyncIterator[Process]:
    """A pod's worker that is ready, of which every ping since its start said what it was."""
    await rack.close()
    environment = environments["ngram"] | {"MODE": "pod", "API_KEY": KEY, "MAX_BODY_MB": "1"}
    with serving(tmp_path_factory.mktemp("server"), **environment) as worker:
        assert worker.first == 204
        early = worker.client.get("/v1/models")
        assert early.status_code == 503
        assert early.headers["retry-after"]
        await asyncio.to_thread(worker.ping_turns, 200, ENGINE_SOON)
        yield worker


@pytest.fixture
async def client(server: Process) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{server.client.base_url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as made:
        yield made


def metric(worker: Process, name: str) -> float:
    lines = worker.client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


async def running_falls_to_zero(worker: Process, within: float) -> bool:
    deadline = time.monotonic() + within
    while metric(worker, "vllm:num_requests_running"):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


# What the door lets through.


@of_its_own
async def test_every_route_needs_the_key_but_health_and_the_page(server: Process) -> None:
    routes = server.client.get("/openapi.json").json()["paths"]
    async with httpx.AsyncClient(base_url=server.client.base_url) as stranger:
        for path in (*routes, "/docs", "/redoc", "/openapi.json", "/metrics", "/nothing"):
            if path == "/ping":
                continue
            for method in ("GET", "POST", "PATCH", "OPTIONS"):
                assert (await stranger.request(method, path)).status_code == 401, (method, path)
        assert (await stranger.get("/ping")).status_code == 200
        assert (await stranger.get("/")).headers["content-type"].startswith("text/html")
    assert server.client.get("/v1/models").json()["data"][0]["id"] == "demo"


@of_its_own
async def test_the_routes_of_vllm_and_of_the_worker_are_served_and_documented(
    server: Process,
) -> None:
    routes = server.client.get("/openapi.json").json()["paths"]
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize", "/metrics"):
        assert path in routes
    assert set(routes["/speculation"]) == {"get", "patch"}
    assert "/openapi.json" in server.client.get("/docs").text
    for path in ("/health", "/version", "/load", "/speculation"):
        assert server.client.get(path).status_code == 200
    assert "vllm:spec_decode_num_drafts" in server.client.get("/metrics").text


@of_its_own
async def test_routes_that_run_code_or_reset_state_are_not_served(server: Process) -> None:
    for path in ("/collective_rpc", "/reset_prefix_cache", "/sleep", "/wake_up", "/pause"):
        assert server.client.post(path, json={}).status_code == 404, path
    for path in ("/start_profile", "/v1/load_lora_adapter", "/update_weights", "/abort_requests"):
        assert server.client.post(path, json={}).status_code == 404, path
    assert server.client.get("/server_info").status_code == 404


@of_its_own
async def test_a_body_above_the_limit_is_refused_and_one_below_is_served(server: Process) -> None:
    def pieces(count: int) -> Iterator[bytes]:
        yield b'{"model": "demo", "max_tokens": 1, "prompt": "'
        yield from (b" " * 64 * 1024 for _ in range(count))
        yield b'1"}'

    json_body = {"content-type": "application/json"}
    for content in (b"".join(pieces(17)), pieces(17)):
        answer = server.client.post("/v1/completions", content=content, headers=json_body)
        assert answer.status_code == 413
        assert "MAX_BODY_MB" in answer.json()["error"]["message"]
    answer = server.client.post("/v1/completions", content=pieces(1), headers=json_body)
    assert "MAX_BODY_MB" not in answer.text
    assert answer.status_code == 400  # more tokens than the model takes


@of_its_own
async def test_a_client_that_hangs_up_aborts_its_request(server: Process) -> None:
    for stream in (True, False):
        before = server.log.count("status=499")
        generated = metric(server, "vllm:generation_tokens_total")
        async with httpx.AsyncClient(base_url=server.client.base_url, headers=BEARER) as client:
            body = ENDLESS | {"stream": stream}
            asking = asyncio.create_task(client.post("/v1/completions", json=body))
            while metric(server, "vllm:num_requests_running") < 1:
                await asyncio.sleep(0.02)
            asking.cancel()
        assert await running_falls_to_zero(server, 2)
        assert metric(server, "vllm:generation_tokens_total") - generated < 900
        assert server.log.count("status=499") == before + 1


# Clients that know nothing of this server.


@of_its_own
async def test_openais_client_chats_streams_and_calls_tools(client: openai.AsyncOpenAI) -> None:
    asked: Any = {"model": "demo", "messages": SAY, "max_completion_tokens": 24, "temperature": 0}
    whole = await client.chat.completions.create(**asked)
    assert whole.choices[0].message.content
    assert (whole.model_extra or {})["metrics"]["speculative_decoding"]["num_spec_tokens"] == 3
    text = ""
    async for chunk in await client.chat.completions.create(**asked, stream=True):
        text += chunk.choices[0].delta.content or ""
    assert text == whole.choices[0].message.content
    answer = await client.chat.completions.create(
        model="demo",
        messages=ASKS_FOR_TOOL,
        tools=[TOOL],
        tool_choice="required",
        max_completion_tokens=60,
        temperature=0,
    )
    (call, *_) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "read"
    response = await client.responses.create(model="demo", input="Say hi", max_output_tokens=16)
    assert response.output_text


@of_its_own
async def test_openais_client_is_refused_in_its_own_errors(
    server: Process, client: openai.AsyncOpenAI
) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.embeddings.create(model="demo", input="text")
    with pytest.raises(openai.NotFoundError, match="nobody"):
        await client.chat.completions.create(model="nobody", messages=SAY)
    with pytest.raises(openai.AuthenticationError, match="API key"):
        await client.with_options(api_key="sk-wrong").models.list()
    with pytest.raises(openai.APIStatusError) as refused:
        await client.completions.create(model="demo", prompt=" " * 2 * 1024**2)
    assert refused.value.status_code == 413


@of_its_own
async def test_langchain_chats_streams_and_calls_tools(server: Process) -> None:
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    # It takes arguments for an object, which a model this small writes only when it must.
    strict = TOOL | {"function": TOOL["function"] | {"strict": True}}
    async with httpx.AsyncClient() as connections:  # its own are left open
        where: Any = {
            "base_url": f"{server.client.base_url}/v1",
            "api_key": KEY,
            "max_retries": 0,
            "http_async_client": connections,
        }
        model = ChatOpenAI(model="demo", temperature=0, max_completion_tokens=24, **where)
        whole = await model.ainvoke(SAY)
        assert whole.content
        pieces = [piece.content async for piece in model.astream(SAY)]
        assert "".join(map(str, pieces)) == whole.content
        longer = ChatOpenAI(model="demo", temperature=0, max_completion_tokens=120, **where)
        with_tool = longer.bind_tools([strict], tool_choice="required", parallel_tool_calls=False)
        called = await with_tool.ainvoke(ASKS_FOR_TOOL)
        assert called.tool_calls[0]["name"] == "read"
        assert set(called.tool_calls[0]["args"]) == {"unit"}
        embeddings = OpenAIEmbeddings(model="demo", check_embedding_ctx_length=False, **where)
        with pytest.raises(openai.NotFoundError):
            await embeddings.aembed_query("text")


@of_its_own
async def test_litellm_chats_streams_and_calls_tools(server: Process) -> None:
    base = {
        "model": "openai/demo",
        "api_base": f"{server.client.base_url}/v1",
        "api_key": KEY,
    }
    asked = {"messages": SAY, "temperature": 0, "max_tokens": 24}
    tool = {
        "messages": ASKS_FOR_TOOL,
        "temperature": 0,
        "max_tokens": 60,
        "tools": [TOOL],
        "tool_choice": "required",
    }
    command = [sys.executable, "-m", "tests.litellm_client"]
    questions = json.dumps({"base": base, "asked": asked, "tool": tool})
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, input=questions, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    assert answers["whole"]
    assert answers["streamed"] == answers["whole"]
    assert answers["called"] == "read"
    assert answers["embeddings"] == "NotFoundError"


@of_its_own
async def test_whatever_is_sent_to_the_workers_own_routes_is_no_internal_error(
    server: Process,
) -> None:
    import schemathesis

    document = server.client.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=str(server.client.base_url))

    def fuzz(path: str, method: str) -> set[int]:
        statuses = set()

        @hypothesis.given(case=schema[path][method].as_strategy())
        @hypothesis.settings(
            max_examples=60,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        def ask(case: Any) -> None:
            answer = case.call(headers=BEARER)
            statuses.add(answer.status_code)
            assert answer.status_code < 500, answer.text

        ask()
        return statuses

    for path, method in (("/speculation", "GET"), ("/speculation", "PATCH"), ("/ping", "GET")):
        statuses = await asyncio.to_thread(fuzz, path, method)
        assert 200 in statuses
    for content in (b"", b"{", b"[]", b"\xff", b'{"num_speculative_tokens": 1e999}', b"null"):
        assert server.client.patch("/speculation", content=content).status_code == 422
    answer = server.client.patch("/speculation", json={"num_speculative_tokens": 3})
    assert answer.json()["num_speculative_tokens"] == 3


@of_its_own
async def test_the_log_says_what_requests_cost_and_nothing_that_users_wrote(
    server: Process, client: openai.AsyncOpenAI
) -> None:
    asked: Any = {"model": "demo", "prompt": "Xylophones are", "max_tokens": 5}
    whole = await client.completions.create(**asked)
    stream = await client.completions.create(**asked, stream=True)
    names = {whole.id} | {chunk.id async for chunk in stream}
    assert len(names) == 2
    chosen = {"x-request-id": "xylophone"}
    server.client.get("/xylophone?xylophone", headers=chosen)
    server.client.post("/v1/completions", json=asked, headers=chosen)
    for name in names:
        (line,) = [line for line in server.log.splitlines() if name in line]
        assert "route=POST /v1/completions status=200" in line
        for figure in ("prompt=", "completion=5", "ttft=", "tokens/s=", "acceptance length="):
            assert figure in line
    assert "xylophone" not in server.log.lower()
    assert "/ping" not in server.log
    assert KEY not in server.log


# How it ends. The first of these ends the server of the tests above.


@of_its_own
async def test_at_sigterm_streams_finish_and_others_are_asked_to_come_again(
    server: Process, client: openai.AsyncOpenAI
) -> None:
    family = server.family
    stream = await client.completions.create(**_for_openai(ENDLESS | {"max_tokens": 400}))
    text = (await anext(aiter(stream))).choices[0].text
    server.popen.send_signal(signal.SIGTERM)
    await asyncio.to_thread(server.ping_turns, 503)
    late = server.client.post("/v1/completions", json=ENDLESS)
    assert late.status_code == 503
    assert late.headers["retry-after"]
    assert "shutting down" in late.json()["error"]["message"]
    finish = None
    async for chunk in stream:
        text += chunk.choices[0].text
        finish = chunk.choices[0].finish_reason or finish
    assert finish == "length"
    assert await asyncio.to_thread(server.popen.wait, SOON) == 0
    _, alive = psutil.wait_procs(family, timeout=5)
    assert alive == []
    assert not any(line.startswith("Traceback") for line in server.log.splitlines())


def _for_openai(body: Mapping[str, Any]) -> Any:
    known = {name: body[name] for name in ("model", "prompt", "max_tokens")}
    return known | {"stream": True, "extra_body": {"ignore_eos": True}}


@of_its_own
async def test_a_stream_that_does_not_finish_in_time_is_told_so_and_aborted(
    tmp_path: Path, rack: Rack, environments: Environments
) -> None:
    await rack.close()
    environment = environments["tiny ngram"] | {"DRAIN_TIMEOUT_S": "1", "MODE": "lb"}
    with serving(tmp_path, **environment) as worker:
        await asyncio.to_thread(worker.ping_turns, 200, ENGINE_SOON)
        family = worker.family
        body = {"prompt": "w1 w2", "max_tokens": 1000, "ignore_eos": True, "stream": True}
        async with httpx.AsyncClient(base_url=worker.client.base_url, timeout=SOON) as client:
            streams = [
                asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(30)
            ]
            while metric(worker, "vllm:num_requests_running") < 30:
                await asyncio.sleep(0.02)
            worker.popen.send_signal(signal.SIGTERM)
            texts = [(await stream).text for stream in streams]
        assert all(text.endswith("data: [DONE]\n\n") for text in texts)
        cut = [text for text in texts if "before this request was finished" in text]
        assert len(cut) == 30
        assert await asyncio.to_thread(worker.popen.wait, SOON) == 0
        _, alive = psutil.wait_procs(family, timeout=5)
        assert alive == []


@pytest.fixture(scope="module")
async def local_server(
    tmp_path_factory: pytest.TempPathFactory, rack: Rack, environments: Environments
) -> AsyncIterator[Process]:
    """A worker for this machine alone, with vLLM's development routes."""
    await rack.close()
    environment = environments["tiny ngram"] | {"VLLM_SERVER_DEV_MODE": "true"}
    with serving(tmp_path_factory.mktemp("local"), "--serve", **environment) as worker:
        await asyncio.to_thread(worker.ping_turns, 200, ENGINE_SOON)
        yield worker


@of_its_own
async def test_on_ones_own_machine_no_key_is_needed_and_nobody_else_gets_in(
    local_server: Process,
) -> None:
    async with httpx.AsyncClient(base_url=local_server.client.base_url) as stranger:
        assert (await stranger.get("/v1/models")).status_code == 200
    listening = psutil.Process(local_server.popen.pid).net_connections("inet")
    places = {place.laddr for place in listening if place.status == psutil.CONN_LISTEN}
    assert local_server.client.base_url.port in {place.port for place in places}
    assert {place.ip for place in places} == {"127.0.0.1"}


@of_its_own
async def test_development_routes_are_served_where_they_are_asked_for(
    local_server: Process,
) -> None:
    assert local_server.client.get("/server_info").status_code == 200
    assert local_server.client.post("/reset_prefix_cache").status_code == 200
    assert "VLLM_SERVER_DEV_MODE=true: whoever is let in can run code" in local_server.log


@of_its_own
async def test_a_killed_engine_fails_health_and_requests_and_ends_the_worker(
    local_server: Process,
) -> None:
    worker, family = local_server, local_server.family
    (core,) = [child for child in family if "EngineCore" in " ".join(child.cmdline())]
    body = {"prompt": "w1 w2", "max_tokens": 1000, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=worker.client.base_url, timeout=SOON) as client:
        stream, whole = (
            asyncio.create_task(client.post("/v1/completions", json=body | {"stream": streams}))
            for streams in (True, False)
        )
        while metric(worker, "vllm:num_requests_running") < 2:
            await asyncio.sleep(0.02)
        core.kill()
        await asyncio.to_thread(worker.ping_turns, 503)
        assert (await client.get("/health")).status_code == 503
        late = await client.post("/v1/completions", json=body)
        assert late.status_code == 503
        assert "engine has died" in late.json()["error"]["message"]
        assert (await whole).status_code >= 500
        assert '"error"' in (await stream).text
    assert await asyncio.to_thread(worker.popen.wait, SOON) == 1
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


@of_its_own
async def test_a_worker_that_is_told_to_stop_while_it_loads_leaves_nothing_behind(
    tmp_path: Path, rack: Rack, environments: Environments
) -> None:
    await rack.close()
    with serving(tmp_path, **environments["tiny plain"], MODE="lb") as worker:
        while not worker.has_engine():
            assert worker.client.get("/ping").status_code == 204
            await asyncio.sleep(0.05)
        family = worker.family
        assert await asyncio.to_thread(worker.stop) == 0
        _, alive = psutil.wait_procs(family, timeout=5)
        assert alive == []


# One engine behind two doors.


@pytest.mark.engine("ngram")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models", None),
        ("/v1/completions", {"prompt": "One, two,", "max_tokens": 12, "temperature": 0}),
        ("/v1/completions", {"prompt": ["One,", "Two,"], "n": 2, "seed": 3, "max_tokens": 6}),
        ("/v1/completions", {"prompt": "One,", "stream": True, "temperature": 0, "max_tokens": 9}),
        ("/v1/chat/completions", {"messages": SAY, "max_tokens": 12, "temperature": 0}),
        (
            "/v1/chat/completions",
            {
                "messages": ASKS_FOR_TOOL,
                "tools": [TOOL],
                "tool_choice": "required",
                "max_tokens": 60,
                "temperature": 0,
            },
        ),
        ("/v1/responses", {"input": "Say hi", "max_output_tokens": 8, "temperature": 0}),
        ("/v1/completions", {"prompt": "x", "max_tokens": -1}),
        ("/v1/completions", {"model": "nobody", "prompt": "x"}),
        ("/tokenize", {"prompt": "One, two,"}),
        ("/speculation", None),
    ],
)
async def test_a_request_is_answered_alike_through_both_doors(
    engine: Engine, path: str, body: Any
) -> None:
    job = {"route": path} if body is None else {"route": path, "body": body}
    through_queue = await outputs(engine, job)
    door = Door(Settings.from_env({}))
    door.guard.accept(None)
    door.front.serve(await engine.app())
    async with on_a_port(door) as client:
        answer = await (client.get(path) if body is None else client.post(path, json=body))
    if isinstance(through_queue[0], str):
        told: Any = events(through_queue)
        said: Any = events([answer.text])
    else:
        (told,), said = through_queue, answer.json()
        assert ("error" in told) == (answer.status_code >= 400)
        told = json.loads(told["error"]) if "error" in told else told
    assert lasting(said) == lasting(told)


def lasting(value: Any) -> Any:
    """An answer without what is another each time: names, times and figures of the moment."""
    if isinstance(value, dict):
        passing = {"id", "created", "created_at", "completed_at", "windows", "recent", "verdict"}
        return {name: lasting(item) for name, item in value.items() if name not in passing}
    return [lasting(item) for item in value] if isinstance(value, list) else value
