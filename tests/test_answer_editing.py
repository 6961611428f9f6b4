"""An answer that is edited on its way: whole, or event by event."""

from collections.abc import Mapping, Sequence

import pytest
from starlette.types import Message, Receive, Scope, Send

from specworker import asgi
from specworker.answer_editing import Editing

EVENTS = "text/event-stream; charset=utf-8"
JSON = "application/json"


def louder(text: bytes) -> bytes:
    return text.replace(b"x", b"XX")


async def edited(pieces: Sequence[bytes], kind: str, status: int = 200) -> tuple[bytes, str | None]:
    """The body and the length that a client gets."""

    async def app(_: Scope, __: Receive, send: Send) -> None:
        length = str(len(b"".join(pieces))).encode()
        headers = [(b"content-type", kind.encode()), (b"content-length", length)]
        start: Message = {"type": "http.response.start", "status": status, "headers": headers}
        edit = Editing(send, louder, (b'"x"',))
        await edit.send(start)
        for piece in pieces:
            await edit.send({"type": "http.response.body", "body": piece, "more_body": True})
        await edit.send({"type": "http.response.body", "body": b"", "more_body": False})

    async with asgi.request(app, "POST", "/", {}) as response:
        headers: Mapping[str, str] = response.headers
        return await response.read(), headers.get("content-length")


async def test_a_whole_answer_is_edited_once_it_is_whole() -> None:
    assert await edited([b'{"x"', b':"x"}'], JSON) == (b'{"XX":"XX"}', "11")


async def test_of_a_stream_the_data_of_events_that_carry_it_is_edited() -> None:
    others = b': x\n\ndata: {"y":"x y"}\n\n'
    carrier = b'event: x\ndata: {"x":1}\n\n'
    body, _ = await edited([others, carrier + others, b"data: [DONE]\n\n"], EVENTS)
    loud = b'event: x\ndata: {"XX":1}\n\n'
    assert body == others + loud + louder(others).replace(b": XX", b": x", 1) + b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("kind", "status"), [(JSON, 400), (EVENTS, 500), ("text/plain", 200), ("", 200)]
)
async def test_everything_else_passes_as_it_is(kind: str, status: int) -> None:
    pieces = [b'data: {"x":1}\n\n', b'{"x":1}']
    assert (await edited(pieces, kind, status))[0] == b"".join(pieces)
