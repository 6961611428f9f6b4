"""The image's own entry point, run as a container engine runs it, on a network of its own."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.image.buildah import Buildah

NETWORK = f"specworker-{os.getpid()}"
#: What runs on that network, from which nothing outside can be reached.
THERE = ("ip", "netns", "exec", NETWORK)
#: Seconds that a model may take to load, once the demo model is unpacked.
START_SECONDS = 400.0
#: Seconds that anything else may take.
SOON = 30.0


@contextmanager
def network() -> Iterator[None]:
    """A network with nothing but its own loopback."""
    subprocess.run(["ip", "netns", "add", NETWORK], check=True)
    try:
        subprocess.run([*THERE, "ip", "link", "set", "lo", "up"], check=True)
        yield
    finally:
        subprocess.run(["ip", "netns", "del", NETWORK], check=True)


@dataclass
class Running:
    """A container that runs.

    Attributes:
        popen: the process that runs it.
        command: the image's own.
        folder: where its output goes.
    """

    popen: "subprocess.Popen[bytes]"
    command: list[str]
    folder: Path

    @property
    def answer(self) -> str:
        """What it has put on stdout."""
        return (self.folder / "stdout").read_text()

    @property
    def log(self) -> str:
        """What it has put on stderr."""
        return (self.folder / "stderr").read_text()

    def ends(self, within: float = START_SECONDS) -> int:
        """Its exit status, once it has ended."""
        return self.popen.wait(within)

    def says(self, text: str, within: float = START_SECONDS) -> str:
        """The line of its log that has `text`, once it is there."""
        deadline = time.monotonic() + within
        while True:
            for line in self.log.splitlines():
                if text in line:
                    return line
            assert time.monotonic() < deadline, self.log
            assert self.popen.poll() is None, self.log
            time.sleep(0.2)

    def terminate(self) -> int:
        """Tell the worker to stop, as a container engine does. Its exit status."""
        family = psutil.Process(self.popen.pid).children(recursive=True)
        # What it is run by has the command among its own arguments, and it has a whole path.
        (worker,) = [one for one in family if _command(one)[1:] == self.command[1:]]
        worker.send_signal(signal.SIGTERM)
        return self.ends(SOON)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a zombie has none either
        return []


@contextmanager
def container(
    buildah: Buildah,
    image: str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    user: int | None = None,
) -> Iterator[Running]:
    """Run the image's entry point in a new container, which is removed afterwards."""
    config = buildah.config(image)
    command = [*config["Entrypoint"], *(config.get("Cmd") or [])]
    options = [f"--env={name}={value}" for name, value in (environment or {}).items()]
    if user is not None:  # without a line in /etc/passwd Docker gives it this home
        options += [f"--user={user}", "--env=HOME=/"]
    folder.mkdir()
    # Whatever it leaves behind ends with it.
    before = [*THERE, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with (
        buildah.container(image) as name,
        (folder / "stdout").open("wb") as stdout,
        (folder / "stderr").open("wb") as stderr,
    ):
        run = ["run", *options, name, "--", *command]
        popen = buildah.start(before, *run, stdout=stdout, stderr=stderr)
        try:
            yield Running(popen, command, folder)
        finally:
            if popen.poll() is None:
                os.killpg(popen.pid, signal.SIGKILL)
                popen.wait()


def ask(
    path: str, *, key: str | None = None, body: dict[str, Any] | None = None
) -> tuple[int, Any]:
    """A request to the container's port 8000. Returns status and body."""
    command = [*THERE, "curl", "--silent", "--max-time", "120", "--write-out", "\n%{http_code}"]
    command.append(f"http://127.0.0.1:8000{path}")
    if key:
        command += ["--header", f"Authorization: Bearer {key}"]
    if body is not None:
        command += ["--json", json.dumps(body)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    text, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(text) if text.startswith(("{", "[")) else text


def ssh(key: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run `command` over SSH in the container."""
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": "10",
        "LogLevel": "ERROR",
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
    }
    given: Sequence[str] = [f"-o{name}={value}" for name, value in options.items()]
    return subprocess.run(
        [*THERE, "ssh", *given, "-i", str(key), "root@127.0.0.1", *command],
        capture_output=True,
        text=True,
        check=False,
    )
