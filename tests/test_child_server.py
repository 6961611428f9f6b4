"""Servers in processes of their own, and what their logs say. No engine starts."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from specworker import child_server, pausing
from specworker.child_server import served
from specworker.errors import StartError
from tests.servers import SOON

SLEEPING = "import signal, time; signal.signal(signal.SIGTERM, {}); time.sleep(600)"
#: Starts a process that ends with this one, says which, and waits.
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1], str(os.getpid())], start_new_session=True
)
print(child.pid, flush=True)
time.sleep(600)
"""
#: Ends in its own time, as a worker does, which its loop is told to.
CHILD = """
import asyncio, signal, sys
import uvloop
from specworker.child_worker import end_with

async def serve():
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print("ready", flush=True)
    await stopped.wait()

end_with(int(sys.argv[1]))
uvloop.run(serve())
"""


def is_gone(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_of_a_server_is_left(stopped: bool, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLEEPING.format("signal.SIG_DFL")]
    with served(command, os.environ, tmp_path / "log") as server:
        assert server.poll() is None
        if stopped:
            psutil.Process(server.pid).suspend()
    assert server.returncode == -signal.SIGTERM


def test_one_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_server, "END_SECONDS", 0.2)
    command = [sys.executable, "-c", f"{SLEEPING.format('signal.SIG_IGN')}"]
    with served(command, os.environ, tmp_path / "log") as server:
        time.sleep(0.5)
    assert server.returncode == -signal.SIGKILL


@pytest.mark.parametrize("stopped", [False, True])
def test_a_worker_does_not_outlive_what_started_it_even_while_it_is_stopped(stopped: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert parent.stdout.readline() == b"ready\n"
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        parent.kill()
    deadline = time.monotonic() + SOON
    while not is_gone(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def test_a_server_that_ends_before_it_is_ready_says_why(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "import sys; sys.exit('ERROR cannot start:\\n  DTYPE=int3: is no type')"
    with (
        served([sys.executable, "-c", script], os.environ, log) as server,
        pytest.raises(StartError) as failed,
    ):
        await child_server.ready(server, "http://127.0.0.1:9", log, print)
    assert str(failed.value) == f"DTYPE=int3: is no type (its log: {log})"


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (
            "INFO a\nERROR cannot start:\n  A=1: is wrong\n  B=2: too\nINFO b\n",
            "A=1: is wrong; B=2: too",
        ),
        (
            '{"requestId": null, "message": "cannot start:\\n  A=1: is wrong", "level": "ERROR"}\n',
            "A=1: is wrong",
        ),
        ("one\n\ntwo\nthree\nKilled\n", "two; three; Killed"),
        ("", "it said nothing"),
    ],
)
def test_the_reason_is_read_off_the_log(log: str, says: str) -> None:
    assert child_server.reason(log) == says


def becomes(process: psutil.Process, *, stopped: bool) -> bool:
    deadline = time.monotonic() + SOON
    while (process.status() == psutil.STATUS_STOPPED) != stopped:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_of_several_servers_one_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLEEPING.format("signal.SIG_DFL")]
    with served(command, os.environ, tmp_path / "log") as server:
        processes = pausing.tree(server.pid)
        with pausing.stopped(processes):
            assert becomes(processes[0], stopped=True)
            with pausing.running(processes):
                assert becomes(processes[0], stopped=False)
            assert becomes(processes[0], stopped=True)
        assert becomes(processes[0], stopped=False)
