"""The rehearsal platform's routes: for workers, for clients, and the OpenAI front."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from specworker.rehearsal import Platform
from specworker.rehearsal_jobs import Job, PostPath, Status

#: Seconds that the stream route waits for something new; the SDK's client gives up after 10.
STREAM_WAIT = 5.0
#: Milliseconds that runsync waits, unless `?wait=` says otherwise.
RUNSYNC_WAIT_MS = 90_000
#: Seconds before a draining platform answers a poll, so that a worker does not spin.
DRAIN_PAUSE = 0.05

Found = TypeVar("Found")


def app(platform: Platform) -> Starlette:
    """The platform's routes, all under `/v2/<endpoint>`."""
    worker, client = _Worker(platform), _Client(platform)
    routes: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
        ("GET", "job-take/{worker}", worker.take),
        ("GET", "job-take-batch/{worker}", worker.take_batch),
        ("GET", "job-stop/{worker}", worker.stop),
        ("GET", "ping/{worker}", worker.ping),
        ("POST", "job-stream/{worker}/{job}", worker.stream),
        ("POST", "job-done/{worker}/{job}", worker.done),
        ("POST", "run", client.run),
        ("POST", "runsync", client.runsync),
        ("GET", "status/{job}", client.status),
        ("GET", "stream/{job}", client.stream),
        ("POST", "cancel/{job}", client.cancel),
        ("GET", "health", client.health),
        ("GET", "openai/{route:path}", client.openai),
        ("POST", "openai/{route:path}", client.openai),
    ]
    return Starlette(
        routes=[
            Route(f"/v2/{{endpoint}}/{path}", endpoint, methods=[method])
            for method, path, endpoint in routes
        ]
    )


