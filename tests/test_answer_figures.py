"""The layer that puts figures into answers that vLLM leaves without."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from specworker import asgi
from specworker.answer_figures import AnswerFigures
from specworker.live import Finished, Live, Setup

FIGURES = {
    "mean_acceptance_length": 2.0,
    "draft_acceptance_rate": 0.5,
    "acceptance_histogram": [1, 0, 1],
    "num_spec_steps": 2,
    "num_accepted_draft_tokens": 2,
    "num_draft_tokens": 4,
    "num_spec_tokens": 2,
}
EVENTS = "text/event-stream; charset=utf-8"
JSON = "application/json"


class Answering:
    """An application that ends requests of the engine, and then sends pieces of an answer."""

    def __init__(self, live: Live, pieces: Sequence[bytes], kind: str, status: int = 200) -> None:
        self._live = live
        self._pieces = pieces
        self._start: Message = {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", kind.encode())],
        }

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        await send(self._start)
        for piece in self._pieces:
            if b"ends" in piece:
                self._live.finish(Finished("cmpl-1", 0.0, 5), FIGURES)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def ask(
    *pieces: bytes, kind: str = JSON, path: str = "/v1/completions", status: int = 200
) -> tuple[asgi.Response, bytes]:
    """What comes of an answer that is sent in `pieces`."""
    live = Live(Setup("ngram", None, 2))
    layer = AnswerFigures(Answering(live, pieces, kind, status), live)
    async with asgi.request(layer, "POST", path, {}) as response:
        return response, await response.read()


def figures(body: bytes) -> Any:
    return json.loads(body)["metrics"]["speculative_decoding"]


def events(body: bytes) -> list[Any]:
    """The data of a stream's events that have any."""
    texts = [event.partition(b"data: ")[2] for event in body.split(b"\n\n")]
    return [json.loads(text) for text in texts if text.startswith(b"{")]


async def test_a_whole_answer_without_figures_gets_them() -> None:
    body = b'{"id":"cmpl-1","ends":1,"metrics":{"notes":["n"]},"choices":[{"text":"\xc3\xa9"}]}'
    response, answer = await ask(body[:10], body[10:40], body[40:])
    assert figures(answer) == FIGURES
    assert json.loads(answer)["metrics"]["notes"] == ["n"]
    assert json.loads(answer)["choices"] == [{"text": "é"}]
    assert response.headers["content-length"] == str(len(answer))


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":"cmpl-1","ends":1,"metrics":{"speculative_decoding":{"num_spec_steps":7}}}',
        b'{"id":"cmpl-2","ends":1}',
        b'{"ends":1}',
        b'["ends"]',
        b'{"ends',
    ],
)
async def test_any_other_answer_stays_as_it_is(body: bytes) -> None:
    response, answer = await ask(body)
    assert answer == body
    assert response.headers["content-length"] == str(len(body))


@pytest.mark.parametrize(
    "changed", [{"path": "/tokenize"}, {"status": 400}, {"kind": "text/plain"}], ids=str
)
async def test_only_good_answers_of_routes_that_generate_are_looked_at(changed: Any) -> None:
    body = b'{"id":"cmpl-1","ends":1}'
    assert (await ask(body, **changed))[1] == body


async def test_a_stream_has_figures_where_a_choice_ends() -> None:
    deltas = b'data: {"id":"cmpl-1","choices":[{"finish_reason":null}]}\n\n'
    end = b'data: {"id":"cmpl-1","ends":1,"choices":[{"finish_reason":"stop"}]}\n\n'
    usage = b'data: {"id":"cmpl-1","choices":[],"usage":{}}\n\n'
    _, stream = await ask(deltas, end, deltas, end, usage, b"data: [DONE]\n\n", kind=EVENTS)
    assert stream.startswith(deltas)
    assert stream.endswith(b"data: [DONE]\n\n")
    sent = [event.get("metrics", {}).get("speculative_decoding") for event in events(stream)]
    whole = FIGURES | {
        "acceptance_histogram": [2, 0, 2],
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 4,
        "num_draft_tokens": 8,
    }
    assert sent == [None, FIGURES, None, whole, whole]


async def test_events_sent_together_and_figures_that_are_there_are_kept() -> None:
    end = b'data: {"id":"cmpl-1","ends":1,"choices":[{"finish_reason":"stop"}]}\n\n'
    usage = b'data: {"id":"cmpl-1","choices":[],"metrics":{"speculative_decoding":{"a":1}}}\n\n'
    _, stream = await ask(end + usage + b"data: [DONE]\n\n", kind=EVENTS)
    first, last = events(stream)
    assert first["metrics"]["speculative_decoding"] == FIGURES
    assert last["metrics"]["speculative_decoding"] == {"a": 1}
    assert stream.endswith(usage + b"data: [DONE]\n\n")


async def test_text_that_looks_like_an_end_is_none() -> None:
    said = json.dumps({"id": "cmpl-1", "text": '"finish_reason":"stop" ends'}).encode()
    delta = b"data: " + said + b"\n\n"
    assert (await ask(delta, kind=EVENTS))[1] == delta


async def test_a_stream_of_responses_has_them_in_its_response() -> None:
    last = {"response": {"id": "cmpl-1"}, "ends": 1, "type": "response.completed"}
    text = json.dumps(last, separators=(",", ":")).encode()
    event = b"event: response.completed\ndata: " + text + b"\n\n"
    _, stream = await ask(event, kind=EVENTS, path="/v1/responses")
    assert stream.startswith(b"event: response.completed\ndata: {")
    (sent,) = events(stream)
    assert sent["response"]["metrics"]["speculative_decoding"] == FIGURES
    assert "metrics" not in sent


async def test_a_stream_of_messages_has_them_beside_its_usage() -> None:
    first = b'event: message_start\ndata: {"type":"message_start","message":{"id":"cmpl-1"}}\n\n'
    last = b'event: message_delta\ndata: {"type":"message_delta","ends":1,"usage":{}}\n\n'
    _, stream = await ask(first, last, kind=EVENTS, path="/v1/messages")
    assert stream.startswith(first)
    assert events(stream)[1]["metrics"]["speculative_decoding"] == FIGURES
