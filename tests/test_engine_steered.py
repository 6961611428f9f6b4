"""K that adapts, bounds of single requests, and predictions, in one engine and all at once.

Every greedy answer is compared with that of an engine without speculation, token by token. The
KV cache is so small that requests are preempted; prefixes are cached; some requests use a
LoRA adapter, and some are cancelled.
"""

import asyncio
import random
from contextlib import aclosing
from typing import Any

import pytest

from specworker import serving
from specworker.engine import Engine
from specworker.terms import TOKENS
from tests.engines import Rack, events, outputs

PLAIN, STEERED, WITH_DRAFT = "tiny with an adapter", "tiny steered", "tiny steered, with a draft"
ROUTE = "/v1/chat/completions"
REQUESTS, FEWER = 200, 60

Asked = dict[str, Any]


def said(words: list[str]) -> list[dict[str, str]]:
    return [{"role": "user", "content": " ".join(words)}]


def asked(number: int) -> Asked:
    """A request with random settings, of which every token is certain."""
    numbers = random.Random(number)
    words = [f"w{numbers.randrange(32)}" for _ in range(numbers.choice((3, 20, 60, 200)))]
    body: Asked = {
        "model": numbers.choice((None, "adapter")) or "demo",
        "messages": said(words if numbers.random() < 0.7 else words[:3] * (len(words) // 3)),
        "max_tokens": numbers.choice((1, 2, 7, 40, 90)),
        "ignore_eos": numbers.random() < 0.8,
    }
    settings: list[Asked] = [
        {},
        # Of one candidate there is nothing to choose, however it is sampled.
        {"n": 2, "temperature": 1, "top_k": 1},
        {"temperature": 0.7, "top_k": 1, "seed": 3},
        {"logprobs": True, "top_logprobs": 2},
        {"stop": ["w7"]},
        {"stop_token_ids": [5], "min_tokens": min(6, body["max_tokens"])},
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.7, "frequency_penalty": 0.2},
        {"bad_words": ["w3"]},
        {"allowed_token_ids": [1, 2, 3, 5, 8, 13, 21]},
        {"structured_outputs": {"choice": ["w1w2w3w4w5w6w7w8w9", "w9w8w7w6w5w4w3w2w1"]}},
        {"structured_outputs": {"regex": "(w1w2|w3w4){6}w5"}},
        {"stream": True},
    ]
    return body | numbers.choice(settings)


def steered(number: int, body: Asked, answer: list[int]) -> Asked:
    """The same, with what it says about its speculation; `answer` is what comes."""
    numbers = random.Random(-number)
    edited = [token for token in answer if numbers.random() < 0.9]
    predicted = numbers.choice([[], answer, edited, numbers.choices(range(32), k=50)])
    most = numbers.choice((None, None, 0, 1, 6))
    own: Asked = {}
    if predicted and most != 0:
        text = " ".join(f"w{token}" for token in predicted if token < 32)
        own["prediction"] = {"type": "content", "content": text}
    if most is not None:
        own["speculation"] = {"num_speculative_tokens": most} if most else {"enabled": False}
    return body | own


async def whole(engine: Engine, body: Asked) -> list[list[int]]:
    """The tokens of each choice of an answer."""
    body = {"temperature": 0, "return_token_ids": True, **body}
    pieces = await outputs(engine, {"route": ROUTE, "body": body})
    if not body.get("stream"):
        assert "error" not in pieces[0], (pieces[0], body)
        return [choice["token_ids"] for choice in pieces[0]["choices"]]
    choices = [choice for event in events(pieces) for choice in event["choices"]]
    return [[token for choice in choices for token in choice.get("token_ids") or []]]


async def cancelled(engine: Engine, number: int) -> None:
    """A stream that its client leaves."""
    body: Asked = {"messages": said(["w1", "w2"]), "max_tokens": 400, "ignore_eos": True}
    if number % 2:
        body["prediction"] = {"type": "content", "content": f"w{number} " * 50}
    else:
        body["vllm_xargs"] = {TOKENS: number % 5}
    job = {"route": ROUTE, "body": {**body, "stream": True}}
    async with aclosing(serving.outputs(engine, job, 0.01)) as stream:
        async for _ in stream:
            await asyncio.sleep(0.05 * (number % 3))
            return


@pytest.mark.engine("of its own")
async def test_every_answer_is_that_of_plain_decoding(rack: Rack) -> None:
    engine = await rack.get(PLAIN)
    plain = await asyncio.gather(*(whole(engine, asked(number)) for number in range(REQUESTS)))
    assert len({str(tokens) for tokens in plain}) > REQUESTS / 3
    await check(await rack.get(STEERED), plain, REQUESTS)
    await check(await rack.get(WITH_DRAFT), plain, FEWER)


async def check(engine: Engine, plain: list[list[list[int]]], requests: int) -> None:
    before = engine.live.total
    some = asyncio.Semaphore(40)

    async def one(number: int) -> list[list[int]]:
        async with some:
            return await whole(engine, steered(number, asked(number), plain[number][0]))

    leaving = asyncio.gather(*(cancelled(engine, number) for number in range(10)))
    answers = await asyncio.gather(*map(one, range(requests)))
    await leaving
    differing = [number for number in range(requests) if answers[number] != plain[number]]
    assert differing == []
    assert not engine.client.errored
    assert (engine.live.total - before).accepted > requests
    assert await engine.adapting() is not None
