"""Jobs from Runpod's queue, through the Runpod SDK. Every job that is taken is reported."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from specworker import legacy, outgoing, serving, start_failure, stopwatch
from specworker.errors import RequestError, job_error
from specworker.job_record import JobRecord
from specworker.stopwatch import Stopwatch

if TYPE_CHECKING:
    from specworker.engine import Engine
    from specworker.settings import Settings

logger = logging.getLogger(__name__)

#: Seconds between looks at the engine's health.
WATCH_SECONDS = 0.25


def _failure(message: str, status: int = 503) -> dict[str, str]:
    kind = "ServiceUnavailableError" if status == 503 else "InternalServerError"
    return job_error(RequestError(message, status=status, kind=kind).body(), status)


#: A job that came when the worker was already told to stop.
LATE_JOB = _failure("The worker is shutting down and did not start this job. Send it again.")
#: A job that still ran when the time for finishing was over.
UNFINISHED_JOB = _failure("The worker shut down before this job was finished. Send it again.")
INTERNAL_ERROR = _failure("The worker met an internal error; its log says more.", 500)


class Worker:
    """Answers jobs with an engine, until the platform or the engine ends that."""

    def __init__(self, engine: "Engine", settings: "Settings") -> None:
        from specworker import sdk

        self._engine = engine
        self._settings = settings
        self._shapes = legacy.Shapes.of(settings)
        self._time_is_up = asyncio.Event()
        self._engine_died = False
        self._sdk = sdk
        self._loop = sdk.Loop(self._open, (self._watch_engine, self._limit_drain), LATE_JOB)

    def run(self) -> int:
        """Take and answer jobs. Returns the exit status: 1 when the engine died."""
        self._sdk.start(self.answer, self._settings.max_concurrency, self._loop)
        return int(self._engine_died)

    async def answer(self, job: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """The handler: a job's outputs, each of which the SDK can send.

        Whatever goes wrong ends in an error output, but for a stop by the platform, which
        the SDK does not report either.
        """
        record = JobRecord()
        try:
            async with aclosing(self._outputs(job.get("input"), record)) as outputs:
                async for output in outputs:
                    yield output
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                record.status = 499
                raise
            logger.exception("job %s: cancelled from within", job.get("id"))
            yield INTERNAL_ERROR
        except Exception:
            logger.exception("job %s: internal error", job.get("id"))
            record.status = 500
            yield INTERNAL_ERROR
        finally:
            logger.info("job %s %s", job.get("id"), record.line)

    async def _outputs(self, job_input: Any, record: JobRecord) -> AsyncGenerator[Any, None]:
        """Outputs that the platform takes, for as long as the worker may finish."""
        interval = self._settings.stream_interval
        answers = serving.outputs(self._engine, job_input, interval, record, self._shapes)
        total = 0
        async with aclosing(answers):
            while True:
                output = await self._next(answers)
                if output is None:
                    return
                output, size = outgoing.encodable(output)
                total += size
                fails = isinstance(output, dict) and "error" in output
                if total > self._settings.max_result_mb * 1024**2 and not fails:
                    record.status = 413
                    for last in self._too_large(isinstance(output, str)):
                        yield last
                    return
                yield output

    async def _next(self, answers: AsyncGenerator[Any, None]) -> Any:
        """The next output; None after the last. An error when the worker must end."""
        pending = asyncio.ensure_future(anext(answers, None))
        ending = asyncio.ensure_future(self._time_is_up.wait())
        try:
            await asyncio.wait({pending, ending}, return_when=asyncio.FIRST_COMPLETED)
            return pending.result() if pending.done() else UNFINISHED_JOB
        finally:
            ending.cancel()
            if not pending.done():
                pending.cancel()
                await asyncio.gather(pending, return_exceptions=True)

    def _too_large(self, streams: bool) -> list[Any]:
        limit = self._settings.max_result_mb
        error = RequestError(
            f"The answer is larger than the {limit} MB that the platform carries "
            "(MAX_RESULT_MB). Ask for fewer choices, tokens or logprobs.",
            status=413,
            kind="PayloadTooLargeError",
        ).body()
        event = [f"data: {json.dumps(error)}\n\ndata: [DONE]\n\n"] if streams else []
        return [*event, job_error(error, 413)]

    async def _open(self) -> None:
        clock = Stopwatch()
        await self._engine.app()
        clock.lap("warm-up")
        logger.info("ready after %s", stopwatch.line(self._engine.started | clock.laps))

    async def _watch_engine(self) -> None:
        """End the loop when the engine has died: its jobs fail, and no more are taken."""
        while not self._engine.client.errored:
            await asyncio.sleep(WATCH_SECONDS)
        self._engine_died = True
        logger.error("the engine died: no more jobs are taken, and the worker ends")
        self._loop.stop()

    async def _limit_drain(self) -> None:
        while not self._loop.stopping:
            await asyncio.sleep(WATCH_SECONDS)
        await asyncio.sleep(self._settings.drain_timeout_s)
        self._time_is_up.set()


def run(load: "Callable[[], Engine]", settings: "Settings") -> int:
    """Load the engine and answer jobs. Returns the exit status."""
    try:
        engine = load()
    except Exception as error:  # noqa: BLE001 - whatever it is, jobs are told
        cause = start_failure.report(error)
        if settings.on_start_failure == "exit":
            return 2
        answer_with(cause, settings)
        return 1
    try:
        return Worker(engine, settings).run()
    finally:
        engine.close()


def answer_with(cause: str, settings: "Settings") -> None:
    """Fail every job with the reason why the worker could not start.

    A worker that ends instead is started again and again, and paid for.
    """
    from specworker import sdk

    failed = _failure(f"The worker could not start: {cause}")

    async def handler(job: dict[str, Any]) -> AsyncGenerator[Any, None]:
        logger.info("job %s failed: the worker could not start", job.get("id"))
        yield failed

    async def ready() -> None:
        logger.warning("ON_START_FAILURE=answer: every job fails with the reason")

    sdk.start(handler, settings.max_concurrency, sdk.Loop(ready, (), LATE_JOB))
