"""Jobs from Runpod's queue, through the Runpod SDK."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from specworker import serving
from specworker.engine import Engine


def run(engine: Engine, *, max_concurrency: int, stream_interval: float) -> None:
    """Take jobs until the platform stops the worker. The engine is loaded already."""
    import runpod  # reads the platform's variables when it is imported

    async def handler(job: dict[str, Any]) -> AsyncGenerator[Any, None]:
        outputs = serving.outputs(engine, job.get("input"), stream_interval)
        async with aclosing(outputs):
            async for output in outputs:
                yield output

    runpod.serverless.start(
        {
            "handler": handler,
            # A constant: a changed value stops the intake until the worker is idle.
            "concurrency_modifier": lambda _: max_concurrency,
            "return_aggregate_stream": True,
        }
    )
