"""The worker's layer around vLLM's application: what it refuses, rewrites and notes."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from specworker import asgi, predicted
from specworker.noted import STATE, Noted, noted
from specworker.request_speculation import RequestSpeculation
from specworker.unsupported import Unsupported

CHAT = "/v1/chat/completions"
ASKED = {"messages": [], "min_p": 0.1}
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
JSON = {"content-type": "application/json"}


class Answering:
    """An application that answers with fixed pieces, and remembers what it was asked."""

    def __init__(
        self,
        pieces: Sequence[bytes] = (b"{}",),
        headers: Mapping[str, str] = MappingProxyType({}),
        status: int = 200,
    ) -> None:
        self._pieces = pieces
        self._start: Message = {
            "type": "http.response.start",
            "status": status,
            "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
        }
        self.scope: Scope = {}
        self.messages: list[Message] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.messages = [await receive()]
        while self.messages[-1].get("more_body"):
            self.messages.append(await receive())
        await send(self._start)
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    @property
    def asked(self) -> Any:
        return json.loads(b"".join(message["body"] for message in self.messages))


async def ask(
    layer: Noted, body: Any, path: str = CHAT, method: str = "POST"
) -> tuple[asgi.Response, bytes]:
    async with asgi.request(layer, method, path, body) as response:
        return response, await response.read()


def answering(body: Any) -> Answering:
    """A whole answer, in two pieces and with its length said."""
    text = json.dumps(body).encode()
    length = {"content-length": str(len(text))}
    return Answering([text[:5], text[5:]], JSON | length)


async def test_a_request_for_what_is_refused_does_not_reach_the_engine() -> None:
    app = Answering()
    response, body = await ask(Noted(app, Unsupported()), {**ASKED, "stream": True})
    assert app.messages == []
    assert response.status == 400
    error = json.loads(body)["error"]
    assert (error["code"], error["type"], error["param"]) == (400, "BadRequestError", "min_p")
    assert "SPECULATIVE_UNSUPPORTED=drop" in error["message"]


async def test_what_is_dropped_does_not_reach_the_engine_and_is_noted() -> None:
    app = answering({"id": "x", "metrics": None})
    response, body = await ask(Noted(app, Unsupported(drops=True)), {**ASKED, "n": 2})
    assert app.asked == {"messages": [], "n": 2}
    lengths = [value for name, value in app.scope["headers"] if name == b"content-length"]
    assert lengths == [str(len(app.messages[0]["body"])).encode()]
    (note,) = json.loads(body)["metrics"]["notes"]
    assert note.startswith("min_p: left out")
    assert response.headers["content-length"] == str(len(body))


async def test_vllms_own_figures_stay_beside_the_notes() -> None:
    metrics = {"tokens_per_second": None, "speculative_decoding": {"num_spec_tokens": 3}}
    answer = {"id": "é", "choices": [], "metrics": metrics}
    _, body = await ask(Noted(answering(answer), notes=["off"]), {})
    assert json.loads(body) == answer | {"metrics": {**metrics, "notes": ["off"]}}


@pytest.mark.parametrize(
    ("path", "method", "body"),
    [
        (CHAT, "POST", {"messages": [], "min_p": 0}),
        (CHAT, "POST", {"messages": [{"role": "user", "content": "What is min_p?"}]}),
        (CHAT, "POST", "min_p"),
        (CHAT, "GET", None),
        ("/v1/embeddings", "POST", ASKED),
        ("/v1/chat/completions/render", "POST", ASKED),
    ],
)
async def test_everything_else_passes_byte_by_byte(path: str, method: str, body: Any) -> None:
    pieces = [b'{"a":', b" 1}"]
    app = Answering(pieces, JSON)
    layer = Noted(app, Unsupported())
    sent: list[Message] = []
    waiting: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": True}
        for piece in (json.dumps(body).encode(), b" ")
    ]
    waiting.append({"type": "http.request"})
    expected = [*waiting]
    scope = {"type": "http", "method": method, "path": path, "headers": []}

    async def receive() -> Message:
        return waiting.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await layer(scope, receive, send)
    assert app.messages == expected
    assert app.scope is scope
    assert [message.get("body") for message in sent] == [None, *pieces, b""]


async def test_a_body_that_is_not_json_is_left_to_vllm() -> None:
    app = Answering()
    waiting: list[Message] = [{"type": "http.request", "body": b'{"min_p": 0.1'}]

    async def receive() -> Message:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
    await Noted(app, Unsupported())(scope, receive, send)
    assert app.messages == [{"type": "http.request", "body": b'{"min_p": 0.1'}]


async def test_a_caller_that_leaves_is_still_noticed_after_the_body_was_read() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend([(await receive())["type"], (await receive())["type"]])

    waiting: list[Message] = [
        {"type": "http.request", "body": b"{}"},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return waiting.pop(0)

    async def send(message: Message) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
    await Noted(app, Unsupported())(scope, receive, send)
    assert seen == ["http.request", "http.disconnect"]


async def test_a_route_is_known_under_the_root_path_of_a_proxy() -> None:
    app = Answering()
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": json.dumps(ASKED).encode()}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/api{CHAT}",
        "root_path": "/api",
        "headers": [],
    }
    await Noted(app, Unsupported())(scope, receive, send)
    assert sent[0]["status"] == 400
    assert app.messages == []


FIRST = b'data: {"id":"x","choices":[{"index":0}]}\n\n'
REST = b'data: {"id":"x","choices":[{"index":0,"text":"\xc3\xa9"}]}\n\ndata: [DONE]\n\n'
NOTED = b'data: {"id":"x","choices":[{"index":0}],"metrics":{"notes":["off"]}}\n\n'


@pytest.mark.parametrize(
    "pieces",
    [
        [FIRST, REST],
        [FIRST + REST],
        [FIRST[:10], FIRST[10:-1], FIRST[-1:] + REST],
        [bytes([byte]) for byte in FIRST + REST],
    ],
    ids=["event by event", "in one", "cut", "byte by byte"],
)
async def test_the_first_event_of_a_stream_has_the_notes_however_it_is_cut(
    pieces: Sequence[bytes],
) -> None:
    _, body = await ask(Noted(Answering(pieces, EVENTS), notes=["off"]), {})
    assert body == NOTED + REST


@pytest.mark.parametrize("before", [b": keep-alive\n\n", b"event: ping\n\n"])
async def test_an_event_without_data_is_not_the_first(before: bytes) -> None:
    _, body = await ask(Noted(Answering([before, FIRST, REST], EVENTS), notes=["off"]), {})
    assert body == before + NOTED + REST


async def test_an_event_keeps_its_name() -> None:
    named = b"event: response.created\n"
    _, body = await ask(Noted(Answering([named + FIRST, REST], EVENTS), notes=["off"]), {})
    assert body == named + NOTED + REST


async def test_a_stream_goes_on_at_once_after_its_first_event() -> None:
    app = Answering([FIRST, b"data: {", b"}\n\n"], EVENTS)
    sent: list[bytes] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
    await Noted(app, notes=["off"])(scope, receive, send)
    assert sent == [b"", NOTED, b"data: {", b"}\n\n", b""]


@pytest.mark.parametrize(
    ("pieces", "status", "headers"),
    [
        ([b'{"error": {"code": 500}}'], 500, JSON),
        ([b'{"message": "no"}'], 404, JSON),
        ([b"[1, 2]"], 200, JSON),
        ([b"not json"], 200, JSON),
        ([b"text"], 200, {"content-type": "text/plain"}),
        ([b'data: {"error": {"code": 400}}\n\n', b"data: [DONE]\n\n"], 200, EVENTS),
        ([b"data: [DONE]\n\n"], 200, EVENTS),
        ([b'data: {"cut'], 200, EVENTS),
    ],
)
async def test_what_is_no_answer_has_no_notes(
    pieces: Sequence[bytes], status: int, headers: dict[str, str]
) -> None:
    app = Answering(pieces, headers, status)
    response, body = await ask(Noted(app, notes=["off"]), {})
    assert (response.status, body) == (status, b"".join(pieces))


def test_an_answer_whose_error_is_none_is_one() -> None:
    body = noted(b'{"error": null, "status": "completed"}', ["off"])
    assert json.loads(body)["metrics"] == {"notes": ["off"]}


PREDICTION = {"type": "content", "content": "five six"}
TAKES = RequestSpeculation(4, unpredicted=None)


async def tokenize(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def layer(app: Answering, takes: RequestSpeculation = TAKES, **more: Any) -> Noted:
    return Noted(app, speculation=takes, tokenize=tokenize, **more)


async def test_what_a_request_says_of_its_speculation_is_told_in_vllms_terms() -> None:
    app = answering({"id": "x"})
    asked = {"messages": [], "speculation": {"enabled": False}, "n": 2}
    _, body = await ask(layer(app), asked)
    assert app.asked == {"messages": [], "n": 2, "vllm_xargs": {"num_speculative_tokens": 0}}
    lengths = [value for name, value in app.scope["headers"] if name == b"content-length"]
    assert lengths == [str(len(app.messages[0]["body"])).encode()]
    assert json.loads(body) == {"id": "x"}


async def test_what_cannot_be_kept_to_does_not_reach_the_engine() -> None:
    app = Answering()
    response, body = await ask(layer(app), {"speculation": {"num_speculative_tokens": 5}})
    assert (app.messages, response.status) == ([], 400)
    error = json.loads(body)["error"]
    assert (error["code"], error["type"], error["param"]) == (400, "BadRequestError", "speculation")


async def test_one_body_can_have_fields_left_out_and_others_told() -> None:
    app = answering({"id": "x"})
    asked = {**ASKED, "speculation": {"num_speculative_tokens": 2}}
    _, body = await ask(layer(app, unsupported=Unsupported(drops=True)), asked)
    assert app.asked == {"messages": [], "vllm_xargs": {"num_speculative_tokens": 2}}
    assert len(json.loads(body)["metrics"]["notes"]) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "On speculation and prediction, \u00e9"}]},
        {"vllm_xargs": {"num_speculative_tokens": 2}},
        {"sampling_params": {"speculation": {}}},
        [],
    ],
)
async def test_a_body_without_these_fields_passes_byte_by_byte(body: Any) -> None:
    app = Answering()
    await ask(layer(app), body)
    assert app.messages[0]["body"] == json.dumps(body).encode()


async def test_fields_that_say_nothing_are_not_handed_on() -> None:
    app = Answering()
    empty = {"type": "content", "content": ""}
    await ask(layer(app), {"n": 1, "speculation": None, "prediction": empty})
    assert app.asked == {"n": 1}


class Writing(Answering):
    """An application that writes token ids for the choices of a request, and then answers."""

    def __init__(self, *choices: list[int], pieces: Sequence[bytes], kind: dict[str, str]) -> None:
        super().__init__(pieces, kind)
        self._choices = choices
        self.prediction: predicted.Predicted | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.prediction = predicted.current.get()
        for choice, written in enumerate(self._choices):
            if self.prediction is not None:
                self.prediction.watch(choice, written.copy)
        await super().__call__(scope, receive, send)


USAGE = b'{"id":"x","choices":[],"usage":{"completion_tokens":3}}'


@pytest.mark.parametrize("kind", [JSON, EVENTS], ids=["whole", "streamed"])
async def test_an_answer_to_a_prediction_says_how_much_of_it_came_true(kind: Any) -> None:
    text = b'data: {"id":"x","choices":[{"index":0}]}\n\n'
    pieces = [USAGE] if kind is JSON else [text, b"data: " + USAGE + b"\n\n", b"data: [DONE]\n\n"]
    app = Writing([4, 3], [9], pieces=pieces, kind=kind)
    response, body = await ask(layer(app), {"n": 2, "prediction": PREDICTION})
    assert app.asked == {"n": 2, "vllm_xargs": {"prediction_ids": [4, 3]}}
    if kind is EVENTS:
        before, event, end = body.partition(text)
        assert (before, event) == (b"", text)
        body, _, end = end.removeprefix(b"data: ").partition(b"\n\n")
        assert end == b"data: [DONE]\n\n"
    assert json.loads(body)["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 2,
        "rejected_prediction_tokens": 2,
    }
    assert response.scope["state"][STATE] is app.prediction


async def test_an_answer_without_a_prediction_stays_as_it_is_and_knows_of_none() -> None:
    async with asyncio.TaskGroup() as side_by_side:
        apps = [Writing([4, 3], pieces=[USAGE], kind=JSON) for _ in range(2)]
        with_it = side_by_side.create_task(ask(layer(apps[0]), {"prediction": PREDICTION}))
        without = side_by_side.create_task(ask(layer(apps[1]), {"n": 1}))
    assert with_it.result()[1] != USAGE
    assert without.result()[1] == USAGE
    assert (apps[0].prediction is None, apps[1].prediction is None) == (False, True)


async def test_a_prediction_is_known_for_as_long_as_its_request_is_answered() -> None:
    content = json.dumps({"prediction": PREDICTION}).encode()

    async def receive() -> Message:
        return {"type": "http.request", "body": content}

    async def send(message: Message) -> None:
        assert predicted.current.get() is not None

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
    await layer(Answering())(scope, receive, send)
    assert predicted.current.get() is None
