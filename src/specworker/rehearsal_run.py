"""A rehearsal from start to end: the platform, a worker under it, and the jobs' tally."""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence

from specworker import demo_model, rehearsal, rehearsal_server, speculation
from specworker.errors import ConfigurationError
from specworker.rehearsal_jobs import Status
from specworker.settings import Settings

#: What a worker on a laptop needs, unless the user has set it: the SDK's own checks ask for
#: the memory, the disk, the network and the GPUs of a data centre.
WORKER_DEFAULTS = {
    "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
    "RUNPOD_SKIP_GPU_CHECK": "true",
    "RUNPOD_LOG_LEVEL": "INFO",
}
WORKER_ID = "worker-1"
WORKER = (sys.executable, "handler.py")


def run(user: Mapping[str, str], port: int, command: Sequence[str] | None) -> int:
    """Play the platform until the worker ends or Ctrl-C. Returns the exit status.

    Args:
        user: the user's environment, which the worker inherits.
        port: where the platform listens; 0 for a free port.
        command: what starts the worker; empty for `handler.py`, None for no worker, whose
            variables go to stdout.
    """
    platform = rehearsal.Platform()
    try:
        demo = {} if command or command is None else demo_environment(user)
        with rehearsal_server.serving(platform, port) as base_url:
            variables = rehearsal.environment(base_url, WORKER_ID)
            if command is None:
                status = asyncio.run(_serve_alone(base_url, variables))
            else:
                environment = WORKER_DEFAULTS | dict(user) | demo | variables
                status = asyncio.run(
                    _run_worker(base_url, command or WORKER, environment, platform)
                )
    except (ConfigurationError, OSError) as error:
        _say(f"cannot start: {error}")
        return 2
    _say(tally(platform))
    return status


def demo_environment(user: Mapping[str, str]) -> dict[str, str]:
    """The variables that let `handler.py` serve the demo model where no model is named.

    Raises:
        ConfigurationError: the demo model is not installed.
    """
    settings, _ = Settings.read(user)
    if not settings.serves_demo:
        return {}
    decided = {} if speculation.is_set(settings) else speculation.DEMO
    return {name.upper(): str(value) for name, value in decided.items()} | {
        "MODEL_NAME": str(demo_model.prepare()),
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE": demo_model.NAME,
    }


async def _serve_alone(base_url: str, variables: Mapping[str, str]) -> int:
    """Print what a worker needs, and serve until an interrupt."""
    interrupted = _interrupts()
    _say(guide(base_url))
    for name, value in variables.items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
    sys.stdout.flush()
    await interrupted.wait()
    return 0


async def _run_worker(
    base_url: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    platform: rehearsal.Platform,
) -> int:
    """Run the worker to its end; at an interrupt, stop it as the platform would."""
    interrupted = _interrupts()
    worker = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdout=sys.stderr,  # what a worker says is a message
        start_new_session=True,  # Ctrl-C is for the platform, which then stops the worker
    )
    _say(guide(base_url))
    ended = asyncio.create_task(worker.wait())
    if not await _ends_first(ended, interrupted):
        _say("\nStopping the worker; Ctrl-C again kills it …")
        worker.terminate()
        platform.drain()
    if not await _ends_first(ended, interrupted):
        os.killpg(worker.pid, signal.SIGKILL)
    code = await ended
    return code if code >= 0 else 128 - code  # as a shell tells which signal ended it


def _interrupts() -> asyncio.Event:
    """An event that Ctrl-C and SIGTERM set."""
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    return interrupted


async def _ends_first(worker: asyncio.Task[int], interrupted: asyncio.Event) -> bool:
    """Whether the worker ends before the next interrupt, which this uses up."""
    interrupt = asyncio.create_task(interrupted.wait())
    await asyncio.wait({worker, interrupt}, return_when=asyncio.FIRST_COMPLETED)
    interrupt.cancel()
    interrupted.clear()
    return worker.done()


def guide(base_url: str) -> str:
    """How to call the endpoint that is served at `base_url`."""
    endpoint = f"{base_url}/v2/{rehearsal.ENDPOINT}"
    body = '{"messages": [{"role": "user", "content": "Hello"}], "stream": true}'
    return f"""Platform at {endpoint}; Ctrl-C ends it.

  from openai import OpenAI
  client = OpenAI(base_url="{endpoint}/openai/v1", api_key="any")

  curl -N {endpoint}/openai/v1/chat/completions \\
    -H 'Content-Type: application/json' -d '{body}'
"""


def tally(platform: rehearsal.Platform) -> str:
    """What became of the jobs, in a line."""
    counts = platform.tally()
    words = {
        Status.COMPLETED: "completed",
        Status.FAILED: "failed",
        Status.CANCELLED: "cancelled",
        Status.TIMED_OUT: "timed out",
        Status.IN_PROGRESS: "never reported",
        Status.IN_QUEUE: "never taken",
    }
    told = [f"{counts[status]} {word}" for status, word in words.items() if counts[status]]
    return f"Jobs: {', '.join(told) or 'none'}."


def _say(message: str) -> None:
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()
