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
                events = sse.Events(response.piece)
                groups = _noted(sse.grouped(events, stream_interval), record)
                async with aclosing(_shaped(groups, shape, record)) as stream:
                    async for output in stream:
                        yield output
                record.add(engine.figures(response.scope))
                return
            answer = jobs.parsed(await response.read())
    except RequestError as error:
        record.status = error.status
        yield job_error(error.body(), error.status)
        return
    record.note(answer)
    record.first_output()
    yield job_error(answer, response.status) if response.status >= 400 else shape.whole(answer)


async def _noted(groups: AsyncGenerator[str, None], record: JobRecord) -> AsyncGenerator[str, None]:
    """The groups of a stream, once their figures and errors are in the record.

    A stream that breaks ends in an event that says so.
    """
    async with aclosing(groups):
        try:
            async for group in groups:
                record.first_output()
                _note(group, record)
                yield group
        except ConnectionError as broken:
            record.failed = RequestError(str(broken), status=500, kind="InternalServerError").body()
            yield f"data: {json.dumps(record.failed)}\n\ndata: [DONE]\n\n"


async def _shaped(
    groups: AsyncGenerator[str, None], shape: legacy.Shape, record: JobRecord
) -> AsyncGenerator[Any, None]:
    """The outputs of a stream; an error in it is the job's error too."""
    async with aclosing(groups):
        async for group in groups:
            for output in shape.outputs(group):
                yield output
    for output in shape.rest():
        yield output
    if record.failed is not None:
        record.status = int(record.failed["error"].get("code") or 500)
        yield job_error(record.failed, record.status)


def _note(group: str, record: JobRecord) -> None:
    """Take a group's figures, its notes and its error into the record."""
    if not any(name in group for name in ('"usage"', '"notes"', '"error"')):
        return  # most groups: parsing them would cost more than answering does
    for event in legacy.chunks(group):
        record.note(event)
        record.note(event.get("response"))  # where the events of /v1/responses have figures
        if isinstance(event.get("error"), dict):
            record.failed = event
