"""A real HTTP server that speaks to the page as the worker does, in the state a test sets."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

#: The highest K, which positions and histograms go up to.
MOST = 4
PATHS = ("/", "/ping", "/speculation", "/v1/models", "/v1/chat/completions")
MODEL = "acme/target-1b"


def window(drafts: int = 0, *shares: float, speed: float = 0.0) -> dict[str, Any]:
    """The figures of a window with that many drafts, and acceptance by position."""
    accepted = round(drafts * sum(shares))
    return {
        "seconds": 10.0,
        "drafts": drafts,
        "drafted": drafts * len(shares),
        "accepted": accepted,
        "acceptance_by_position": list(shares),
        "mean_acceptance_length": 1 + accepted / drafts if drafts else 1.0,
        "tokens_per_second": speed,
        "tpot_ms": {"p50": 11.84 if drafts else None, "p95": 19.06 if drafts else None},
    }


def finished(name: str, ago: float, **figures: Any) -> dict[str, Any]:
    """A request that finished `ago` seconds ago."""
    usual = {
        "tokens": 64,
        "steps": 20,
        "drafted": 80,
        "accepted": 44,
        "mean_acceptance_length": 3.2,
        "tpot_ms": 12.04,
    }
    return {"id": name, "finished": time.time() - ago, **usual, **figures}


def figures(**other: Any) -> dict[str, Any]:
    """What GET /speculation answers while drafting pays off."""
    usual = {
        "method": "ngram",
        "draft": None,
        "num_speculative_tokens": MOST,
        "max_num_speculative_tokens": MOST,
        "adaptive": None,
        "disable_by_batch_size": None,
        "draft_cost": 0.0,
        "at_zero": None,
        "dtype": "float32",
        "acceptance_rule": {"name": "rejection_sampler", "lossy": False},
        "fallback": None,
        "requests": {"running": 1, "waiting": 2},
        "windows": {
            "10s": window(50, 0.92, 0.7, 0.4, 0.2, speed=61.2),
            "1m": window(300, 0.93, 0.8, 0.5, 0.25, speed=48.76),
            "since_start": window(9000, 0.6, 0.4, 0.2, 0.1, speed=30.0),
        },
        "verdict": {
            "kind": "paying",
            "text": "3.5 tokens per step: paying off",
            "is_estimate": True,
        },
        "recent": [finished("chatcmpl-82a01adbf8458d8a", 3)],
    }
    return usual | other


def adapting(k: int, most: int = MOST, reason: str | None = None) -> dict[str, Any]:
    """What the same answer says of a K that adapts."""
    return {
        "num_speculative_tokens": k,
        "max_num_speculative_tokens": most,
        "batch": 1,
        "tokens_per_step": {str(k): 1 + 0.5 * k for k in range(most + 1)},
        "milliseconds_per_step": {str(k): 10.0 + k for k in range(most + 1)},
        "changes": 3,
        "share_lost_to_trials": 0.008,
        "reason": reason,
    }


IDLE = {
    "requests": {"running": 0, "waiting": 0},
    "windows": {name: window() for name in ("10s", "1m", "since_start")},
    "verdict": {"kind": "idle", "text": "no traffic yet", "is_estimate": False},
    "recent": [],
}
PLAIN = IDLE | {
    "method": None,
    "num_speculative_tokens": 0,
    "max_num_speculative_tokens": 0,
    "verdict": {"kind": "off", "text": "off: plain decoding", "is_estimate": False},
}


def piece(*tokens: str, text: str | None = None, **delta: Any) -> dict[str, Any]:
    """An event of a chat's stream as vLLM sends it: the tokens of a step, and their text."""
    content = "".join(tokens) if text is None else text
    entries = [{"token": token, "logprob": -0.1, "bytes": [*token.encode()]} for token in tokens]
    choice = {"index": 0, "delta": delta or {"content": content}, "logprobs": {"content": entries}}
    return {"object": "chat.completion.chunk", "choices": [choice]}


