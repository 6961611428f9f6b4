"""Processes of an engine forked from one that has imported vLLM: importing is most of a start.

What is forked is as fresh as what is spawned. It gets its task through a pipe, pickled, and has
nothing of the tests' process but its environment; only that vLLM's modules are there already.
"""

import contextlib
import os
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from unittest import mock

#: What is imported before anything is forked.
IMPORTED = ["vllm.v1.engine.core", "vllm.v1.executor.multiproc_executor"]
#: Where vLLM asks how processes are started: those of engines, and those of their workers.
ASKED = ("vllm.v1.engine.utils", "vllm.v1.executor.multiproc_executor")


class _Process(ForkServerProcess):
    def start(self) -> None:
        # What it is forked from has the environment of the first start.
        self.environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self.environment)
        # Python would start a second server for what this process starts in its turn.
        forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]
        with processes():
            super().run()


class _Context(ForkServerContext):
    Process = _Process


@contextlib.contextmanager
def processes() -> Iterator[None]:
    """Have the engines that this process starts be forked, not spawned."""
    context = _Context()
    context.set_forkserver_preload(IMPORTED)
    with contextlib.ExitStack() as stack:
        for module in ASKED:
            stack.enter_context(mock.patch(f"{module}.get_mp_context", return_value=context))
        yield
