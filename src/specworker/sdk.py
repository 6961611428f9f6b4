"""The Runpod SDK's loop, with what the worker needs of it and the SDK does not do.

Everything of the SDK's inside that the worker touches is here, and named in the drift
test. The SDK reads the platform's variables when it is imported.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import runpod
from aiohttp_retry import ExponentialRetry
from runpod.serverless.modules import rp_http, rp_scale

logger = logging.getLogger(__name__)

#: A post of a result is tried this often, over about half a minute.
POST_ATTEMPTS = 8
LONGEST_PAUSE_SECONDS = 10.0
#: Seconds that an open poll may still bring a job after the platform said stop.
LAST_POLL_SECONDS = 1.0


def retry_options(attempts: int) -> ExponentialRetry:  # noqa: ARG001 - the SDK's own number
    """How a job's posts are retried: dropped connections, time-outs, 429 and every 5xx.

    The SDK itself retries only 5xx, twice; whatever else happens loses a chunk or the
    whole result.
    """
    return ExponentialRetry(
        attempts=POST_ATTEMPTS,
        start_timeout=0.1,
        max_timeout=LONGEST_PAUSE_SECONDS,
        statuses={429},
        exceptions={aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError},
    )


@dataclass
class Loop:
    """What the SDK's loop does beside taking and answering jobs, and how to stop it.

    Attributes:
        ready: awaited in the loop before the first job is taken.
        beside: coroutine functions that run as long as the loop does.
        late_job: the output of a job that arrives after the platform said stop.
    """

    ready: Callable[[], Awaitable[object]]
    beside: Sequence[Callable[[], Coroutine[Any, Any, object]]]
    late_job: dict[str, str]
    scaler: "Scaler | None" = None

    @property
    def stopping(self) -> bool:
        """Whether no further job is taken."""
        return self.scaler is not None and not self.scaler.is_alive()

    def stop(self) -> None:
        """Take no further job; what runs is finished."""
        if self.scaler is not None:
            self.scaler.kill_worker()


class Scaler(rp_scale.JobScaler):  # type: ignore[misc]
    """The SDK's loop, which takes no job too early and loses none at the end."""

    def __init__(self, config: dict[str, Any], loop: Loop) -> None:
        super().__init__(config)
        loop.scaler = self
        self._room = asyncio.Event()
        self._loop = loop
        self._fetch_jobs = rp_scale.get_job
        self.jobs_fetcher = self._take
        if rp_scale._job_stop_url() is not None:  # else the SDK says that stops are off
            self._fetch_stops = rp_scale.get_stop_signals
            self.stop_signals_fetcher = self._stops

    async def run(self) -> None:
        """Answer jobs until told to stop, the first one only when all is ready."""
        await self._loop.ready()
        beside = [asyncio.create_task(work()) for work in self._loop.beside]
        try:
            await super().run()
        finally:
            for task in beside:
                task.cancel()

    def current_occupancy(self) -> int:
        """Jobs taken and not yet ended. The SDK counts those twice that wait to be started."""
        return int(self.job_progress.get_job_count())

    async def set_scale(self) -> None:
        """Let the intake go on as soon as there is room, where the SDK looks once a second."""
        await super().set_scale()
        while self.is_alive() and self.current_occupancy() >= self.current_concurrency:
            self._room.clear()
            await self._room.wait()

    async def handle_job(self, session: aiohttp.ClientSession, job: dict[str, Any]) -> None:
        """Answer a job, then make its room known."""
        try:
            await super().handle_job(session, job)
        finally:
            self._room.set()

    def kill_worker(self) -> None:
        """Stop taking jobs."""
        super().kill_worker()
        self._room.set()

    async def _take(self, session: aiohttp.ClientSession, wanted: int) -> Any:
        """Poll for jobs. One that comes after the platform said stop is failed in words.

        The SDK would put it in a queue that nobody reads any more.
        """
        poll = asyncio.create_task(self._fetch_jobs(session, wanted))
        jobs = await self._unless_stopped(poll)
        if self.is_alive():
            return jobs
        for job in jobs or ():
            logger.warning("job %s came after the platform said stop: failed", job["id"])
            await rp_http.send_result(session, self._loop.late_job, job)
        return None

    async def _stops(self, session: aiohttp.ClientSession) -> Any:
        poll = asyncio.create_task(self._fetch_stops(session))
        return await self._unless_stopped(poll) or []

    async def _unless_stopped(self, poll: "asyncio.Task[Any]") -> Any:
        """A poll's answer; None when nothing runs any more and it brings nothing in time."""
        try:
            while not poll.done() and (self.is_alive() or self.job_progress.get_job_count()):
                await asyncio.wait({poll}, timeout=0.2)
            await asyncio.wait({poll}, timeout=LAST_POLL_SECONDS)
            return await poll if poll.done() else None
        finally:
            poll.cancel()


def start(handler: Callable[[dict[str, Any]], Any], concurrency: int, loop: Loop) -> None:
    """Take and answer jobs until the platform stops the worker."""
    rp_http.FibonacciRetry = retry_options
    rp_scale.JobScaler = partial(Scaler, loop=loop)
    runpod.serverless.start(
        {
            "handler": handler,
            # A constant: a changed value stops the intake until the worker is idle.
            "concurrency_modifier": lambda _: concurrency,
            "return_aggregate_stream": True,
        }
    )
