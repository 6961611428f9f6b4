"""A Runpod endpoint in memory: its queue, its jobs, and everything that a worker sent.

This is the state alone; `rehearsal_app` speaks HTTP for it. Usable from any thread.
"""

import asyncio
import threading
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from specworker.rehearsal_jobs import Faults, Job, Ping, Post, PostPath, Status, read

ENDPOINT = "rehearsal"
#: Milliseconds between pings; the SDK rounds down to seconds and never rests at 0.
PING_INTERVAL_MS = 5000

Found = TypeVar("Found")


class Platform:
    """The queue of one endpoint.

    Attributes:
        jobs: every job by id, in the order they came.
        pings: every heartbeat.
        polls: how many polls are open now, by path.
        workers: everyone who has polled.
        draining: no more jobs are handed out, and polls are answered at once.
        closed: nobody waits for anything any more.
    """

    def __init__(self, faults: Faults | None = None, poll_seconds: float = 30.0) -> None:
        """`poll_seconds` bounds a poll; the SDK gives up by itself after 90."""
        self.faults = faults or Faults()
        self.poll_seconds = poll_seconds
        self.jobs: dict[str, Job] = {}
        self.pings: list[Ping] = []
        self.polls: Counter[str] = Counter()
        self.workers: set[str] = set()
        self.draining = False
        self.closed = False
        self._queue: deque[Job] = deque()
        self._stops: defaultdict[str, list[str]] = defaultdict(list)
        self._lock = threading.RLock()
        self._waiting: set[Callable[[], object]] = set()

    def submit(self, job_input: Any) -> Job:
        """Queue a job."""
        job = Job(str(uuid.uuid4()), job_input, queued_at=time.monotonic())
        with self._lock:
            self.jobs[job.id] = job
            self._queue.append(job)
        self.tell()
        return job

    def take(self, worker: str, most: int) -> list[Job]:
        """Hand out up to `most` jobs, the oldest first."""
        with self._lock:
            if self.faults.hold or self.draining:
                return []
            taken = [self._queue.popleft() for _ in range(min(most, len(self._queue)))]
            for job in taken:
                job.status, job.worker, job.taken_at = Status.IN_PROGRESS, worker, time.monotonic()
        if taken:
            self.tell()
        return taken

    def receive(self, path: PostPath, job: Job, raw: bytes) -> Post:
        """Note what a worker posted for a job. Once a job has ended, nothing changes it."""
        with self._lock:
            body, problem = read(path, raw)
            post = Post(path, time.monotonic(), raw, body, problem, self.faults.next(path))
            job.posts.append(post)
            if post.fault.takes_body and not job.ended:
                job.count(post)
        self.tell()
        return post

    def stop(self, job: Job, status: Status = Status.CANCELLED) -> None:
        """End a job from outside, and tell the worker that runs it; an ended one stays as it is."""
        with self._lock:
            if job.ended:
                return
            if job.status is Status.IN_QUEUE:
                self._queue.remove(job)
            else:
                self._stops[job.worker].append(job.id)
            job.end(status)
        self.tell()

    def take_stops(self, worker: str) -> list[str]:
        """The ids of the jobs that `worker` is to stop, each told once."""
        with self._lock:
            return self._stops.pop(worker, [])

    def ping(self, worker: str, parameters: Mapping[str, str]) -> None:
        """Note a heartbeat."""
        self.pings.append(Ping(time.monotonic(), worker, parameters))
        self.tell()

    def release(self) -> None:
        """Let the polls go on that `Faults.hold` keeps open."""
        self.faults.hold = False
        self.tell()

    def drain(self) -> None:
        """Hand out nothing more, and keep no poll open: what a worker needs to end at once."""
        self.draining = True
        self.tell()

    def close(self) -> None:
        """End every wait."""
        self.draining = self.closed = True
        self.tell()

    def tally(self) -> Counter[Status]:
        """How many jobs are in each state."""
        return Counter(job.status for job in list(self.jobs.values()))

    def health(self) -> dict[str, dict[str, int]]:
        """What the health route says."""
        tally = self.tally()
        busy = {job.worker for job in list(self.jobs.values()) if job.status is Status.IN_PROGRESS}
        return {
            "jobs": {
                "completed": tally[Status.COMPLETED],
                "failed": tally[Status.FAILED],
                "inProgress": tally[Status.IN_PROGRESS],
                "inQueue": tally[Status.IN_QUEUE],
                "retried": 0,
            },
            "workers": {
                "idle": len(self.workers - busy),
                "initializing": 0,
                "running": len(busy),
                "throttled": 0,
            },
        }

    def tell(self) -> None:
        """Wake everyone who waits, since something has changed."""
        with self._lock:
            for wake in self._waiting:
                wake()

    async def until(self, found: Callable[[], Found], seconds: float | None = None) -> Found:
        """What `found` gives: once it is truthy, or after `seconds`, or when the platform closes.

        `found` is asked again after every change.
        """
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(changed.set)

        with self._lock:
            self._waiting.add(wake)
        try:
            async with asyncio.timeout(seconds):
                while not (value := found()) and not self.closed:
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            value = found()
        finally:
            with self._lock:
                self._waiting.discard(wake)
        return value


def environment(base_url: str, worker_id: str) -> dict[str, str]:
    """The variables that the platform at `base_url` sets for a worker.

    `$ID` and `$RUNPOD_POD_ID` stay as they are: the SDK fills them in. The query string is
    there because the SDK appends `&name=value` to each of these URLs.
    """
    endpoint = f"{base_url}/v2/{ENDPOINT}"
    return {
        "RUNPOD_ENDPOINT_ID": ENDPOINT,
        "RUNPOD_POD_ID": worker_id,
        "RUNPOD_AI_API_KEY": "rehearsal-key",
        "RUNPOD_WEBHOOK_GET_JOB": f"{endpoint}/job-take/$ID?gpu=none",
        "RUNPOD_WEBHOOK_POST_OUTPUT": f"{endpoint}/job-done/$RUNPOD_POD_ID/$ID?gpu=none",
        "RUNPOD_WEBHOOK_POST_STREAM": f"{endpoint}/job-stream/$RUNPOD_POD_ID/$ID?gpu=none",
        "RUNPOD_WEBHOOK_PING": f"{endpoint}/ping/$RUNPOD_POD_ID",
        "RUNPOD_PING_INTERVAL": str(PING_INTERVAL_MS),
    }
