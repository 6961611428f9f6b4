"""The usage of every stream, for the log, whether or not its client asked for it.

vLLM tells a stream's usage and acceptance in a last event of its own, and only when asked.
So it is always asked, and the event is taken out again where the client did not ask.
"""

from collections.abc import Mapping
from typing import Any

#: The routes whose streams take `stream_options`.
ROUTES = ("/v1/completions", "/v1/chat/completions")
#: What only the event with a stream's usage has: no choice.
_NO_CHOICE = '"choices":[]'


def asked_for(path: str, body: Any) -> tuple[Any, bool]:
    """The body that asks for usage too, and whether that is not the client's own wish."""
    if path not in ROUTES or not isinstance(body, Mapping) or body.get("stream") is not True:
        return body, False
    options = body.get("stream_options") or {}
    if not isinstance(options, Mapping) or options.get("include_usage"):
        return body, False
    return {**body, "stream_options": {**options, "include_usage": True}}, True


def without(group: str) -> str:
    """A group of events without the one that only tells the usage."""
    if _NO_CHOICE not in group:
        return group
    events = group.split("\n\n")
    return "\n\n".join(event for event in events if _NO_CHOICE not in event)
