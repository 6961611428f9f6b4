"""What trying another K may lose, and what it does. Pure."""

#: Tokens that a model reads in about the time of one.
AT_ONCE = 64


class Budget:
    """Time that trials may lose, in steps: a share of the steps, up to so many at once.

    Args:
        share: of the steps.
        allowance: the most there is; there from the first step that is timed.
    """

    def __init__(self, share: float, allowance: float) -> None:
        self._share, self._allowance = share, allowance
        self._left: float | None = None
        self._measured = self._lost = 0.0

    def grant(self) -> None:
        """Allow for trials of batches of a size that was not seen before, whatever others cost."""
        if self._left is None:
            self._left = self._allowance
        else:
            self._left = min(max(self._left, 0.0) + self._allowance / 2, self._allowance)

    def earn(self, steps: int, usual: float) -> None:
        """Take steps of about so many seconds each."""
        if self._left is not None:
            self._measured += steps * usual
            self._left = min(self._left + self._share * steps, self._allowance)

    def pay(self, seconds: float, usual: float) -> None:
        """Take what a trial lost, where a step takes so long; it may be more than there was."""
        if self._left is not None:
            self._lost += seconds
            self._left -= seconds / usual

    def affords(self, seconds: float, usual: float, reserve: float = 0.0) -> bool:
        """Whether a trial may lose as much, and leave so many steps in reserve."""
        return self._left is not None and seconds / usual + reserve <= self._left

    @property
    def lost(self) -> float:
        """The share of the time that was lost."""
        return self._lost / self._measured if self._measured else 0.0


class CatchingUp:
    """What it costs that a draft model reads, before it drafts again, what it missed."""

    def __init__(self) -> None:
        self._seconds = self._tokens = 0.0

    def add(self, seconds: float, tokens: int) -> None:
        """Take a step that was so much longer than usual, and the tokens that it made up for."""
        self._seconds = self._seconds / 2 + max(0.0, seconds)
        self._tokens = self._tokens / 2 + max(tokens, AT_ONCE)

    def cost(self, tokens: int) -> float:
        """Seconds for so many tokens; none before any was measured."""
        if not tokens or not self._tokens:
            return 0.0
        return self._seconds / self._tokens * max(tokens, AT_ONCE)
