"""How long the parts of a start take."""

import time


class Stopwatch:
    """Measures one part after the other.

    Attributes:
        laps: seconds by the name of the part.
    """

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._since = time.monotonic()

    def lap(self, part: str) -> None:
        """Count the time since the last lap to `part`."""
        now = time.monotonic()
        self.laps[part] = self.laps.get(part, 0.0) + now - self._since
        self._since = now


def line(laps: dict[str, float]) -> str:
    """The parts and the sum of them, in seconds."""
    parts = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in laps.items())
    return f"{sum(laps.values()):.1f} s ({parts})"
