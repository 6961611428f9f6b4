"""A start in a thread of its own, beside an event loop that goes on answering."""

import asyncio
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import TypeVar

import psutil

logger = logging.getLogger(__name__)

#: Seconds that a start has to notice that the processes which it waits for are gone.
NOTICE_SECONDS = 3.0

T = TypeVar("T")


def in_thread(function: Callable[[], T]) -> "asyncio.Future[T]":
    """Call `function` in a thread, which the end of the process does not wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except Exception as caught:  # noqa: BLE001 - whoever waits for the start gets it
            error = caught
        except BaseException as end:  # noqa: BLE001 - in a thread it ends nothing, tells nobody
            error = RuntimeError(f"the start ended with {type(end).__name__}: {end}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return future


async def abandon(start: "asyncio.Future[T]") -> T | None:
    """End a start and the processes that it started. What it brought, where it was quicker.

    A start that does not notice, such as one that downloads, is left: the process ends here.
    """
    for _ in range(round(NOTICE_SECONDS / 0.1)):
        for child in multiprocessing.active_children():
            _kill(child.pid)
        await asyncio.wait({start}, timeout=0.1)
        if start.done():
            return None if start.exception() else start.result()
    logging.shutdown()
    # The interpreter's own end would pull the ground from under the thread.
    os._exit(0)


def _kill(pid: int | None) -> None:
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
