"""A request's body: read once, and passed on as it came or as it is to be."""

import json

import pytest
from starlette.types import Message, Receive

from specworker import request_body


def receiving(*pieces: bytes) -> Receive:
    """What gives a body in pieces, and then that the client has gone."""
    waiting: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": True} for piece in pieces[:-1]
    ]
    waiting.append({"type": "http.request", "body": pieces[-1]})
    waiting.append({"type": "http.disconnect"})

    async def receive() -> Message:
        return waiting.pop(0)

    return receive


async def test_a_body_passes_in_the_messages_that_it_came_in() -> None:
    pieces = (b'{"a":', b' "\xc3\xa9"}')
    body = await request_body.read(receiving(*pieces))
    assert (body.content, body.parsed) == (b"".join(pieces), {"a": "é"})
    passed = [await body.receive() for _ in range(3)]
    assert [message.get("body") for message in passed] == [*pieces, None]
    assert passed[-1]["type"] == "http.disconnect"
    scope = {"type": "http", "headers": [(b"content-length", b"12")]}
    assert body.scope(scope) is scope


async def test_a_replaced_body_passes_in_one_message_with_its_length() -> None:
    body = await request_body.read(receiving(b'{"a":', b" 1}"))
    body.replace({"b": "é"})
    assert body.parsed == {"b": "é"}
    message = await body.receive()
    assert json.loads(message["body"]) == {"b": "é"}
    assert not message["more_body"]
    assert (await body.receive())["type"] == "http.disconnect"
    headers = [(b"host", b"x"), (b"Content-Length", b"8")]
    changed = body.scope({"type": "http", "headers": headers})
    length = str(len(message["body"])).encode()
    assert changed["headers"] == [(b"host", b"x"), (b"content-length", length)]


@pytest.mark.parametrize("content", [b"", b'{"a"', b"[" * 100_000, b"\xff"])
async def test_what_is_no_json_means_nothing(content: bytes) -> None:
    assert (await request_body.read(receiving(content))).parsed is None
