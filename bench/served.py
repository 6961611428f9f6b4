"""Servers in processes of their own."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import aiohttp


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextlib.contextmanager
def served(
    command: list[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A server's process, and nothing of it afterwards; it is let go on if it was stopped."""
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGCONT)
            os.killpg(server.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(20)
            os.killpg(server.pid, signal.SIGKILL)


async def answers(
    session: aiohttp.ClientSession,
    url: str,
    headers: Mapping[str, str],
    server: subprocess.Popen[bytes],
    log: Path,
) -> None:
    """Wait until the server is ready. Raises RuntimeError with its log when it ends before."""
    while True:
        if server.poll() is not None:
            said = await asyncio.to_thread(log.read_text)
            raise RuntimeError(f"the server ended before it answered:\n{said[-4000:]}")
        with contextlib.suppress(aiohttp.ClientError):
            async with session.get(f"{url}/health", headers=headers) as response:
                if response.status == 200:
                    return
        await asyncio.sleep(0.5)
