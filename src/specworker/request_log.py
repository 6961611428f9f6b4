"""A line in the log for each request over HTTP: its figures, and nothing that a user wrote."""

import json
import logging
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specworker.job_record import Figures, JobRecord

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

#: What monitors ask for all the time: a line on it only where it fails.
WATCHED = frozenset({"/", "/ping", "/health", "/load", "/metrics", "/speculation", "/version"})
#: How an event of a stream begins that is an error.
ERROR_EVENT = b'data: {"error"'


def no_figures(scope: Scope) -> Figures:  # noqa: ARG001 - before there is an engine
    """The figures of a request that no engine has answered."""
    return Figures()


class RequestLog:
    """ASGI middleware that logs every request when it has ended.

    Attributes:
        figures: where the figures of a request come from, by its scope.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.figures: Callable[[Scope], Figures] = no_figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, and log it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(receive, send)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            record = exchange.record
            if scope["path"] not in WATCHED or record.status >= 400:
                self._log(scope, record)

    def _log(self, scope: Scope, record: JobRecord) -> None:
        figures = self.figures(scope)
        record.add(figures)
        # The route as it is declared: a path may hold what a client made up.
        record.route = f"{scope['method']} {getattr(scope.get('route'), 'path', 'none')}"
        logger.info("request %s%s", f"{figures.id} " if figures.id else "", record.line)


class _Exchange:
    """A request and its answer, as they pass."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._is_complete = False
        self.record = JobRecord()

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self._is_complete:
            self.record.status = 499
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.record.status = self.record.status or message["status"]
        elif body := message.get("body"):
            self.record.first_output()
            if body.startswith(ERROR_EVENT):
                self.record.status = _status(body)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._is_complete = True
        await self._send(message)


def _status(event: bytes) -> int:
    """The status of an error in a stream, whose own status is already sent."""
    try:
        error = json.loads(event.partition(b"data: ")[2].partition(b"\n")[0])["error"]
        return int(error["code"])
    except (ValueError, TypeError, KeyError):
        return 500
