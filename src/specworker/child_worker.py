"""A worker that another process of ours started, and that does not outlive it.

Usage: python -m specworker.child_worker PARENT
"""

import ctypes
import os
import signal
import sys

#: Of Linux' prctl: the signal that a process gets when the thread that started it ends.
PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have this process, which leads its own group, be told to stop when `parent` ends.

    A process that is stopped takes no SIGTERM until it goes on. So the kernel sends the signal
    that has it go on, and what this then finds is that it has another parent.
    """

    def check(*_: object) -> None:
        if os.getppid() != parent:
            signal.signal(signal.SIGCONT, signal.SIG_DFL)  # the next line is for this one too
            os.killpg(0, signal.SIGCONT)
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGCONT, check)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
    check()  # it may have ended before


if __name__ == "__main__":  # vLLM's processes import this module again
    from specworker.main import main

    end_with(int(sys.argv[1]))
    sys.exit(main(os.environ, ["--serve"]))
