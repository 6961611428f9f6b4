"""Engines that take turns: the one that waits is stopped, since a waiting engine polls."""

import contextlib
from collections.abc import Iterable, Iterator

import psutil


@contextlib.contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    """Keep `processes` from running meanwhile."""
    _suspend(processes)
    try:
        yield
    finally:
        _resume(processes)


@contextlib.contextmanager
def running(processes: list[psutil.Process]) -> Iterator[None]:
    """Let `processes`, which are stopped, run meanwhile."""
    _resume(processes)
    try:
        yield
    finally:
        _suspend(processes)


def _suspend(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # an engine that was closed
            process.suspend()


def _resume(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def children() -> set[psutil.Process]:
    """Every process below this one."""
    return set(psutil.Process().children(recursive=True))
