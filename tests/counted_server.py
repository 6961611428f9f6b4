"""A server that counts as vLLM does, for what a measurement does around an engine.

It generates nothing: every answer is the same few tokens. Nothing about engines is shown by it.
"""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

MODEL = "counted"
TOKENS = 5
COUNTERS = (
    "generation_tokens",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
)
PATHS = (
    "/v1/models",
    "/version",
    "/metrics",
    "/speculation",
    "/reset_prefix_cache",
    "/v1/chat/completions",
    "/v1/completions",
)


@dataclass
class Server:
    """A server, and what a test has it do.

    Attributes:
        tokens: K as it is set; None for a server without /speculation.
        largest: the largest K.
        is_fixed: whether K cannot be changed.
        key: the key that it asks for.
        forgets: whether its prefix cache can be emptied.
        fails_from: the request that is the first to fail, with `failure`; None for none.
        failure: status and message; a status of 0 cuts the stream off.
        besides: tokens of other traffic, counted with each request.
        running: requests of others, as the metrics tell.
        slow: seconds that an answer takes.
        adapts: whether K adapts up to `tokens`.
        at_zero: what a step at K = 0 still does.
        dtype: of the model's sums.
        asked: what came: (route, K then), in order.
        bodies: of the completions.
        keys: what each request brought for `authorization`.
    """

    tokens: int | None = 3
    largest: int = 3
    is_fixed: bool = False
    key: str = ""
    forgets: bool = True
    fails_from: int | None = None
    failure: tuple[int, str] = (500, "EngineCore encountered an issue")
    besides: int = 0
    running: int = 0
    slow: float = 0.0
    adapts: bool = False
    at_zero: str | None = None
    dtype: str | None = None
    asked: list[tuple[str, int | None]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[list[str]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))

    def routes(self) -> list[str]:
        return [route for route, _ in self.asked]

    async def answer(self, request: Request) -> Response:
        path = request.url.path
        self.asked.append((f"{request.method} {path}", self.tokens))
        self.keys.append(request.headers.getlist("authorization"))
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return _error(401, "Unauthorized")
        if path == "/v1/models":
            return JSONResponse({"data": [{"id": MODEL}]})
        if path == "/version":
            return JSONResponse({"version": "0.32.0"})
        if path == "/metrics":
            return PlainTextResponse(self.metrics())
        if path == "/reset_prefix_cache" and self.forgets:
            return JSONResponse({"success": True})
        if path == "/speculation" and self.tokens is not None:
            if request.method == "PATCH" and self.is_fixed:
                return _error(409, "K cannot be changed: it is fixed.")
            if request.method == "PATCH":
                asked = await request.json()
                self.tokens, self.adapts = (
                    asked["num_speculative_tokens"],
                    asked.get("adaptive", False),
                )
            return JSONResponse(self.overview())
        if path.endswith("/completions"):
            self.bodies.append(await request.json())
            failing = self.fails_from is not None and len(self.bodies) > self.fails_from
            if failing and self.failure[0]:
                return _error(*self.failure)
            return StreamingResponse(
                self._events(path, cut=failing), media_type="text/event-stream"
            )
        return _error(404, "Not Found")

    def overview(self) -> dict[str, Any]:
        return {
            "method": "ngram" if self.largest else None,
            "num_speculative_tokens": self.tokens,
            "max_num_speculative_tokens": self.largest,
            "draft_cost": 0.0,
            "at_zero": self.at_zero,
            "dtype": self.dtype,
            "adaptive": {"max_num_speculative_tokens": self.tokens} if self.adapts else None,
        }

    def metrics(self) -> str:
        """The page, in Prometheus' text form, as vLLM has it."""
        gauges = {"num_requests_running": self.running, "num_requests_waiting": 0}
        lines = []
        for name, value in gauges.items():
            lines += [f"# TYPE vllm:{name} gauge", f'vllm:{name}{{engine="0"}} {value}.0']
        for name, value in self.counts.items():
            lines += [f"# TYPE vllm:{name} counter", f'vllm:{name}_total{{engine="0"}} {value}.0']
        return "\n".join([*lines, ""])

    async def _events(self, path: str, *, cut: bool) -> AsyncIterator[str]:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            key = {"delta": {"content": "a "}} if "chat" in path else {"text": "a "}
            for _ in range(TOKENS):
                await asyncio.sleep(self.slow / TOKENS)
                yield _event({"choices": [{"index": 0, **key}]})
            if cut:
                return
            self.counts["generation_tokens"] += TOKENS + self.besides
            if self.tokens:
                self.counts["spec_decode_num_drafts"] += 2
                self.counts["spec_decode_num_draft_tokens"] += 2 * self.tokens
                self.counts["spec_decode_num_accepted_tokens"] += 2
            yield _event({"choices": [], "usage": {"completion_tokens": TOKENS}})
            yield "data: [DONE]\n\n"
        finally:
            self.in_flight -= 1


def _event(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "code": status}}, status)


@contextmanager
def serving(server: Server) -> Iterator[str]:
    """Serve it in a thread of its own, and yield the URL."""
    methods = ["GET", "POST", "PATCH"]
    app = Starlette(routes=[Route(path, server.answer, methods=methods) for path in PATHS])
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(
        app, log_config=None, ws="none", lifespan="off", timeout_graceful_shutdown=1
    )
    runner = uvicorn.Server(config)
    thread = threading.Thread(target=runner.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        runner.should_exit = True
        thread.join()
