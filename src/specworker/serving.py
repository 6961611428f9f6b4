"""A job through the engine: request in, job outputs out. Every mode that takes jobs uses it."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from specworker import asgi, jobs, legacy, sse
from specworker.errors import RequestError, job_error
from specworker.job_record import JobRecord

if TYPE_CHECKING:
    from specworker.engine import Engine


async def outputs(
    engine: "Engine",
    job_input: Any,
    stream_interval: float,
    record: JobRecord | None = None,
    shapes: legacy.Shapes = legacy.CURRENT,
) -> AsyncGenerator[Any, None]:
    """Answer one job.

    Yields:
        The response object; or, for a stream, texts that concatenate to server-sent
        events ending in `data: [DONE]`. Whatever fails, the last output is
        `{"error": <JSON text>}`, which fails the job.

    Args:
        engine: the loaded engine.
        job_input: what stands under `input` in the job.
        stream_interval: seconds of events that a stream sends in one piece.
        record: filled in with what the job was and cost.
        shapes: which outputs of older workers are wanted.

    Closing the generator aborts the request in the engine.
    """
    record = record or JobRecord()
    try:
        request = jobs.request_of(job_input, engine.served_name)
        shape = shapes.of_job(request)
        record.route = f"{request.method} {request.path}"
        app = await engine.app()
        async with asgi.request(app, request.method, request.path, shape.body) as response:
            record.status = response.status
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                stream = _stream(response, shape, stream_interval, record)
                async with aclosing(stream):
                    async for output in stream:
                        yield output
                return
            body = jobs.parsed(await response.read())
    except RequestError as error:
        record.status = error.status
        yield job_error(error.body(), error.status)
        return
    record.note(body)
    record.first_output()
    yield job_error(body, response.status) if response.status >= 400 else shape.whole(body)


async def _stream(
    response: asgi.Response, shape: legacy.Shape, interval: float, record: JobRecord
) -> AsyncGenerator[Any, None]:
    """The groups of a stream; an error in it is the job's error too."""
    failed: dict[str, Any] | None = None
    try:
        async with aclosing(sse.grouped(sse.Events(response.piece), interval)) as groups:
            async for group in groups:
                record.first_output()
                failed = _noted(group, record) or failed
                for output in shape.outputs(group):
                    yield output
    except ConnectionError as broken:
        failed = RequestError(str(broken), status=500, kind="InternalServerError").body()
        for output in shape.outputs(f"data: {json.dumps(failed)}\n\ndata: [DONE]\n\n"):
            yield output
    for output in shape.rest():
        yield output
    if failed is not None:
        record.status = int(failed["error"].get("code") or 500)
        yield job_error(failed, record.status)


def _noted(group: str, record: JobRecord) -> dict[str, Any] | None:
    """Take a group's figures into the record; returns the error in it, if there is one."""
    failed = None
    for event in group.split("\n\n"):
        if '"usage"' not in event and '"error"' not in event:
            continue  # most events: they are parsed for nothing
        data = event[event.find("data: ") + 6 :]
        if data.startswith("{"):
            body = json.loads(data)
            record.note(body.get("response", body))
            failed = body if isinstance(body.get("error"), dict) else failed
    return failed
