"""Servers in processes of their own."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import aiohttp

from specworker.errors import StartError

#: Seconds that a server has to end by itself.
END_SECONDS = 20
#: Seconds between lines on a start that takes its time.
PATIENCE = 15
#: What the worker's log says before the reason why it cannot start.
CANNOT_START = "cannot start:"
#: What a worker is given besides its own variables: it answers this machine alone, resets
#: its prefix cache when asked, and does not decode plainly in place of what is measured.
VARIABLES = {
    "MODE": "local",
    "PORT_HEALTH": "",
    "API_KEY": "none",
    "DRAIN_TIMEOUT_S": "0",
    "SPECULATIVE_FALLBACK": "off",
    "VLLM_SERVER_DEV_MODE": "1",
}


def free_port() -> int:
    """A port of this machine on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextlib.contextmanager
def served(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """A server's process, and nothing of it afterwards; it is let go on if it was stopped.

    Args:
        command: what starts it.
        environment: all of its variables.
        log: the file that it writes to.
    """
    with log.open("wb") as output:
        server = subprocess.Popen(  # noqa: S603
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGCONT)
            os.killpg(server.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(END_SECONDS)
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@contextlib.contextmanager
def worker(
    variables: Mapping[str, str], log: Path
) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """A worker that serves this machine, and its URL. It ends with this process at the latest."""
    port = free_port()
    command = (sys.executable, "-m", "specworker.child_worker", str(os.getpid()))
    environment = {**variables, **VARIABLES, "PORT": str(port)}
    with served(command, environment, log) as server:
        yield server, f"http://127.0.0.1:{port}"


async def ready(
    server: "subprocess.Popen[bytes]",
    url: str,
    log: Path,
    say: Callable[[str], None],
    headers: Mapping[str, str] | None = None,
) -> None:
    """Wait until the server is ready.

    Raises:
        StartError: it ended before, with the reason from its log.
    """
    started = told = time.monotonic()
    async with aiohttp.ClientSession() as session:
        while True:
            if server.poll() is not None:
                said = reason(await asyncio.to_thread(log.read_text, errors="replace"))
                raise StartError(f"{said} (its log: {log})")
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/health", headers=headers) as response:
                    if response.status == 200:
                        return
            if time.monotonic() - told > PATIENCE:
                told = time.monotonic()
                say(f"still loading after {told - started:.0f} s")
            await asyncio.sleep(0.2)


def reason(log: str) -> str:
    """Why a server ended, by its log: what it says of its start, else the last lines."""
    lines = [_message(line) for line in log.splitlines() if line.strip()]
    text = "\n".join(lines)
    if CANNOT_START in text:
        lines = text.rpartition(CANNOT_START)[2].splitlines()
        # What is logged after the reason is not indented.
        found = [line for line in lines if line.startswith("  ")]
        return "; ".join(line.strip() for line in found)
    return "; ".join(line.strip() for line in lines[-3:]) or "it said nothing"


def _message(line: str) -> str:
    """What a line of the log says; a platform's lines are JSON."""
    with contextlib.suppress(json.JSONDecodeError):
        value = json.loads(line)
        if isinstance(value, dict) and isinstance(value.get("message"), str):
            return str(value["message"])
    return line
