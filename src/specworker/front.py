"""What answers on the ports for as long as the process runs: before, beside and after the engine.

Nothing here needs vLLM, so that the ports are open before it is imported.
"""

from collections.abc import Mapping
from enum import Enum

from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from specworker.errors import RequestError

#: The path of the platform's health checks.
PING = "/ping"
#: The path of the page that shows speculation.
PAGE = "/"


class State(Enum):
    """What the worker can do with a request."""

    LOADING = "The model is still loading. Send the request again later."
    READY = "ready"
    STOPPING = "The worker is shutting down. Send the request again."
    FAILED = "The worker could not start."
    DEAD = "The engine has died, and the worker ends. Send the request again."


#: How the platform reads `/ping`: ready, still initialising, and anything else: not healthy.
PING_STATUS = {State.READY: 200, State.LOADING: 204}
#: Seconds after which a request that was refused is worth another try.
RETRY_AFTER: Mapping[State, int] = {State.LOADING: 10, State.STOPPING: 1, State.DEAD: 1}


class Front:
    """ASGI application: health and page by itself, all else by the engine's application."""

    def __init__(self, page: bytes | None = None, health_port: int | None = None) -> None:
        """Refuse requests until `serve`.

        Args:
            page: the file at `/`; None for none.
            health_port: a port on which nothing but health is answered; None for none.
        """
        self._page = None if page is None else HTMLResponse(page)
        self._health_port = health_port
        self._app: ASGIApp | None = None
        self.refuse(State.LOADING)

    @property
    def state(self) -> State:
        """What is done with a request now."""
        return self._state

    def serve(self, app: ASGIApp) -> None:
        """Have `app` answer from now on."""
        self._app = app
        self._state = State.READY

    def refuse(self, state: State, reason: str = "") -> None:
        """Refuse requests from now on, with `reason` after the words of the state."""
        self._app = None
        self._state = state
        message = f"{state.value.rstrip('.')}: {reason}" if reason else state.value
        error = RequestError(message, status=503, kind="ServiceUnavailableError")
        headers = {"retry-after": str(RETRY_AFTER[state])} if state in RETRY_AFTER else None
        self._refusal = JSONResponse(error.body(), error.status, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        answer = self._own(scope) or self._app or self._refusal
        await answer(scope, receive, send)

    def _own(self, scope: Scope) -> Response | None:
        """The answer that needs no engine; None where it is the engine's."""
        path, method = scope["path"], scope.get("method")  # a websocket has none
        if path == PING and method is not None:
            return Response(status_code=PING_STATUS.get(self._state, 503))
        if self._health_port is not None and scope["server"][1] == self._health_port:
            return PlainTextResponse(f"{PING} is all that this port answers.\n", 404)
        return self._page if path == PAGE and method in ("GET", "HEAD") else None
