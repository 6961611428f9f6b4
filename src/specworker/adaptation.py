"""What a controller that adapts K knows. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: What is told by K.
BY_K = ("yields", "seconds")


@dataclass(frozen=True)
class Adaptation:
    """A K that adapts.

    Attributes:
        most: the largest K that it may take.
        tokens: K as it is.
        batch: requests in the last step; 0 before the first.
        yields: tokens that a request is expected to gain in a step, by K.
        seconds: what a step of such a batch is expected to take, by K; empty while unknown.
        changes: how often K has changed, trials aside.
        trials: share of the time that trying other K lost.
        reason: the last change in words; empty before the first.
        gain: how many times as fast as at K = 0 it is expected to be; None while unknown.
    """

    most: int
    tokens: int = 0
    batch: int = 0
    yields: Mapping[int, float] = field(default_factory=dict)
    seconds: Mapping[int, float] = field(default_factory=dict)
    changes: int = 0
    trials: float = 0.0
    reason: str = ""
    gain: float | None = None

    def tell(self) -> dict[str, Any]:
        """In types that pass between processes: what goes by K as pairs."""
        pairs = {
            key: [[k, float(value)] for k, value in getattr(self, key).items()] for key in BY_K
        }
        return {**vars(self), **pairs}

    @classmethod
    def told(cls, state: Mapping[str, Any]) -> "Adaptation":
        """As `tell` tells it."""
        return cls(**{**state, **{key: dict(state[key]) for key in BY_K}})
