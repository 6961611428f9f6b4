"""What can go wrong, as two kinds: what a user set, and what a request asked for."""

import json
from collections.abc import Sequence
from typing import Any


class ConfigurationError(Exception):
    """Settings that cannot work.

    Attributes:
        problems: one line each: the variable, its value, what is allowed.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class StartError(Exception):
    """An engine that did not start, with the reason in words that a client may read."""


class RequestError(Exception):
    """A request that cannot be served, in the terms of OpenAI's error object.

    Attributes:
        status: the HTTP status that says the same, 400 to 599.
        param: the field of the request that it is about; None for no single one.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        super().__init__(message)

    def body(self) -> dict[str, Any]:
        """OpenAI's error object, as vLLM shapes it."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.status,
            }
        }


def job_error(body: Any, status: int) -> dict[str, str]:
    """A job output that fails the job: `{"error": <JSON text of OpenAI's error object>}`.

    The SDK turns whatever stands under `error` into text, so it is text already, and
    a client can parse it. A body that is no error object is wrapped in one.
    """
    if not (isinstance(body, dict) and isinstance(body.get("error"), dict)):
        text = body if isinstance(body, str) else json.dumps(body)
        message = text.strip() or f"HTTP {status}"
        body = RequestError(message[:2000], status=status, kind="InternalServerError").body()
    return {"error": json.dumps(body)}
