"""What one job was and cost, for its line in the log. Nothing that a user wrote is in it."""

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Figures:
    """What the engine says of a request that it has answered.

    Attributes:
        id: its own name of the request; empty where the client chose it.
        usage: OpenAI's usage object.
        speculation: vLLM's acceptance figures of the request.
    """

    id: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    speculation: dict[str, Any] = field(default_factory=dict)


@dataclass
class JobRecord:
    """A job's figures, filled in while it is answered.

    Attributes:
        route: method and path of the request; empty for an input that is none.
        status: HTTP status of the answer; 0 while there is none.
        ttft: seconds to the first output; None while there is none.
        usage: OpenAI's usage object of the answer.
        speculation: vLLM's acceptance figures of the request.
        notes: what the worker noted on the answer.
        failed: OpenAI's error object, where a stream held one.
    """

    route: str = ""
    status: int = 0
    ttft: float | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    speculation: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failed: dict[str, Any] | None = None
    started: float = field(default_factory=time.monotonic)

    def note(self, body: Any) -> None:
        """Take usage, acceptance and notes from a response or from an event of a stream."""
        if not isinstance(body, dict):
            return
        self.usage = body.get("usage") or self.usage
        metrics = body.get("metrics") or {}
        self.speculation = metrics.get("speculative_decoding") or self.speculation
        self.notes = metrics.get("notes") or self.notes

    def add(self, figures: Figures) -> None:
        """Take the figures that the answer itself did not tell."""
        self.usage = self.usage or figures.usage
        self.speculation = self.speculation or figures.speculation

    def first_output(self) -> None:
        """Note the time of an output, if it is the first."""
        if self.ttft is None:
            self.ttft = time.monotonic() - self.started

    @property
    def line(self) -> str:
        """The line in the log."""
        elapsed = time.monotonic() - self.started
        prompt = self.usage.get("prompt_tokens", self.usage.get("input_tokens"))
        produced = self.usage.get("completion_tokens", self.usage.get("output_tokens"))
        figures = {
            "route": self.route or "none",
            "status": self.status,
            "prompt": prompt,
            "completion": produced,
            "ttft": None if self.ttft is None else f"{self.ttft:.3f}s",
            "total": f"{elapsed:.3f}s",
            "tokens/s": f"{produced / elapsed:.1f}" if produced and elapsed else None,
            "prediction accepted": _predicted(self.usage),
            "acceptance length": _rounded(self.speculation.get("mean_acceptance_length")),
        }
        return " ".join(f"{name}={value}" for name, value in figures.items() if value is not None)


def _rounded(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def _predicted(usage: dict[str, Any]) -> str | None:
    """How many of the predicted tokens were in the answer; None where nothing was predicted."""
    details = usage.get("completion_tokens_details") or {}
    accepted, rejected = map(
        details.get, ("accepted_prediction_tokens", "rejected_prediction_tokens")
    )
    if accepted is None or rejected is None:
        return None
    return f"{accepted}/{accepted + rejected}"