class _Worker:
    """What the SDK calls."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform

    async def take(self, request: Request) -> Response:
        jobs = await self._take(request, 1)
        return _json(jobs[0]) if jobs else Response(status_code=204)

    async def take_batch(self, request: Request) -> Response:
        jobs = await self._take(request, int(request.query_params["batch_size"]))
        return _json(jobs) if jobs else Response(status_code=204)

    async def _take(self, request: Request, most: int) -> list[dict[str, Any]]:
        worker = request.path_params["worker"]
        self.platform.workers.add(worker)
        jobs = await self._poll(request, "job-take", lambda: self.platform.take(worker, most))
        return [{"id": job.id, "input": job.input} for job in jobs]

    async def stop(self, request: Request) -> Response:
        worker = request.path_params["worker"]
        ids = await self._poll(request, "job-stop", lambda: self.platform.take_stops(worker))
        return _json({"jobsToStop": ids}) if ids else Response(status_code=204)

    async def _poll(
        self, request: Request, name: str, look: Callable[[], list[Found]]
    ) -> list[Found]:
        """What `look` finds, once it finds something; nothing for a worker that has gone."""
        platform = self.platform
        gone = threading.Event()
        found: list[Found] = []

        def leave() -> None:
            gone.set()
            platform.tell()

        def over() -> bool:
            if gone.is_set() or platform.draining:
                return True
            found.extend(look())
            return bool(found)

        _when_gone(request, leave)
        platform.polls[name] += 1
        platform.tell()
        try:
            await asyncio.sleep(DRAIN_PAUSE if platform.draining else 0)
            await platform.until(over, platform.poll_seconds)
        finally:
            platform.polls[name] -= 1
            platform.tell()
        return found

    async def ping(self, request: Request) -> Response:
        self.platform.ping(request.path_params["worker"], dict(request.query_params))
        return Response()

    async def stream(self, request: Request) -> Response:
        return await self._post(request, "job-stream")

    async def done(self, request: Request) -> Response:
        return await self._post(request, "job-done")

    async def _post(self, request: Request, path: PostPath) -> Response:
        job = _job(self.platform, request)
        post = self.platform.receive(path, job, await request.body())
        await asyncio.sleep(post.fault.delay)
        if post.status is None:
            request.state.transport.abort()
            await _gone(request)
            return Response()  # reaches nobody
        return _json({"error": post.problem} if post.problem else {}, post.status)


class _Client:
    """What a client of the endpoint calls."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform

    async def run(self, request: Request) -> Response:
        job = await self._submitted(request)
        return _json({"id": job.id, "status": Status.IN_QUEUE})

    async def runsync(self, request: Request) -> Response:
        job = await self._submitted(request)
        wait = min(max(int(request.query_params.get("wait", RUNSYNC_WAIT_MS)), 1000), 300_000)
        await self.platform.until(lambda: job.ended, wait / 1000)
        return _json(job.report())

    async def _submitted(self, request: Request) -> Job:
        if "input" not in (body := await _body(request)):
            raise HTTPException(400, "a job is an object with an input")
        return self.platform.submit(body["input"])

    async def status(self, request: Request) -> Response:
        return _json(_job(self.platform, request).report())

    async def stream(self, request: Request) -> Response:
        job = _job(self.platform, request)
        await self.platform.until(lambda: job.ended or len(job.chunks) > job.read, STREAM_WAIT)
        status, chunks = job.status, job.chunks[job.read :]
        job.read += len(chunks)
        return _json({"status": status, "stream": [{"output": chunk.output} for chunk in chunks]})

    async def cancel(self, request: Request) -> Response:
        job = _job(self.platform, request)
        self.platform.stop(job)
        return _json({"id": job.id, "status": job.status})

    async def health(self, request: Request) -> Response:  # noqa: ARG002
        return _json(self.platform.health())

    async def openai(self, request: Request) -> Response:
        body = await _body(request)
        streams = body.get("stream") is True
        job = self.platform.submit(
            {"openai_route": f"/{request.path_params['route']}", "openai_input": body}
        )
        _when_gone(request, lambda: self.platform.stop(job))
        await self.platform.until(lambda: job.ended or (streams and bool(job.chunks)))
        if streams and job.chunks and isinstance(job.chunks[0].output, str):
            return StreamingResponse(self._texts(job), media_type="text/event-stream")
        await self.platform.until(lambda: job.ended)
        if job.status is not Status.COMPLETED:
            return _json(job.report(), 500)
        output = job.output
        return _json(output[0] if isinstance(output, list) and len(output) == 1 else output)

    async def _texts(self, job: Job) -> AsyncIterator[str]:
        """A job's stream as one text; where the job fails, it just ends."""
        sent = 0

        def more() -> bool:
            return len(job.chunks) > sent or job.ended

        while await self.platform.until(more) and (chunks := job.chunks[sent:]):
            for chunk in chunks:
                yield str(chunk.output)
            sent += len(chunks)


def _job(platform: Platform, request: Request) -> Job:
    if (job := platform.jobs.get(request.path_params["job"])) is None:
        raise HTTPException(404, "no such job")
    return job


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object that a client sent; empty where it sent nothing."""
    try:
        body = json.loads(await request.body() or b"{}")
    except ValueError as error:
        raise HTTPException(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise HTTPException(400, "the body is no JSON object")
    return body


def _json(content: Any, status: int = 200) -> Response:
    """An answer in ASCII, so that even a lone surrogate passes as it was sent."""
    return Response(json.dumps(content), status, media_type="application/json")


#: Kept here because the event loop itself keeps no task alive.
_watching: set[asyncio.Task[None]] = set()


def _when_gone(request: Request, act: Callable[[], None]) -> None:
    """Call `act` when the other side has left, or has its whole answer."""

    async def watch() -> None:
        await _gone(request)
        act()

    task = asyncio.create_task(watch())
    _watching.add(task)
    task.add_done_callback(_watching.discard)


async def _gone(request: Request) -> None:
    """Return when the other side has left, or has its whole answer."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
