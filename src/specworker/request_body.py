"""The body of a request to vLLM's application, read and parsed once for all that look at it."""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from starlette.types import Message, Receive, Scope


class Body:
    """A request's body, which passes as it came unless it is replaced.

    Attributes:
        content: its bytes, as they came.
    """

    def __init__(self, messages: list[Message], receive: Receive) -> None:
        self.content = b"".join(message.get("body", b"") for message in messages)
        self._messages = messages
        self._receive = receive
        self._length: int | None = None

    @cached_property
    def parsed(self) -> Any:
        """What it means; None for no JSON, of which the application says what is wrong."""
        return parsed(self.content)

    def replace(self, body: Mapping[str, Any]) -> None:
        """Have the application get `body` instead."""
        self.parsed = body
        content = json.dumps(body).encode()
        self._length = len(content)
        self._messages = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive(self) -> Message:
        """What the application gets: the body, then what comes after it."""
        return self._messages.pop(0) if self._messages else await self._receive()

    def scope(self, scope: Scope) -> Scope:
        """The scope of the request, with the right length where the body was replaced."""
        if self._length is None:
            return scope
        changed: Scope = with_length(scope, self._length)
        return changed


async def read(receive: Receive) -> Body:
    """The body that `receive` gives, whole."""
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    return Body(messages, receive)


def parsed(content: bytes) -> Any:
    """What JSON means; None for no JSON."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def with_length(message: Any, length: int) -> Any:
    """A scope or a message whose headers say that the body has `length` bytes."""
    headers = [header for header in message["headers"] if header[0].lower() != b"content-length"]
    return {**message, "headers": [*headers, (b"content-length", str(length).encode())]}
