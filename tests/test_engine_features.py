"""What a request can ask for means the same under speculation: greedy answers are identical.

Only how many tokens come at once differs, so each answer is compared with that of an engine
without speculation: text, tokens, reasons to stop, tool calls, usage; logprobs within 1e-4.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import pytest

from specworker import acceptance
from specworker.engine import Engine
from tests.engines import Rack, complete, events, outputs

SPECULATING = ("ngram", "self-draft")
LOGPROB_TOLERANCE = 1e-4

COPIED = "The cat sat on the mat. The dog sat on the log. The cat sat on the mat. The dog"
STOP = "the log. The"
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome", "Copenhagen"]},
        "capital": {"type": "boolean"},
        "rivers": {"type": "array", "items": {"enum": ["Seine", "Tiber"]}, "maxItems": 2},
    },
    "required": ["city", "capital", "rivers"],
    "additionalProperties": False,
}
OBEYS = re.compile(r'\{"city":"(Paris|Rome|Copenhagen)","capital":(true|false),"rivers":')
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
QUESTION = [{"role": "user", "content": "What is the weather in Paris? Ask the tool."}]

#: Completions of COPIED, but for those that say otherwise: name -> what is asked.
COMPLETIONS: Mapping[str, Mapping[str, Any]] = {
    "nothing": {},
    "one token": {"max_tokens": 1},
    "two tokens": {"max_tokens": 2},
    "three tokens": {"max_tokens": 3},
    "stop": {"stop": [STOP]},
    "stop kept": {"stop": [STOP], "include_stop_str_in_output": True},
    "stop of several": {"stop": ["never said", "sat on the mat"]},
    "streamed stop": {"stop": [STOP], "stream": True},
    "streamed stop kept": {"stop": [STOP], "include_stop_str_in_output": True, "stream": True},
    "stop token": {"stop_token_ids": [" log"]},
    "least": {"stop_token_ids": [" log"], "min_tokens": 20},
    "least before a stop": {"stop": [STOP], "min_tokens": 20},
    "bad words": {"bad_words": [" log", "cat"]},
    "allowed tokens": {"allowed_token_ids": [" cat", " dog", " sat", " on", "."]},
    "repetition": {"repetition_penalty": 1.3},
    "frequency": {"frequency_penalty": 1.5},
    "presence": {"presence_penalty": 1.5},
    "logprobs": {"logprobs": 5},
    "logprobs with penalties": {"logprobs": 3, "presence_penalty": 1.0},
    "prompt logprobs": {"prompt_logprobs": 2},
    # With return_token_ids vLLM gives no text of the prompt.
    "echo": {"echo": True, "return_token_ids": False},
    "echo with logprobs": {"echo": True, "logprobs": 2, "return_token_ids": False},
    "regex": {"structured_outputs": {"regex": r" sat on the (mat|moon), \d{3}-\d{4}"}},
    "choice": {"structured_outputs": {"choice": [" sleeps all day long", " barks", " is"]}},
    "json": {"structured_outputs": {"json": SCHEMA}, "max_tokens": 90},
    "all at once": {
        "stop": ["never said"],
        "logprobs": 2,
        "bad_words": [" log"],
        "min_tokens": 8,
        "frequency_penalty": 0.4,
        "seed": 3,
    },
}
CHATS: Mapping[str, Mapping[str, Any]] = {
    "schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": SCHEMA},
        },
    },
    "top logprobs": {"logprobs": True, "top_logprobs": 4},
    "tool named": {
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    },
    "tool required": {"tools": [WEATHER], "tool_choice": "required"},
    "tool maybe": {"tools": [WEATHER], "tool_choice": "auto"},
    "streamed tool": {"tools": [WEATHER], "tool_choice": "required", "stream": True},
}
#: Completions whose prompt, or text, goes beyond the tokens for which the draft is run.
LONG = "".join(f"Line {number} of the log says that all is well. " for number in range(1, 40))
LONGER = {"prompt beyond the window": LONG, "text beyond the window": LONG[: len(LONG) // 2]}
FEATURES = (*COMPLETIONS, *CHATS, *LONGER)

Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def answers() -> dict[str, Answers]:
    """By configuration and feature; each engine is asked everything once, as one batch."""
    return {}


async def token(engine: Engine, word: str) -> int:
    """The one token that is `word`."""
    asked = {"prompt": word, "add_special_tokens": False}
    (answer,) = await outputs(engine, {"route": "/tokenize", "body": asked})
    (number,) = answer["tokens"]
    return int(number)


async def completion(engine: Engine, asked: Mapping[str, Any]) -> dict[str, Any]:
    body = {"prompt": COPIED, "max_tokens": 40, "return_token_ids": True, **asked}
    for name in {"stop_token_ids", "allowed_token_ids"} & body.keys():
        body[name] = [await token(engine, word) for word in body[name]]
    return await answer(engine, "/v1/completions", body)


async def answer(engine: Engine, route: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A greedy answer; that of a stream with the deltas of its one choice put together."""
    body = {"temperature": 0, **asked}
    if body.get("stream"):
        body["stream_options"] = {"include_usage": True}
    pieces = await outputs(engine, {"route": route, "body": body})
    if not body.get("stream"):
        assert "error" not in pieces[0], pieces[0]
        return dict(pieces[0])
    *chunks, last = events(pieces)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    deltas = [choice.get("delta") or {} for choice in choices]
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    return {
        "text": "".join(choice.get("text") or "" for choice in choices),
        "content": "".join(delta.get("content") or "" for delta in deltas),
        "calls": [
            "".join(call.get(part) or "" for call in calls) for part in ("name", "arguments")
        ],
        "finish_reason": choices[-1]["finish_reason"],
        "usage": last["usage"],
    }


