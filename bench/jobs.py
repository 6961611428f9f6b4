"""What the queue costs: jobs through the platform and the SDK against the bare engine.

Tokens per second of the demo model at a number of jobs in flight, two ways that take
turns, the one that waits being stopped:

  bare    AsyncLLM.generate, in this process
  queue   jobs of the rehearsal platform, through the Runpod SDK and the worker

Usage: python bench/jobs.py [--rounds N] [--jobs N] [--concurrency N] [--tokens N]
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import uvloop
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.overhead import PROMPT, Stream, bare_stream
from specworker import demo_model, main, rehearsal, rehearsal_run
from specworker.main import LOCAL_DEFAULTS, PROCESS_DEFAULTS
from specworker.pausing import stopped, tree
from specworker.rehearsal import Platform
from specworker.rehearsal_server import serving

OPTIONS = {
    "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "demo",
    "MAX_MODEL_LEN": "2048",
    "MAX_NUM_SEQS": "64",
    "KV_CACHE_MEMORY_BYTES": str(1024**3),
}


async def through_queue(platform: Platform, jobs: int, tokens: int) -> float:
    started = time.perf_counter()
    body = {"max_tokens": tokens, "ignore_eos": True}
    queued = [platform.submit({"prompt": PROMPT, "sampling_params": body}) for _ in range(jobs)]
    assert await platform.until(lambda: all(job.ended for job in queued), 600)
    assert all(job.error is None for job in queued)
    return jobs * tokens / (time.perf_counter() - started)


async def bare(options: argparse.Namespace, stream: Stream) -> float:
    free = asyncio.Semaphore(options.concurrency)

    async def one() -> None:
        async with free:
            await stream(options.tokens)

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(options.jobs)))
    return float(options.jobs * options.tokens / (time.perf_counter() - started))


async def measure(options: argparse.Namespace, model: str) -> list[tuple[float, float]]:
    environment = OPTIONS | {"MODEL_NAME": model}
    engine = main.load(environment, *main.configure(environment))
    stream = bare_stream(engine)
    ours = psutil.Process().children(recursive=True)
    platform = Platform()
    pairs = []
    with serving(platform) as url, tempfile.TemporaryFile() as log:
        variables = rehearsal_run.WORKER_DEFAULTS | rehearsal.environment(url, "worker-1")
        variables["MAX_CONCURRENCY"] = str(options.concurrency)
        with stopped(ours):
            worker = subprocess.Popen(
                [sys.executable, "handler.py"],
                env=dict(os.environ) | environment | variables,
                stdout=log,
                stderr=log,
            )
            assert await platform.until(lambda: platform.polls["job-take"], 240)
        try:
            rounds = track(range(-1, options.rounds), "rounds", console=Console(stderr=True))
            for number in rounds:
                with stopped(tree(worker.pid)):
                    alone = await bare(options, stream)
                with stopped(ours):
                    queued = await through_queue(platform, options.jobs, options.tokens)
                if number >= 0:  # the first warms up
                    pairs.append((alone, queued))
        finally:
            worker.terminate()
            platform.drain()
            await asyncio.to_thread(worker.wait, 60)
    await engine.aclose()
    return pairs


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=90)
    parser.add_argument("--concurrency", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=64)
    return parser.parse_args()


if __name__ == "__main__":
    for variable, value in (PROCESS_DEFAULTS | LOCAL_DEFAULTS).items():
        os.environ.setdefault(variable, value)
    found = uvloop.run(measure(parse(), str(demo_model.prepare())))
    ratios = [queued / alone for alone, queued in found]
    print(f"bare  {statistics.median(alone for alone, _ in found):.0f} tokens/s")
    print(f"queue {statistics.median(queued for _, queued in found):.0f} tokens/s")
    print(f"ratio {statistics.median(ratios):.3f} ({min(ratios):.2f}–{max(ratios):.2f})")
