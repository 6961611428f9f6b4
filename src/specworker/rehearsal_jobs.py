"""What the rehearsal platform remembers of a job, and how it mistreats a worker's posts."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

#: The platform's limit on one piece of a stream.
MAX_CHUNK_BYTES = 1_000_000

PostPath = Literal["job-stream", "job-done"]


class Status(StrEnum):
    """The states of a job, in the platform's words."""

    IN_QUEUE = "IN_QUEUE"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"


@dataclass(frozen=True)
class Fault:
    """How one post of a worker is mistreated.

    Attributes:
        status: the HTTP status of the answer.
        drop: close the connection without an answer.
        delay: seconds until the answer, or until the connection closes.
        counted: the body reaches the job even so, and only the answer is bad.
    """

    status: int = 200
    drop: bool = False
    delay: float = 0.0
    counted: bool = False

    @property
    def takes_body(self) -> bool:
        """Whether the body reaches the job."""
        return self.counted or (self.status < 400 and not self.drop)


@dataclass
class Faults:
    """What goes wrong, in the order it does; each fault is used up by one post.

    Attributes:
        job_stream: for the next posts of stream chunks.
        job_done: for the next posts of results.
        hold: polls for jobs stay open, whatever is queued, until `Platform.release`.
    """

    job_stream: list[Fault] = field(default_factory=list)
    job_done: list[Fault] = field(default_factory=list)
    hold: bool = False

    def next(self, path: PostPath) -> Fault:
        """Use up the next fault for `path`; a faultless one when there is none."""
        script = self.job_stream if path == "job-stream" else self.job_done
        return script.pop(0) if script else Fault()


@dataclass(frozen=True)
class Post:
    """One body that a worker sent.

    Attributes:
        path: where to.
        at: when it came, in seconds of `time.monotonic()`.
        raw: the body, byte for byte.
        body: the object in it; empty where there is none.
        problem: why the platform refuses the body; empty where it does not.
        fault: how it was answered.
    """

    path: PostPath
    at: float
    raw: bytes
    body: Mapping[str, Any]
    problem: str
    fault: Fault

    @property
    def status(self) -> int | None:
        """The HTTP status of the answer; None where the connection was dropped."""
        if self.fault.drop:
            return None
        return 400 if self.problem and self.fault.takes_body else self.fault.status

    @property
    def output(self) -> Any:
        """What the handler gave."""
        return self.body.get("output")


@dataclass(eq=False)
class Job:
    """One job and all that became of it. Times are seconds of `time.monotonic()`.

    Attributes:
        worker: who took it.
        chunks: the pieces of its stream that counted.
        read: how many of them the stream route has handed out.
        progress: the output of the last progress update.
        final: the post that ended it.
        error: why it failed.
        posts: everything that was posted for it, counted or not.
    """

    id: str
    input: Any
    queued_at: float
    status: Status = Status.IN_QUEUE
    worker: str = ""
    taken_at: float | None = None
    ended_at: float | None = None
    chunks: list[Post] = field(default_factory=list)
    read: int = 0
    progress: Any = None
    final: Post | None = None
    error: Any = None
    posts: list[Post] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether its status is a last one."""
        return self.ended_at is not None

    @property
    def output(self) -> Any:
        """The result, or the last progress before there is one."""
        return self.final.output if self.final else self.progress

    def count(self, post: Post) -> None:
        """Let a post have its effect."""
        if post.path == "job-stream":
            if not post.problem:
                self.chunks.append(post)
        elif post.body.get("status") == Status.IN_PROGRESS:
            self.progress = post.output
        else:
            self.final = post
            self.error = post.body.get("error") or post.problem or None
            self.end(Status.COMPLETED if self.error is None else Status.FAILED)

    def end(self, status: Status) -> None:
        """Give it its last status."""
        self.status, self.ended_at = status, time.monotonic()

    def report(self) -> dict[str, Any]:
        """What the platform tells a client. Times are milliseconds."""
        now = time.monotonic()
        report: dict[str, Any] = {"id": self.id, "status": self.status}
        if self.taken_at is not None:
            report["workerId"] = self.worker
            report["delayTime"] = round((self.taken_at - self.queued_at) * 1000)
            report["executionTime"] = round(((self.ended_at or now) - self.taken_at) * 1000)
        known = {"output": self.output, "error": self.error}
        return report | {key: value for key, value in known.items() if value is not None}


@dataclass(frozen=True)
class Ping:
    """One heartbeat: when (`time.monotonic()`), of whom, and the parameters it came with."""

    at: float
    worker: str
    parameters: Mapping[str, str]

    @property
    def jobs(self) -> list[str]:
        """The ids of the jobs that the worker says it is running."""
        return [job for job in self.parameters.get("job_id", "").split(",") if job]


def read(path: PostPath, raw: bytes) -> tuple[dict[str, Any], str]:
    """The JSON object in a body, and why the platform refuses it. JSON has no NaN."""
    if path == "job-stream" and len(raw) > MAX_CHUNK_BYTES:
        return {}, f"{len(raw)} bytes are more than the {MAX_CHUNK_BYTES} of one chunk"
    try:
        body = json.loads(raw.decode(), parse_constant=_refuse)
    except ValueError as error:
        return {}, f"not valid JSON: {error}"
    return (body, "") if isinstance(body, dict) else ({}, "not a JSON object")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")
