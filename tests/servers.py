"""A worker's process that is served over HTTP, and a client of it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

ROOT = Path(__file__).parent.parent
#: Seconds that anything here may take, but for an engine's start.
SOON = 20.0
#: Seconds that an engine may take to start.
ENGINE_SOON = 240.0


@dataclass
class Process:
    """A worker's process, and a client of its port.

    Attributes:
        answered: seconds from its start to its first answer.
        first: the status of that.
    """

    popen: "subprocess.Popen[bytes]"
    client: httpx.Client
    log_file: Path
    answered: float = 0.0
    first: int = 0

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def ping_turns(self, status: int, within: float = SOON) -> None:
        deadline = time.monotonic() + within
        while self.client.get("/ping").status_code != status:
            assert time.monotonic() < deadline, self.log
            assert self.popen.poll() is None, self.log
            time.sleep(0.02)

    @property
    def family(self) -> list[psutil.Process]:
        """The worker's process and every process below it."""
        return [psutil.Process(self.popen.pid), *_family(self.popen.pid)]

    def has_engine(self) -> bool:
        """Whether the process of the engine's core is there."""
        for process in self.family[1:]:
            with suppress(psutil.NoSuchProcess):  # it ended meanwhile
                if "EngineCore" in " ".join(process.cmdline()):
                    return True
        return False

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(SOON)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def start(folder: Path, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
    own = {name: text for name, text in os.environ.items() if not name.startswith("RUNPOD_")}
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "handler.py", *arguments],
            cwd=ROOT,
            env=own | {"XDG_CACHE_HOME": str(folder)} | environment,
            stdout=log,
            stderr=log,
        )


@contextmanager
def process(folder: Path, *arguments: str, **environment: str) -> Iterator[Process]:
    """A worker's process, from its first answer on."""
    port = free_port()
    started = time.monotonic()
    with (
        start(folder, *arguments, PORT=str(port), **environment) as popen,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=SOON) as client,
    ):
        running = Process(popen, client, folder / "log")
        try:
            while not running.first:
                try:
                    running.first = client.get("/ping").status_code
                except httpx.TransportError:
                    assert popen.poll() is None, running.log
                    time.sleep(0.01)
            running.answered = time.monotonic() - started
            yield running
        finally:
            for child in _family(popen.pid):
                child.kill()
            popen.kill()


def _family(pid: int) -> list[psutil.Process]:
    """Every process below this one."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
