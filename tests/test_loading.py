import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from specworker import loading
from specworker.errors import StartError

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _the_tests_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def left(status: int) -> None:
        raise AssertionError("the process would have ended")

    monkeypatch.setattr(os, "_exit", left)


async def test_what_a_start_brings_or_raises_is_handed_over() -> None:
    main = threading.current_thread()
    assert await loading.in_thread(lambda: threading.current_thread() is main) is False

    def fails() -> None:
        raise StartError("no room")

    with pytest.raises(StartError, match="no room"):
        await loading.in_thread(fails)


async def test_an_exit_in_the_thread_is_a_start_that_failed() -> None:
    def exits() -> None:
        sys.exit("no such flag")

    with pytest.raises(RuntimeError, match="SystemExit: no such flag"):
        await loading.in_thread(exits)


async def test_the_loop_goes_on_while_a_start_takes_its_time() -> None:
    go = threading.Event()
    start = loading.in_thread(lambda: go.wait(10))
    await asyncio.sleep(0.01)
    assert not start.done()
    go.set()
    assert await start


async def test_a_start_that_is_given_up_ends_with_its_processes() -> None:
    begun = threading.Event()
    process = multiprocessing.get_context("spawn").Process(
        target=time.sleep, args=(60,), daemon=True
    )

    def starts() -> str:
        process.start()
        begun.set()
        process.join()
        raise StartError("the process has ended")

    start = loading.in_thread(starts)
    while not begun.is_set():
        await asyncio.sleep(0.01)
    assert await loading.abandon(start) is None
    assert process.pid is not None
    assert not psutil.pid_exists(process.pid)


async def test_what_a_start_brings_after_all_is_not_lost() -> None:
    go = threading.Event()

    def starts() -> str:
        go.wait(10)
        return "engine"

    start = loading.in_thread(starts)
    asyncio.get_running_loop().call_later(0.2, go.set)
    assert await loading.abandon(start) == "engine"


def test_a_start_that_does_not_notice_is_left_behind() -> None:
    script = (
        "import asyncio, atexit, time\n"
        "from specworker import loading\n"
        "atexit.register(print, 'the interpreter ends beside the thread')\n"
        "async def main():\n"
        "    loading.NOTICE_SECONDS = 0.3\n"
        "    start = loading.in_thread(lambda: time.sleep(60))\n"
        "    await loading.abandon(start)\n"
        "asyncio.run(main())\n"
    )
    started = time.monotonic()
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=30)
    assert (ended.returncode, ended.stdout) == (0, b"")
    assert time.monotonic() - started < 15
