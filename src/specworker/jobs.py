"""A Runpod job as an HTTP request to vLLM's application, and the answer as job outputs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specworker.errors import RequestError

#: Tokens of a prompt-shaped job that sets no maximum, as in older workers.
DEFAULT_MAX_TOKENS = 100

SHAPES = (
    "a job's input is one of {openai_route, openai_input}, {route, method, body}, "
    "{prompt or messages, sampling_params, stream, apply_chat_template}"
)
_PLAIN_KEYS = frozenset(
    {"prompt", "messages", "sampling_params", "stream", "apply_chat_template", "model"}
)
#: Keys of older workers that say how the deltas of a native stream are batched.
_BATCH_KEYS = ("max_batch_size", "min_batch_size", "batch_size_growth_factor", "batch_size")
_MOST = 1_000_000


@dataclass(frozen=True)
class Request:
    """A call to vLLM's application.

    Attributes:
        method: the HTTP method.
        path: the path, with its query string if it has one.
        body: the JSON body; None for none.
        batching: what a prompt- or messages-shaped job says of the batches of its stream,
            as its own keys; None for a job of another shape.
    """

    method: str
    path: str
    body: Any = None
    batching: Mapping[str, float] | None = None

    @property
    def streams(self) -> bool:
        """Whether the answer comes as server-sent events."""
        return isinstance(self.body, Mapping) and self.body.get("stream") is True


def request_of(job_input: Any, served_name: str) -> Request:
    """The HTTP request that a job's input means.

    `use_openai_format` is taken beside a prompt or messages and ignored: older workers
    read it too, but it never changed their output.

    Args:
        job_input: what stands under `input` in the job.
        served_name: the model's name, for a body that names none.

    Raises:
        RequestError: the input has none of the accepted shapes.
    """
    batching: dict[str, float] | None = None
    if not isinstance(job_input, Mapping) or not job_input:
        raise RequestError(f"The input is empty or no object; {SHAPES}.")
    if "openai_route" in job_input or "openai_input" in job_input:
        _only(job_input, {"openai_route", "openai_input"})
        path = job_input.get("openai_route") or "/v1/chat/completions"
        body = job_input.get("openai_input") or None
        method = "GET" if body is None else "POST"
    elif "route" in job_input:
        _only(job_input, {"route", "method", "body"})
        path, body = job_input["route"], job_input.get("body")
        method = job_input.get("method") or ("GET" if body is None else "POST")
    elif "prompt" in job_input or "messages" in job_input:
        _only(job_input, _PLAIN_KEYS, {*_BATCH_KEYS, "use_openai_format"})
        path, body = _plain(job_input)
        batching = _batching(job_input)
        method = "POST"
    else:
        raise RequestError(f"The input has the keys {_listed(job_input)}; {SHAPES}.")
    if not isinstance(path, str) or not isinstance(method, str):
        raise RequestError("The route and the method of a job are texts.")
    if isinstance(body, dict) and method.upper() == "POST" and not body.get("model"):
        body = {**body, "model": served_name}
    path = path if path.startswith("/") else f"/{path}"
    return Request(method.upper(), path, body, batching)


def _plain(job_input: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The route and the body of a prompt-shaped job. Messages win over a prompt."""
    parameters = job_input.get("sampling_params") or {}
    if not isinstance(parameters, Mapping):
        raise RequestError("sampling_params is an object of sampling parameters.")
    body: dict[str, Any] = {"max_tokens": DEFAULT_MAX_TOKENS, **parameters}
    body |= {key: job_input[key] for key in ("model", "stream") if job_input.get(key) is not None}
    if messages := job_input.get("messages"):
        return "/v1/chat/completions", {**body, "messages": messages}
    prompt = job_input.get("prompt")
    if job_input.get("apply_chat_template"):
        messages = [{"role": "user", "content": prompt}]
        return "/v1/chat/completions", {**body, "messages": messages}
    return "/v1/completions", {**body, "prompt": prompt}


def _batching(job_input: Mapping[str, Any]) -> dict[str, float]:
    said = {key: job_input[key] for key in _BATCH_KEYS if job_input.get(key) is not None}
    for key, value in said.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and 0 < value <= _MOST):
            raise RequestError(f"{key} is a number above 0 and at most {_MOST}.")
    return said


def _only(
    job_input: Mapping[str, Any],
    known: set[str] | frozenset[str],
    older: set[str] | frozenset[str] = frozenset(),
) -> None:
    """Refuse unknown keys. `older` ones are known too, but not told to anyone."""
    if unknown := set(map(str, job_input)) - known - older:
        hint = (
            " Sampling parameters go inside sampling_params." if "sampling_params" in known else ""
        )
        raise RequestError(
            f"The input has the unknown keys {_listed(unknown)} beside {_listed(known)}.{hint}"
        )


def _listed(keys: Any) -> str:
    shown = sorted(str(key)[:40] for key in keys)
    return ", ".join(shown[:10]) + (", …" if len(shown) > 10 else "")


def parsed(body: bytes) -> Any:
    """A response's body as a job output: JSON, or text where it is none."""
    text = body.decode(errors="replace")
    try:
        return json.loads(text) if text else {}
    except json.JSONDecodeError:
        return text