def usage(tokens: int, histogram: list[int], drafted: int) -> dict[str, Any]:
    """The last event: `histogram[j]` steps accepted j of their drafted tokens."""
    accepted = sum(j * count for j, count in enumerate(histogram))
    steps = sum(histogram)
    speculation = {
        "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
        "acceptance_histogram": histogram,
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
    }
    return {
        "object": "chat.completion.chunk",
        "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens},
        "metrics": {"speculative_decoding": speculation},
    }


@dataclass
class Server:
    """What the server answers; a test changes it while the page looks.

    Attributes:
        figures: of GET /speculation.
        status: of GET /speculation; figures come with 200 alone.
        ping: the status of GET /ping.
        key: the key it asks for.
        refusal: status and message of PATCH /speculation, in place of a change.
        stream: the events of a chat.
        chat_error: status and message in place of a stream.
        endless: whether a chat's stream goes on until its client hangs up.
        asked: the method, path and JSON body of each request.
        hung_up: set when a client leaves an endless stream.
    """

    figures: dict[str, Any] = field(default_factory=figures)
    status: int = 200
    ping: int = 200
    key: str | None = None
    refusal: tuple[int, str] | None = None
    stream: list[dict[str, Any]] = field(default_factory=list)
    chat_error: tuple[int, str] | None = None
    endless: bool = False
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    hung_up: threading.Event = field(default_factory=threading.Event)

    def bodies(self, method: str, path: str) -> list[Any]:
        """The JSON bodies of these requests, in order."""
        return [body for verb, where, body in self.asked if (verb, where) == (method, path)]

    async def answer(self, request: Request) -> Response:
        """Answer any request."""
        path, body = request.url.path, await request.body()
        self.asked.append((request.method, path, json.loads(body) if body else None))
        if path == "/":
            return HTMLResponse((files("specworker") / "page" / "index.html").read_text())
        if path == "/ping":
            return Response(status_code=self.ping)
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return error(401, "Unauthorized")
        if path == "/v1/models":
            return JSONResponse({"object": "list", "data": [{"id": MODEL}]})
        if path == "/v1/chat/completions":
            return self._chat()
        if request.method == "PATCH":
            return self._patch(json.loads(body))
        if self.status == 204:
            return Response(status_code=204)
        if self.status != 200:
            return error(self.status, f"answered with {self.status}")
        return JSONResponse(self.figures)

    def _patch(self, body: Any) -> Response:
        if self.refusal:
            return error(*self.refusal)
        previous = self.figures["num_speculative_tokens"]
        adaptive = body.get("adaptive", False)
        most = body.get("num_speculative_tokens", MOST)
        self.figures["adaptive"] = adapting(previous, most) if adaptive else None
        if not adaptive:
            self.figures["num_speculative_tokens"] = most
        return JSONResponse(
            {
                "num_speculative_tokens": most,
                "adaptive": adaptive,
                "previous": previous,
                "max_num_speculative_tokens": MOST,
                "takes_effect": "at the next step",
            }
        )

    def _chat(self) -> Response:
        if self.chat_error:
            return error(*self.chat_error)
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[str]:
        try:
            for event in self.stream:
                yield f"data: {json.dumps(event)}\n\n"
                await asyncio.sleep(0.01)
            while self.endless:
                yield f"data: {json.dumps(piece(' on'))}\n\n"
                await asyncio.sleep(0.02)
            yield "data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.hung_up.set()
            raise


def error(status: int, message: str) -> Response:
    """An error in OpenAI's shape."""
    content = {"message": message, "type": "Error", "param": None, "code": status}
    return JSONResponse({"error": content}, status)


@contextmanager
def serving(server: Server, port: int = 0) -> Iterator[str]:
    """Serve it in a thread of its own, and yield the base URL."""
    methods = ["GET", "POST", "PATCH"]
    app = Starlette(routes=[Route(path, server.answer, methods=methods) for path in PATHS])
    listener = socket.create_server(("127.0.0.1", port))
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