async def answered(rack: Rack, answers: dict[str, Answers], method: str) -> Answers:
    """Everything that the engine of a configuration answers; asked once."""
    if method not in answers:
        engine = await rack.get(method)
        chat = {"messages": QUESTION, "max_completion_tokens": 90}
        asked = {name: completion(engine, COMPLETIONS[name]) for name in COMPLETIONS} | {
            name: answer(engine, "/v1/chat/completions", {**chat, **CHATS[name]}) for name in CHATS
        }
        found = dict(zip(asked, await asyncio.gather(*asked.values()), strict=True))
        for name, prompt in LONGER.items():  # alone: the others go on being drafted for
            found[name] = await completion(engine, {"prompt": prompt, "max_tokens": 64})
        answers[method] = found
    return answers[method]


def differs(ours: Any, theirs: Any, place: str = "") -> list[str]:
    """Where two answers differ, but for what vLLM says of itself: ids, times, figures."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return [] if abs(ours - theirs) <= LOGPROB_TOLERANCE else [f"{place}: {ours} {theirs}"]
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        names = ours.keys() - {"id", "created", "metrics", "system_fingerprint"}
        return [
            text for name in names for text in differs(ours[name], theirs[name], f"{place}.{name}")
        ]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [text for at, (a, b) in pairs for text in differs(a, b, f"{place}[{at}]")]
    return [] if ours == theirs else [f"{place}: {ours!r} {theirs!r}"]


@pytest.mark.engine("plain")
async def test_every_field_has_its_effect_without_speculation(
    engine: Engine, rack: Rack, answers: dict[str, Answers]
) -> None:
    found = await answered(rack, answers, "plain")
    first = {name: one["choices"][0] for name, one in found.items() if "choices" in one}
    text = {name: first[name]["text"] for name in COMPLETIONS if name in first}
    said = text["nothing"]
    assert STOP in said
    assert [found[name]["usage"]["completion_tokens"] for name in COMPLETIONS][1:4] == [1, 2, 3]
    assert said.startswith(text["stop"])
    assert text["stop kept"] == text["stop"] + STOP
    assert found["streamed stop"]["text"] == text["stop"]
    assert found["streamed stop kept"]["text"] == text["stop kept"]
    assert first["stop of several"]["stop_reason"] == "sat on the mat"
    assert first["stop token"]["finish_reason"] == "stop"
    for name in ("least", "least before a stop"):
        assert found[name]["usage"]["completion_tokens"] >= 20
    assert "log" not in text["bad words"]
    assert set(text["allowed tokens"].replace(".", "").split()) <= {"cat", "dog", "sat", "on"}
    changed = ("repetition", "frequency", "presence", "bad words", "allowed tokens", "all at once")
    assert [name for name in changed if text[name] == said] == []
    assert len(first["logprobs"]["logprobs"]["token_logprobs"]) == 40
    assert len(first["prompt logprobs"]["prompt_logprobs"]) > 10
    assert text["echo"] == COPIED + said
    assert len(first["echo with logprobs"]["logprobs"]["token_logprobs"]) > 50
    assert text["choice"] in COMPLETIONS["choice"]["structured_outputs"]["choice"]
    assert text["regex"].startswith(" sat on the m")
    for written in (text["json"], first["schema"]["message"]["content"]):
        # The schema allows for blanks, of which a small model finds no end.
        assert OBEYS.match("".join(written.split())), written
    assert len(first["top logprobs"]["logprobs"]["content"][0]["top_logprobs"]) == 4
    for name in ("tool named", "tool required"):
        (call,) = first[name]["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"
    assert found["streamed tool"]["calls"] == ["get_weather", call["function"]["arguments"]]
    assert found["prompt beyond the window"]["usage"]["prompt_tokens"] > 256
    assert found["text beyond the window"]["usage"]["total_tokens"] > 256


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=pytest.mark.engine(name)) for name in SPECULATING]
)
async def test_an_answer_is_that_without_speculation(
    method: str, feature: str, rack: Rack, answers: dict[str, Answers]
) -> None:
    expected = (await answered(rack, answers, "plain"))[feature]
    found = (await answered(rack, answers, method))[feature]
    assert differs(found, expected) == []


@pytest.mark.engine("self-draft")
async def test_a_stop_falls_within_a_step(rack: Rack, answers: dict[str, Answers]) -> None:
    found = await answered(rack, answers, "self-draft")
    for name in ("stop", "stop kept", "streamed stop", "stop token"):
        # A first token, then steps of eight drafted tokens and one more, all accepted.
        assert (found[name]["usage"]["completion_tokens"] - 1) % 9 != 0, name


@pytest.mark.parametrize(
    ("method", "most"),
    [
        pytest.param("ngram", 3, marks=pytest.mark.engine("ngram")),
        pytest.param("self-draft", 8, marks=pytest.mark.engine("self-draft")),
    ],
)
@pytest.mark.parametrize("name", ["logprobs", "regex", "json", "allowed tokens"])
async def test_tokens_are_drafted_whatever_is_asked(
    method: str, most: int, name: str, rack: Rack, answers: dict[str, Answers]
) -> None:
    metrics = (await answered(rack, answers, method))[name]["metrics"]["speculative_decoding"]
    assert metrics["num_spec_tokens"] == most
    assert metrics["num_draft_tokens"] > 0


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=pytest.mark.engine(name)) for name in SPECULATING]
)
async def test_several_choices_are_all_there_and_all_counted(method: str, rack: Rack) -> None:
    engine = await rack.get(method)
    before = acceptance.read()
    found = await complete(engine, COPIED, n=3, temperature=1, max_tokens=20, ignore_eos=True)
    figures = acceptance.read() - before
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2]
    assert [len(choice["token_ids"]) for choice in found["choices"]] == [20, 20, 20]
    assert found["usage"]["completion_tokens"] == figures.generated == 60
    assert figures.drafted > 0
