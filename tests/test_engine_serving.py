"""Jobs through the real engine: streams, errors, and requests that nobody waits for."""

import asyncio
import json
import time
from contextlib import aclosing
from typing import Any

import pytest
from vllm.v1.metrics.reader import Gauge, get_metrics_snapshot

from specworker import legacy, serving
from specworker.engine import Engine
from specworker.job_record import JobRecord
from specworker.settings import Settings
from tests.engines import complete, events, outputs

pytestmark = pytest.mark.engine("ngram")

REPEATED = "さくら🌸 と 🗻 ふじ。 さくら🌸 と 🗻 ふじ。 さくら🌸 と"
ENDLESS = {"max_tokens": 900, "ignore_eos": True, "temperature": 0}


def running() -> float:
    """Requests in the engine's batch, by its own gauge."""
    gauges = (
        metric.value
        for metric in get_metrics_snapshot()
        if isinstance(metric, Gauge) and metric.name == "vllm:num_requests_running"
    )
    return float(sum(gauges))


async def becomes(count: int, within: float) -> bool:
    deadline = time.monotonic() + within
    while running() != count and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return running() == count


def error_of(output: Any) -> dict[str, Any]:
    """OpenAI's error object in the one output of a failed job."""
    assert list(output) == ["error"]
    error = json.loads(output["error"])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


async def test_a_stream_is_whole_events_and_joins_to_the_text_without_streaming(
    engine: Engine,
) -> None:
    body = {"max_tokens": 48, "temperature": 0, "ignore_eos": True}
    whole = await complete(engine, REPEATED, **body)
    pieces = await outputs(engine, {"prompt": REPEATED, "stream": True, "sampling_params": body})
    assert len(pieces) > 1
    assert all(piece.endswith("\n\n") for piece in pieces)
    assert pieces[0].count("data: ") == 1
    text = "".join(event["choices"][0]["text"] for event in events(pieces))
    assert text == whole["choices"][0]["text"]
    assert "🗻ふじ" in text


async def test_a_stream_begins_before_the_answer_is_complete(engine: Engine) -> None:
    job = {"prompt": REPEATED, "stream": True, "sampling_params": ENDLESS | {"max_tokens": 200}}
    started = time.monotonic()
    async with aclosing(serving.outputs(engine, job, 0.05)) as generator:
        first = await anext(generator)
        until_first = time.monotonic() - started
        rest = [piece async for piece in generator]
    assert first.startswith("data: ")
    assert until_first < (time.monotonic() - started) / 2
    assert len(rest) > 3


