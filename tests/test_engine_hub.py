"""The Hub's own tests of the worker, as its harness runs them: in a pod, without a stream URL."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from specworker.rehearsal import Platform
from specworker.rehearsal_server import serving
from tests.endpoints import ENGINE_SOON, ROOT, SOON
from tests.engines import Rack

pytestmark = pytest.mark.engine("of its own")

LISTED = json.loads((ROOT / ".runpod/tests.json").read_text())
TESTS = {test["name"]: test["input"] for test in LISTED["tests"]}
#: The port that the harness serves its own API on, beside the worker in one container.
HARNESS_PORT = 80
#: Outputs above this are not shown to whoever reads the result.
REDACTED_BYTES = 10_000


@dataclass
class Harness:
    worker: "subprocess.Popen[bytes]"
    client: httpx.AsyncClient
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text()


def environment(base_url: str) -> dict[str, str]:
    """What the harness sets. Its shell fills in nothing, so the names stay as they are."""
    endpoint = f"{base_url}/v2/IDE"
    return {
        "RUNPOD_LOG_LEVEL": "INFO",
        "RUNPOD_POD_ID": "pod-1",
        "RUNPOD_ENDPOINT_BASE_URL": endpoint,
        "RUNPOD_WEBHOOK_GET_JOB": f"{endpoint}/job-take/$RUNPOD_POD_ID",
        "RUNPOD_WEBHOOK_POST_OUTPUT": (
            f"{endpoint}/job-done/$RUNPOD_POD_ID/$ID?gpu=$RUNPOD_GPU_TYPE_ID"
        ),
    }


@pytest.fixture(scope="module")
async def harness(
    tmp_path_factory: pytest.TempPathFactory, rack: Rack, demo_folder: Path
) -> AsyncIterator[Harness]:
    await rack.close()
    log_file = tmp_path_factory.mktemp("harness") / "log"
    listed = {item["key"]: item["value"] for item in LISTED["config"]["env"]}
    # The same model, which lies here already, on a machine smaller than a data centre's.
    here = {"MODEL_NAME": str(demo_folder), "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true"}
    platform = Platform()
    own = {name: text for name, text in os.environ.items() if not name.startswith("RUNPOD_")}
    with serving(platform) as base_url, log_file.open("wb") as log:
        worker = subprocess.Popen(  # noqa: ASYNC220
            ["/bin/sh", "-c", f"exec {sys.executable} -u handler.py"],
            cwd=ROOT,
            env=own | environment(base_url) | listed | here,
            stdout=log,
            stderr=log,
        )
        try:
            deadline = time.monotonic() + ENGINE_SOON
            while not await platform.until(lambda: platform.polls["job-take"], 0.5):
                assert worker.poll() is None, log_file.read_text()
                assert time.monotonic() < deadline, log_file.read_text()
            url = f"{base_url}/v2/IDE"
            async with httpx.AsyncClient(base_url=url, timeout=SOON) as client:
                yield Harness(worker, client, log_file)
        finally:
            worker.terminate()
            platform.drain()
            await asyncio.to_thread(worker.wait, SOON)


@pytest.mark.parametrize("name", TESTS)
async def test_a_test_of_the_listing_passes(harness: Harness, name: str) -> None:
    result = (await harness.client.post("/runsync", json={"input": TESTS[name]})).json()
    assert result["status"] == "COMPLETED", result
    assert result["output"]
    assert len(json.dumps(result["output"])) < REDACTED_BYTES
    assert says_something(result["output"]), result


def says_something(output: Any) -> bool:
    """Whether an output holds what its test is about: text, models, or figures."""
    if isinstance(output[0], str):
        text = "".join(output)
        return '"content":' in text and text.endswith("data: [DONE]\n\n")
    (body,) = output
    if "choices" in body:
        choice = body["choices"][0]
        return bool(choice.get("text") or choice["message"]["content"])
    return bool(body.get("data") or body["windows"]["since_start"]["drafts"])


async def test_the_worker_leaves_the_harness_its_port(harness: Harness) -> None:
    process = psutil.Process(harness.worker.pid)
    listening = [
        connection.laddr.port
        for one in (process, *process.children(recursive=True))
        for connection in one.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert HARNESS_PORT not in listening


async def test_the_missing_stream_url_costs_no_job_its_time(harness: Harness) -> None:
    started = time.monotonic()
    job = {"input": TESTS["openai_chat_stream"]}
    assert (await harness.client.post("/runsync", json=job)).json()["status"] == "COMPLETED"
    assert time.monotonic() - started < SOON / 2
    assert "Traceback" not in harness.log
