"""The way of a request over HTTP to the engine's application, and what stands in it."""

from pathlib import Path
from typing import TYPE_CHECKING

from specworker.api_key import ApiKey
from specworker.body_limit import BodyLimit
from specworker.front import PAGE, PING, Front
from specworker.in_flight import InFlight
from specworker.request_log import RequestLog

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from specworker.settings import Settings

PAGE_FILE = Path(__file__).parent / "page" / "index.html"


class Door:
    """ASGI application: each layer hands on to the next.

    Attributes:
        log: a line for each request.
        in_flight: what is being answered.
        guard: asks for the key.
        front: answers while no engine does, and has the engine's application answer then.
    """

    def __init__(self, settings: "Settings") -> None:
        page = None if settings.where == "lb" else PAGE_FILE.read_bytes()
        self.front = Front(page, settings.health_port)
        limited = BodyLimit(self.front, settings.max_body_mb)
        # The page itself holds nothing; what it asks for needs the key.
        self.guard = ApiKey(limited, without={PING, PAGE} if page else {PING})
        self.in_flight = InFlight(self.guard)
        self.log = RequestLog(self.in_flight)

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer one request."""
        await self.log(scope, receive, send)