async def test_chat_streams_carry_usage_and_the_acceptance_of_the_request(engine: Engine) -> None:
    body = {
        "messages": [{"role": "user", "content": "Say it twice: one two three, one two three"}],
        "max_tokens": 24,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    job = {"openai_route": "/v1/chat/completions", "openai_input": body}
    streamed = events(await outputs(engine, job))
    assert streamed[-1]["usage"]["completion_tokens"] <= 24
    metrics = streamed[-1]["metrics"]["speculative_decoding"]
    assert metrics["num_spec_tokens"] == 3
    assert metrics["num_accepted_draft_tokens"] <= metrics["num_draft_tokens"]


async def test_a_stream_whose_client_wants_no_usage_has_none_and_is_counted_all_the_same(
    engine: Engine,
) -> None:
    body = {"prompt": REPEATED, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    job = {"route": "/v1/completions", "body": body | {"stream": True}}
    record = JobRecord()
    async with aclosing(serving.outputs(engine, job, 0.05, record)) as generator:
        streamed = events([piece async for piece in generator])
    assert all(event["choices"] for event in streamed)
    assert record.usage["completion_tokens"] == 24
    assert record.speculation["num_draft_tokens"] > 0
    assert "acceptance length=" in record.line


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_an_abandoned_stream_frees_the_engine(engine: Engine, how: str) -> None:
    job = {"prompt": "Count: 1, 2, 3,", "stream": True, "sampling_params": ENDLESS}
    pieces: list[str] = []

    async def consume() -> None:
        async with aclosing(serving.outputs(engine, job, 0.05)) as generator:
            async for piece in generator:
                pieces.append(piece)
                if how == "closed" and len(pieces) == 3:
                    return

    consumer = asyncio.create_task(consume())
    assert await becomes(1, within=5)
    if how == "cancelled":
        while len(pieces) < 3:
            await asyncio.sleep(0.01)
        consumer.cancel()
    await asyncio.gather(consumer, return_exceptions=True)
    assert await becomes(0, within=2)
    assert "[DONE]" not in "".join(pieces)


async def test_a_job_that_nobody_waits_for_frees_the_engine(engine: Engine) -> None:
    job = {"prompt": "Count: 1, 2, 3,", "sampling_params": ENDLESS}
    waiting = asyncio.create_task(outputs(engine, job))
    assert await becomes(1, within=5)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await becomes(0, within=2)


CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("job_input", "code", "says"),
    [
        pytest.param({}, 400, "openai_route", id="empty"),
        pytest.param(None, 400, "openai_route", id="none"),
        pytest.param({"message": "hi"}, 400, "message", id="wrong key"),
        pytest.param({"prompt": "x", "max_tokens": 5}, 400, "sampling_params", id="misplaced key"),
        pytest.param({"prompt": 5}, 400, "", id="prompt of a wrong type"),
        pytest.param({"messages": "hi"}, 400, "", id="messages of a wrong type"),
        pytest.param(
            {"route": "/v1/chat/completions", "body": CHAT | {"model": "no-such-model"}},
            404,
            "no-such-model",
            id="unknown model",
        ),
        pytest.param(
            {"prompt": "x", "sampling_params": {"max_tokens": -1}}, 400, "max_tokens", id="negative"
        ),
        pytest.param(
            {"prompt": "x", "sampling_params": {"temperature": "hot"}}, 400, "", id="not a number"
        ),
        pytest.param({"prompt": "x" * 10_000_000}, 400, "", id="ten megabytes"),
        pytest.param({"route": "/v1/nothing/here"}, 404, "", id="unknown route"),
        pytest.param({"route": "/v1/models", "method": "PUT"}, 405, "", id="unknown method"),
        pytest.param(
            {"prompt": "x", "sampling_params": {"min_p": 0.2, "temperature": 1}},
            400,
            "min_p",
            id="what speculation cannot serve",
        ),
    ],
)
async def test_bad_input_fails_its_own_job_alone_with_openais_error(
    engine: Engine, job_input: Any, code: int, says: str
) -> None:
    neighbour = asyncio.create_task(complete(engine, "One, two,", max_tokens=16, ignore_eos=True))
    (output,) = await outputs(engine, job_input)
    error = error_of(output)
    assert error["code"] == code
    assert says in error["message"]
    assert "Traceback" not in output["error"]
    assert (await neighbour)["usage"]["completion_tokens"] == 16
    assert not engine.client.errored


@pytest.mark.parametrize(
    ("job_input", "kind"),
    [
        ({"openai_route": "/v1/models"}, "list"),
        ({"openai_route": "v1/models", "openai_input": {}}, "list"),
        ({"openai_input": CHAT | {"max_tokens": 4}}, "chat.completion"),
        (
            {"route": "/v1/completions", "body": {"prompt": "Hi", "max_tokens": 4}},
            "text_completion",
        ),
        ({"prompt": "Hi", "sampling_params": {"max_tokens": 4}}, "text_completion"),
        ({"prompt": "Hi", "apply_chat_template": True}, "chat.completion"),
        (CHAT | {"prompt": "ignored", "sampling_params": {"max_tokens": 4}}, "chat.completion"),
    ],
)
async def test_every_documented_shape_is_answered(
    engine: Engine, job_input: Any, kind: str
) -> None:
    (answer,) = await outputs(engine, job_input)
    assert answer["object"] == kind


async def test_a_prompt_without_a_maximum_stops_at_the_documented_one(engine: Engine) -> None:
    job = {"prompt": REPEATED, "sampling_params": {"ignore_eos": True, "temperature": 0}}
    (answer,) = await outputs(engine, job)
    assert answer["usage"]["completion_tokens"] == 100
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_output_of_older_workers_has_the_same_text_and_true_counts(
    engine: Engine, stream: bool
) -> None:
    body = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
    whole = await complete(engine, REPEATED, **body)
    shapes = legacy.Shapes.of(Settings.from_env({"LEGACY_NATIVE_OUTPUT": "true"}))
    job = {"prompt": REPEATED, "stream": stream, "sampling_params": body}
    async with aclosing(serving.outputs(engine, job, 0.05, shapes=shapes)) as generator:
        pieces = [output async for output in generator]
    text = "".join("".join(piece["choices"][0]["tokens"]) for piece in pieces)
    assert text == whole["choices"][0]["text"]
    assert pieces[-1]["usage"] == {"input": whole["usage"]["prompt_tokens"], "output": 40}
    assert (len(pieces) > 1) == stream


async def test_a_stream_of_parsed_chunks_has_the_same_text(engine: Engine) -> None:
    shapes = legacy.Shapes.of(Settings.from_env({"RAW_OPENAI_OUTPUT": "0"}))
    body = {"prompt": REPEATED, "max_tokens": 24, "temperature": 0, "stream": True}
    job = {"openai_route": "/v1/completions", "openai_input": body}
    async with aclosing(serving.outputs(engine, job, 0.05, shapes=shapes)) as generator:
        chunks = [chunk async for output in generator for chunk in output]
    whole = await complete(engine, REPEATED, max_tokens=24)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]


async def test_an_error_in_a_stream_fails_the_job_after_its_event(engine: Engine) -> None:
    body = {"prompt": "x", "allowed_token_ids": [10**7], "stream": True}
    pieces = await outputs(engine, {"route": "/v1/completions", "body": body})
    assert '"error"' in pieces[0]
    assert pieces[-2].endswith("data: [DONE]\n\n")
    assert "allowed_token_ids" in error_of(pieces[-1])["message"]
