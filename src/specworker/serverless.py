"""Jobs from Runpod's queue, through the Runpod SDK."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from specworker import serving

if TYPE_CHECKING:
    from specworker.engine import Engine
    from specworker.settings import Settings


def run(engine: "Engine", settings: "Settings") -> None:
    """Take jobs until the platform stops the worker. The engine is loaded already."""
    import runpod  # reads the platform's variables when it is imported

    async def handler(job: dict[str, Any]) -> AsyncGenerator[Any, None]:
        outputs = serving.outputs(engine, job.get("input"), settings.stream_interval)
        async with aclosing(outputs):
            async for output in outputs:
                yield output

    runpod.serverless.start(
        {
            "handler": handler,
            # A constant: a changed value stops the intake until the worker is idle.
            "concurrency_modifier": lambda _: settings.max_concurrency,
            "return_aggregate_stream": True,
        }
    )
