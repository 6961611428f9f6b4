"""A job through the engine: request in, job outputs out. Every mode that takes jobs uses it."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from specworker import asgi, jobs, sse
from specworker.errors import RequestError, job_error

if TYPE_CHECKING:
    from specworker.engine import Engine

logger = logging.getLogger(__name__)


async def outputs(
    engine: "Engine", job_input: Any, stream_interval: float
) -> AsyncGenerator[Any, None]:
    """Answer one job.

    Yields:
        The response object; or, for a stream, texts that concatenate to server-sent
        events ending in `data: [DONE]`; or `{"error": <JSON text>}`, which fails the job.

    Args:
        engine: the loaded engine.
        job_input: what stands under `input` in the job.
        stream_interval: seconds of events that a stream sends in one piece.

    Closing the generator aborts the request in the engine.
    """
    try:
        request = jobs.request_of(job_input, engine.served_name)
    except RequestError as error:
        yield job_error(error.body(), error.status)
        return
    app = await engine.app()
    async with asgi.request(app, request.method, request.path, request.body) as response:
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            stream = sse.grouped(sse.Events(response.piece), stream_interval)
            async with aclosing(stream):
                async for group in stream:
                    yield group
            return
        body = jobs.parsed(await response.read())
    if response.status >= 400:
        logger.warning("job failed with status %d", response.status)
        yield job_error(body, response.status)
    else:
        yield body
