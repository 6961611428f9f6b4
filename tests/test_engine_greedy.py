"""Greedy text under speculation is the text without it, token by token."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specworker import acceptance
from specworker.engine import Engine
from tests.engines import Rack, complete, events, outputs

PROMPTS = (
    "The cat sat on the mat. The dog sat on the log. The cat sat on the mat. The dog",
    "Once upon a time, in a village by the sea, there lived",
    "The first prime numbers are 2, 3, 5, 7, 11,",
    "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n",
    "こんにちは、世界。こんにちは、世界。こんにちは、",
    "🎉🚀 hello 🎉🚀 hello 🎉🚀 hello",
)
SPECULATING = (
    "ngram",
    "ngram up to two",
    "self-draft",
    "self",
    "medusa up to two",
    "suffix up to two",
)
#: A first token, and five steps of eight drafted tokens and one more.
TOKENS = 1 + 5 * 9

every_method = pytest.mark.parametrize(
    "method", [pytest.param(name, marks=pytest.mark.engine(name)) for name in SPECULATING]
)


@pytest.fixture(scope="session")
def answers() -> dict[str, dict[str, Any]]:
    return {}


async def plain_answers(rack: Rack, answers: dict[str, dict[str, Any]]) -> Mapping[str, Any]:
    """What the engine without speculation answers; asked once."""
    if not answers:
        engine = await rack.get("plain")
        for prompt in PROMPTS:
            answer = await complete(engine, prompt, max_tokens=TOKENS, ignore_eos=True)
            answers[prompt] = answer["choices"][0]
    return answers


@pytest.mark.engine("plain")
async def test_without_speculation_nothing_is_drafted(
    engine: Engine, rack: Rack, answers: dict[str, dict[str, Any]]
) -> None:
    before = acceptance.read()
    expected = await plain_answers(rack, answers)
    figures = acceptance.read() - before
    assert [len(answer["token_ids"]) for answer in expected.values()] == [TOKENS] * len(PROMPTS)
    assert figures.drafted == 0
    assert figures.mean_length == 1


@every_method
async def test_greedy_text_is_that_without_speculation(
    method: str, rack: Rack, answers: dict[str, dict[str, Any]]
) -> None:
    expected = await plain_answers(rack, answers)
    engine = await rack.get(method)
    before = acceptance.read()

    async def ask(prompt: str) -> None:
        answer = await complete(engine, prompt, max_tokens=TOKENS, ignore_eos=True)
        assert answer["choices"][0]["token_ids"] == expected[prompt]["token_ids"], prompt
        assert answer["usage"]["completion_tokens"] == TOKENS

    await ask(PROMPTS[0])  # alone, then the others as one batch
    await asyncio.gather(*(ask(prompt) for prompt in PROMPTS[1:]))
    figures = acceptance.read() - before
    assert figures.drafted > 0
    assert figures.drafted >= figures.accepted == sum(figures.accepted_by_position)


@every_method
async def test_streamed_greedy_text_is_that_without_speculation(
    method: str, rack: Rack, answers: dict[str, dict[str, Any]]
) -> None:
    expected = await plain_answers(rack, answers)
    engine = await rack.get(method)

    async def stream(prompt: str) -> tuple[str, list[int], int]:
        body = {
            "prompt": prompt,
            "temperature": 0,
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        streamed = events(await outputs(engine, {"route": "/v1/completions", "body": body}))
        choices = [event["choices"][0] for event in streamed if event["choices"]]
        ids = [token for choice in choices for token in choice["token_ids"]]
        usage = streamed[-1]["usage"]["completion_tokens"]
        return "".join(choice["text"] for choice in choices), ids, usage

    # In one batch, so that requests of all kinds are verified together.
    streams = await asyncio.gather(*(stream(prompt) for prompt in PROMPTS))
    for prompt, (text, ids, usage) in zip(PROMPTS, streams, strict=True):
        assert text == expected[prompt]["text"], prompt
        assert ids == expected[prompt]["token_ids"], prompt
        assert usage == TOKENS


@pytest.mark.engine("self-draft")
async def test_the_target_as_its_own_draft_has_every_token_accepted(engine: Engine) -> None:
    before = acceptance.read()
    for prompt in PROMPTS:
        await complete(engine, prompt, max_tokens=TOKENS, ignore_eos=True)
    figures = acceptance.read() - before
    assert figures.rate_by_position == (1.0,) * 8
    assert figures.mean_length == 9


@pytest.mark.engine("self")
async def test_layers_of_the_target_draft_what_it_goes_on_to_say(
    engine: Engine, environments: Mapping[str, Mapping[str, str]]
) -> None:
    (draft,) = (Path(environments["self"]["BASE_PATH"]) / "specworker").iterdir()
    assert draft.name.startswith("acme--target-1b-24-layers-")
    before = acceptance.read()
    await complete(engine, PROMPTS[0], max_tokens=TOKENS, ignore_eos=True)
    figures = acceptance.read() - before
    assert 0 < figures.accepted < figures.drafted


@pytest.mark.engine("ngram")
async def test_copied_text_is_drafted_by_lookup(engine: Engine) -> None:
    job = json.loads((Path(__file__).parent.parent / "test_input.json").read_text())
    before = acceptance.read()
    streamed = events(await outputs(engine, job["input"]))
    figures = acceptance.read() - before
    text = "".join(event["choices"][0]["delta"]["content"] for event in streamed[1:-2])
    assert "token by token; only the waiting is shorter" in text
    assert figures.rate > 0.8
    assert figures.mean_length > 3
    metrics = streamed[-1]["metrics"]["speculative_decoding"]
    assert metrics["num_draft_tokens"] == figures.drafted
    assert metrics["num_accepted_draft_tokens"] == figures.accepted
