"""Engines that take turns: the one that waits is stopped, since a waiting engine polls."""

import contextlib
from collections.abc import Iterator

import psutil


@contextlib.contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    """Keep `processes` from running meanwhile."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


@contextlib.contextmanager
def running(processes: list[psutil.Process]) -> Iterator[None]:
    """Let `processes`, which are stopped, run meanwhile."""
    for process in processes:
        process.resume()
    try:
        yield
    finally:
        for process in processes:
            process.suspend()


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def children() -> set[psutil.Process]:
    """Every process below this one."""
    return set(psutil.Process().children(recursive=True))
