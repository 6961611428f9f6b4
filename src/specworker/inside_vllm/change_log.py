"""Changes of K in the log, not more than one in a while."""

from collections.abc import Callable

from vllm.logger import init_logger

logger = init_logger(f"vllm.{__name__}")

#: Seconds between two lines in the log, at least.
QUIET = 10.0


class ChangeLog:
    """Logs changes; of those that come too soon after a line, the next one tells the number.

    Args:
        clock: seconds, from any point on.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said = -QUIET
        self._unsaid = 0

    def __call__(self, change: str) -> None:
        """Log a change."""
        now = self._clock()
        if now - self._said < QUIET:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} changes before it not logged)" if self._unsaid else ""
        logger.info("%s%s", change, more)
        self._said, self._unsaid = now, 0
