"""An answer on its way to the client, with JSON objects in it edited: a whole one, or events."""

from collections.abc import Callable, Sequence

from starlette.types import Message, Send

from specworker.request_body import with_length

#: The content type of a stream.
EVENTS = b"text/event-stream"


class Editing:
    """Sends an answer on, edited. What is no JSON, and what failed, passes as it is."""

    def __init__(
        self, send: Send, edit: Callable[[bytes], bytes], carriers: Sequence[bytes] = ()
    ) -> None:
        """Edit with `edit` a whole answer, and a stream's events.

        Args:
            send: where it goes.
            edit: gives the text of a JSON object as it is to be sent.
            carriers: only such events are edited as hold one of these.
        """
        self._send = send
        self._edit = edit
        self._carriers = carriers
        self._streams = False
        self._start: Message | None = None  # of a whole answer, held until its length is known
        self._body = b""

    async def send(self, message: Message) -> None:
        """Take one message of the application."""
        if message["type"] == "http.response.start":
            kind = dict(message.get("headers", ())).get(b"content-type", b"")
            served = message["status"] < 400
            self._streams = served and kind.startswith(EVENTS)
            if served and kind.startswith(b"application/json"):
                self._start = message
                return
        elif self._streams:
            message = {**message, "body": self._events(message.get("body", b""))}
        elif self._start is not None:
            self._body += message.get("body", b"")
            if message.get("more_body"):
                return
            message = {**message, "body": self._edit(self._body)}
            await self._send(with_length(self._start, len(message["body"])))
        await self._send(message)

    def _events(self, body: bytes) -> bytes:
        """Some events of a stream; vLLM sends them whole."""
        if not any(carrier in body for carrier in self._carriers):
            return body
        return b"\n\n".join(map(self._event, body.split(b"\n\n")))

    def _event(self, event: bytes) -> bytes:
        head, data, text = event.partition(b"data: ")
        return head + data + (self._edit(text) if data else b"")
