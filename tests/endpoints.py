"""A rehearsal platform with a worker of the real SDK that polls it."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai

from specworker import rehearsal, rehearsal_run
from specworker.rehearsal import Platform
from specworker.rehearsal_jobs import Faults, Job
from specworker.rehearsal_server import serving

#: Seconds that anything here may take.
SOON = 60.0
#: Seconds that an engine may take to start.
ENGINE_SOON = 240.0
ROOT = Path(__file__).parent.parent


@dataclass
class Endpoint:
    platform: Platform
    worker: "subprocess.Popen[bytes]"
    folder: Path
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI

    async def ended(self, job: Job) -> bool:
        return await self.platform.until(lambda: job.ended, SOON)

    async def answered(self, job_input: Any) -> Job:
        """A job, once it has ended."""
        job = self.platform.submit(job_input)
        assert await self.ended(job)
        return job

    async def told_to_stop(self, job: Job) -> bool:
        for _ in range(100):
            if (self.folder / job.id).exists():
                return True
            await asyncio.sleep(0.05)
        return False

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    async def exit_status(self, within: float = SOON) -> int:
        return await asyncio.to_thread(self.worker.wait, within)


@asynccontextmanager
async def an_endpoint(
    folder: Path,
    script: str | None = None,
    faults: Faults | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Endpoint]:
    """A platform and a worker that polls it; both are gone afterwards.

    The worker runs `script`, or the container's entry point where there is none.
    """
    command = [sys.executable, "handler.py"]
    if script is not None:
        (folder / "worker.py").write_text(script)
        command = [sys.executable, str(folder / "worker.py")]
    platform = Platform(faults)
    with serving(platform) as base_url, (folder / "log").open("wb") as log:
        own = {name: value for name, value in os.environ.items() if not name.startswith("RUNPOD_")}
        variables = rehearsal_run.WORKER_DEFAULTS | rehearsal.environment(base_url, "worker-1")
        with subprocess.Popen(  # noqa: ASYNC220
            command,
            cwd=ROOT,
            env=own | variables | {"RUNPOD_PING_INTERVAL": "1000"} | dict(environment or {}),
            stdout=log,
            stderr=log,
        ) as worker:
            url = f"{base_url}/v2/{rehearsal.ENDPOINT}"
            try:
                async with (
                    httpx.AsyncClient(base_url=url, timeout=SOON) as client,
                    openai.AsyncOpenAI(
                        base_url=f"{url}/openai/v1", api_key="any", max_retries=0
                    ) as openai_client,
                ):
                    await _polls(platform, worker, SOON if script else ENGINE_SOON, folder / "log")
                    yield Endpoint(platform, worker, folder, client, openai_client)
            finally:
                worker.terminate()
                platform.drain()
                await asyncio.to_thread(worker.wait, SOON)


async def _polls(
    platform: Platform, worker: "subprocess.Popen[bytes]", within: float, log: Path
) -> None:
    """Wait for the worker's first polls; fails with its log when it ends before."""
    deadline = time.monotonic() + within
    polls = platform.polls
    while not await platform.until(lambda: polls["job-take"] and polls["job-stop"], 0.5):
        if worker.poll() is not None:
            said = await asyncio.to_thread(log.read_text)
            raise AssertionError(f"the worker ended: {said[-4000:]}")
        assert time.monotonic() < deadline, "the worker takes no job"
