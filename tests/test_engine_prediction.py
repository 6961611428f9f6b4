"""Predicted outputs through OpenAI's client: the same text in fewer steps, and what usage says."""

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from specworker.door import Door
from specworker.engine import Engine
from specworker.settings import Settings
from tests.engines import events, outputs
from tests.ports import on_a_port

MESSAGES: Any = [{"role": "user", "content": "Write a short poem about the sea."}]
ASKED: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "max_completion_tokens": 48}
GREEDY: dict[str, Any] = {**ASKED, "temperature": 0}
#: What `plain` was answered.
PLAIN: list[ChatCompletion] = []

pytestmark = pytest.mark.engine("ngram")


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's own client before the worker's door."""
    door = Door(Settings())
    door.guard.accept(None)
    door.front.serve(await engine.app())
    door.log.figures = engine.figures
    async with (
        on_a_port(door) as port,
        openai.AsyncOpenAI(
            base_url=f"{str(port.base_url).rstrip('/')}/v1", api_key="none", max_retries=0
        ) as made,
    ):
        yield made


@pytest.fixture
async def plain(client: openai.AsyncOpenAI) -> ChatCompletion:
    """The greedy answer to a request without speculation or prediction; asked for once."""
    if not PLAIN:
        off = {"speculation": {"enabled": False}}
        PLAIN.append(await client.chat.completions.create(**GREEDY, extra_body=off))
    return PLAIN[0]


def text(answer: ChatCompletion) -> str:
    return answer.choices[0].message.content or ""


def steps(answer: ChatCompletion) -> int:
    """Verification steps that had a draft."""
    metrics: dict[str, Any] = (answer.model_extra or {})["metrics"]
    return int(metrics["speculative_decoding"]["num_spec_steps"])


def figures(usage: Any) -> tuple[int, int]:
    details = usage.completion_tokens_details
    return details.accepted_prediction_tokens, details.rejected_prediction_tokens


def predicting(content: Any) -> Any:
    return {"prediction": {"type": "content", "content": content}}


async def test_a_right_prediction_is_accepted_and_needs_fewer_steps(
    client: openai.AsyncOpenAI, plain: ChatCompletion
) -> None:
    answer = await client.chat.completions.create(**GREEDY, **predicting(text(plain)))
    assert text(answer) == text(plain)
    accepted, rejected = figures(answer.usage)
    assert answer.usage
    assert answer.usage.completion_tokens == 48
    assert 46 <= accepted <= 48
    assert rejected <= 2
    assert steps(answer) <= 48 / 4 + 2
    figured = (answer.model_extra or {})["metrics"]["speculative_decoding"]
    assert figured["num_accepted_draft_tokens"] >= 0.9 * figured["num_draft_tokens"]


async def test_an_edited_prediction_is_found_again_after_the_edit(
    client: openai.AsyncOpenAI, plain: ChatCompletion
) -> None:
    words = text(plain).split(" ")
    edited = " ".join([*words[:8], "Constantinople", "and", *words[9:]])
    parts = [{"type": "text", "text": edited[:40]}, {"type": "text", "text": edited[40:]}]
    answer = await client.chat.completions.create(**GREEDY, **predicting(parts))
    assert text(answer) == text(plain)
    accepted, rejected = figures(answer.usage)
    assert 35 <= accepted < 48
    assert 2 <= rejected < 12
    assert steps(answer) < 24


async def test_an_unrelated_prediction_changes_nothing(
    client: openai.AsyncOpenAI, plain: ChatCompletion
) -> None:
    other = "def area(width: int, height: int) -> int:\n    return width * height\n" * 3
    answer = await client.chat.completions.create(**GREEDY, **predicting(other))
    assert text(answer) == text(plain)
    accepted, rejected = figures(answer.usage)
    assert accepted < 8
    assert rejected > 30


@pytest.mark.parametrize("continuous", [False, True])
async def test_a_stream_says_the_same_where_it_says_usage(
    client: openai.AsyncOpenAI, plain: ChatCompletion, continuous: bool
) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": continuous}
    stream = await client.chat.completions.create(
        **GREEDY, **predicting(text(plain)), stream=True, stream_options=options
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text(plain)
    told = [figures(chunk.usage) for chunk in chunks if chunk.usage]
    assert len(told) == (len(chunks) if continuous else 1)
    assert told == sorted(told)
    assert {sum(one) for one in told} == {sum(told[-1])}
    assert 46 <= told[-1][0] <= 48


async def test_each_of_several_choices_follows_the_prediction_by_itself(
    client: openai.AsyncOpenAI, plain: ChatCompletion
) -> None:
    asked: Any = {**ASKED, "n": 2, "temperature": 1, "seed": 7, "logprobs": True}
    greedy: Any = {"extra_body": {"top_k": 1}}
    answer = await client.chat.completions.create(**asked, **greedy, **predicting(text(plain)))
    assert [choice.message.content for choice in answer.choices] == [text(plain)] * 2
    accepted, rejected = figures(answer.usage)
    assert 92 <= accepted <= 96
    assert rejected <= 4


async def test_an_answer_without_a_prediction_says_nothing_of_one(
    client: openai.AsyncOpenAI, plain: ChatCompletion
) -> None:
    assert plain.usage
    assert plain.usage.completion_tokens_details is None
    answer = await client.chat.completions.create(**GREEDY, **predicting(""))
    assert text(answer) == text(plain)
    assert answer.usage
    assert answer.usage.completion_tokens_details is None


async def test_what_cannot_work_is_refused_by_name(client: openai.AsyncOpenAI) -> None:
    wrong: list[Any] = [
        {"prediction": {"type": "content", "content": 3}},
        {**predicting("x"), "extra_body": {"use_beam_search": True}},
        {**predicting("x"), "extra_body": {"speculation": {"enabled": False}}},
    ]
    for more in wrong:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(**GREEDY, **more)
        assert raised.value.param == "prediction"
        assert "allowed: " in raised.value.message


async def test_jobs_and_the_log_have_the_figures(
    engine: Engine,
    client: openai.AsyncOpenAI,
    plain: ChatCompletion,
    caplog: pytest.LogCaptureFixture,
) -> None:
    body = {**GREEDY, **predicting(text(plain))}
    (answer,) = await outputs(engine, {"openai_input": body})
    whole = answer["usage"]["completion_tokens_details"]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    pieces = await outputs(engine, {"openai_input": {**body, **options}})
    *_, last = events(pieces)
    assert last["usage"]["completion_tokens_details"] == whole
    assert whole["accepted_prediction_tokens"] >= 46
    caplog.set_level(logging.INFO)
    stream = await client.chat.completions.create(**body, stream=True)
    async for chunk in stream:
        assert "prediction_tokens" not in json.dumps(chunk.model_dump())
    (line,) = [one for one in caplog.messages if one.startswith("request ")]
    accepted, rejected = whole.values()
    assert f"prediction accepted={accepted}/{accepted + rejected} " in line
