"""Fields that speculation cannot serve, over jobs: refused, or dropped and noted."""

import json
from contextlib import aclosing
from typing import Any

import pytest

from specworker import legacy, serving
from specworker.engine import Engine
from specworker.settings import Settings
from tests.engines import complete, events, outputs

PROMPT = "Red, green and blue. Red, green and blue. Red, green and"
CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_completion_tokens": 12}
COMPLETION = {"prompt": PROMPT, "max_tokens": 12}
RESPONSE = {"input": PROMPT, "max_output_tokens": 12}
ROUTES = (
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", COMPLETION),
    ("/v1/responses", RESPONSE),
)
MIN_P, BIAS = {"min_p": 0.2, "temperature": 0.8}, {"logit_bias": {"5": 3}, "temperature": 0}

every_route = pytest.mark.parametrize(("route", "body"), ROUTES, ids=[at for at, _ in ROUTES])
streamed = pytest.mark.parametrize("stream", [False, True])


@pytest.mark.engine("ngram")
@every_route
@streamed
@pytest.mark.parametrize(
    ("asked", "names"), [(MIN_P, "min_p: "), (BIAS, "logit_bias: "), (MIN_P | BIAS, "logit_bias: ")]
)
async def test_a_request_is_refused_by_name_before_the_engine_sees_it(
    engine: Engine,
    route: str,
    body: dict[str, Any],
    stream: bool,
    asked: dict[str, Any],
    names: str,
) -> None:
    job = {"route": route, "body": {**body, **asked, "stream": stream}}
    (output,) = await outputs(engine, job)
    error = json.loads(output["error"])["error"]
    assert (error["code"], error["type"]) == (400, "BadRequestError")
    assert error["message"].startswith(names)
    assert f"{error['param']}: " == names
    assert "leave it out" in error["message"]
    assert "SPECULATIVE_UNSUPPORTED=drop" in error["message"]


@pytest.mark.engine("ngram")
@pytest.mark.parametrize(
    "asked",
    [{"min_p": 0.2, "temperature": 0}, {"min_p": 0}, {"min_p": 1e-6}, {"logit_bias": {}}],
    ids=str,
)
async def test_what_vllm_serves_is_served_and_not_noted(
    engine: Engine, asked: dict[str, Any]
) -> None:
    answer = await complete(engine, PROMPT, max_tokens=4, **asked)
    assert "notes" not in answer["metrics"]


@pytest.mark.engine("ngram")
async def test_a_job_of_a_prompt_is_refused_too(engine: Engine) -> None:
    (output,) = await outputs(engine, {"prompt": PROMPT, "sampling_params": MIN_P})
    assert json.loads(output["error"])["error"]["param"] == "min_p"


@pytest.mark.engine("self-draft")
@every_route
async def test_a_dropped_field_is_noted_in_the_answer(
    engine: Engine, route: str, body: dict[str, Any]
) -> None:
    (answer,) = await outputs(engine, {"route": route, "body": {**body, **MIN_P, **BIAS}})
    (note,) = answer["metrics"]["notes"]  # at temperature 0 min_p has no effect
    assert note.startswith("logit_bias: left out")
    (answer,) = await outputs(engine, {"route": route, "body": {**body, **BIAS, **MIN_P}})
    assert [note.partition(":")[0] for note in answer["metrics"]["notes"]] == [
        "min_p",
        "logit_bias",
    ]


@pytest.mark.engine("self-draft")
async def test_the_figures_of_the_request_stay_beside_the_notes(engine: Engine) -> None:
    answer = await complete(engine, PROMPT, max_tokens=12, **BIAS)
    assert answer["metrics"]["notes"]
    assert answer["metrics"]["speculative_decoding"]["num_spec_tokens"] == 8


@pytest.mark.engine("self-draft")
@every_route
async def test_a_dropped_field_is_noted_in_the_first_event_of_a_stream(
    engine: Engine, route: str, body: dict[str, Any]
) -> None:
    asked = {**body, **MIN_P, "stream": True}
    pieces = "".join(await outputs(engine, {"route": route, "body": asked}))
    lines = [line for line in pieces.split("\n") if line.startswith("data: {")]
    first, *rest = [json.loads(line.removeprefix("data: ")) for line in lines]
    (note,) = first["metrics"]["notes"]
    assert note.startswith("min_p: left out")
    assert len(rest) > 1
    assert not any("notes" in (event.get("metrics") or {}) for event in rest)


@pytest.mark.engine("self-draft")
async def test_the_text_is_that_of_the_request_without_the_field(engine: Engine) -> None:
    plain = await complete(engine, PROMPT, max_tokens=24)
    biased = await complete(engine, PROMPT, max_tokens=24, logit_bias={"5": 50})
    assert biased["choices"] == plain["choices"]


@pytest.mark.engine("self-draft")
@every_route
async def test_a_default_of_the_models_is_dropped_without_a_word_in_every_answer(
    engine: Engine, route: str, body: dict[str, Any]
) -> None:
    """The configuration has min_p 0.05 by default, for which vLLM refuses every request."""
    (answer,) = await outputs(engine, {"route": route, "body": {**body, "temperature": 0.8}})
    assert "error" not in answer or answer["error"] is None
    assert "notes" not in (answer.get("metrics") or {})


@pytest.mark.engine("self-draft")
async def test_a_route_of_another_form_is_served_where_the_models_default_is_dropped(
    engine: Engine,
) -> None:
    body = {"messages": CHAT["messages"], "max_tokens": 4, "temperature": 0.8}
    (answer,) = await outputs(engine, {"route": "/v1/messages", "body": body})
    assert answer["type"] == "message"


@pytest.mark.engine("self-draft")
@streamed
async def test_notes_are_in_the_output_of_older_workers(engine: Engine, stream: bool) -> None:
    shapes = legacy.Shapes.of(Settings.from_env({"LEGACY_NATIVE_OUTPUT": "true"}))
    job = {"prompt": PROMPT, "stream": stream, "sampling_params": {**MIN_P, "max_tokens": 24}}
    async with aclosing(serving.outputs(engine, job, 0.05, shapes=shapes)) as generator:
        first, *_ = [output async for output in generator]
    (note,) = first["metrics"]["notes"]
    assert note.startswith("min_p: left out")


@pytest.mark.engine("self-draft")
async def test_a_stream_whose_usage_was_not_asked_for_keeps_its_notes(engine: Engine) -> None:
    job = {"route": "/v1/completions", "body": {**COMPLETION, **MIN_P, "stream": True}}
    first, *rest = events(await outputs(engine, job))
    assert first["choices"]
    assert first["metrics"]["notes"]
    assert all(event["choices"] for event in rest)
