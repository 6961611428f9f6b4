"""One request's own bound on K, beside neighbours that have none: over jobs and every route."""

import asyncio
import json
from typing import Any

import pytest

from specworker.engine import Engine
from tests.engines import complete, events, outputs

PROMPT = "1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2,"
MESSAGES = [{"role": "user", "content": PROMPT}]
OFF, ONE = {"enabled": False}, {"num_speculative_tokens": 1}
#: Routes, and what is asked of them.
ROUTES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {"messages": MESSAGES, "max_completion_tokens": 24}),
    ("/v1/chat/completions/batch", {"messages": [MESSAGES], "max_completion_tokens": 24}),
    ("/v1/completions", {"prompt": PROMPT, "max_tokens": 24}),
    ("/v1/responses", {"input": PROMPT, "max_output_tokens": 24}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 24}),
    ("/invocations", {"messages": MESSAGES, "max_completion_tokens": 24}),
)


def figures(answer: dict[str, Any]) -> dict[str, Any]:
    return dict(answer["metrics"]["speculative_decoding"])


@pytest.mark.engine("ngram")
async def test_each_request_keeps_to_its_own_bound_beside_its_neighbours(engine: Engine) -> None:
    asked: list[dict[str, Any]] = [
        {},
        {"speculation": OFF},
        {"speculation": ONE},
        {"vllm_xargs": {"num_speculative_tokens": 2}},
        {"vllm_xargs": {"num_speculative_tokens": 0}},
        {"speculation": {"num_speculative_tokens": 3}},
    ]
    answers = await asyncio.gather(
        *(complete(engine, PROMPT, max_tokens=40, ignore_eos=True, **one) for one in asked)
    )
    ids = {tuple(answer["choices"][0]["token_ids"]) for answer in answers}
    assert len(ids) == 1
    drafted = [figures(answer)["num_draft_tokens"] for answer in answers]
    steps = [figures(answer)["num_spec_steps"] for answer in answers]
    assert (drafted[1], drafted[4]) == (0, 0)
    assert (steps[1], steps[4]) == (0, 0)
    assert drafted[2] == steps[2] > 10
    assert steps[3] < drafted[3] <= 2 * steps[3]
    assert drafted[0] > 2 * steps[0] > 0
    assert drafted[5] > 2 * steps[5] > 0


@pytest.mark.engine("ngram")
@pytest.mark.parametrize(("route", "body"), ROUTES, ids=[route for route, _ in ROUTES])
async def test_every_route_takes_the_field(engine: Engine, route: str, body: Any) -> None:
    before = engine.live.total.drafted
    job = {"route": route, "body": {**body, "temperature": 0, "speculation": OFF}}
    (answer,) = await outputs(engine, job)
    assert "error" not in answer
    assert engine.live.total.drafted == before


@pytest.mark.engine("ngram")
@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_out_of_bounds_is_refused_by_name_before_the_engine_sees_it(
    engine: Engine, stream: bool
) -> None:
    for asked, param in (
        ({"speculation": {"num_speculative_tokens": 4}}, "speculation"),
        ({"speculation": {"enabled": False, "num_speculative_tokens": 1}}, "speculation"),
        ({"vllm_xargs": {"num_speculative_tokens": 4}}, "vllm_xargs.num_speculative_tokens"),
        ({"vllm_xargs": {"prediction_ids": [10**6]}}, "vllm_xargs.prediction_ids"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ):
        body = {"prompt": PROMPT, "stream": stream, **asked}
        (output,) = await outputs(engine, {"route": "/v1/completions", "body": body})
        error = json.loads(output["error"])["error"]
        assert (error["code"], error["param"]) == (400, param)
        assert "allowed: " in error["message"]


@pytest.mark.engine("ngram")
async def test_a_stream_keeps_to_its_bound(engine: Engine) -> None:
    before = engine.live.total.drafted
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "stream": True}
    pieces = await outputs(
        engine, {"route": "/v1/completions", "body": {**body, "speculation": OFF}}
    )
    assert events(pieces)
    assert engine.live.total.drafted == before


@pytest.mark.engine("plain")
async def test_without_speculation_off_is_served_and_anything_else_refused(engine: Engine) -> None:
    plain = await complete(engine, PROMPT, max_tokens=4)
    off = await complete(engine, PROMPT, max_tokens=4, speculation=OFF)
    assert off["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]
    for asked, param in (
        ({"speculation": ONE}, "speculation"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ):
        body = {"messages": MESSAGES, **asked}
        (output,) = await outputs(engine, {"route": "/v1/chat/completions", "body": body})
        error = json.loads(output["error"])["error"]
        assert (error["code"], error["param"]) == (400, param)
        assert "speculation is off" in error["message"]
