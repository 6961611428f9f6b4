"""What was decided about speculation, and why."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from specworker import drafting
from specworker.acceptance_rule import AcceptanceRule
from specworker.settings import Settings

#: Windows and drafts beyond this cost a lookup method more time than they save.
SENSIBLE_LOOKUP = 16


@dataclass(frozen=True)
class Speculation:
    """What was decided, and why.

    Attributes:
        config: vLLM's `speculative_config`; None for plain decoding.
        reasons: why it is as it is, one clause each.
        notes: what the user should know: variables that cannot take effect.
        problems: what cannot work, one line each: variable, value, what is allowed.
        rule: the rule by which drafted tokens are accepted.
        fallback: why what was set is off; None where it is as it was set.
        layers: the target's own layers that draft; None where something else does. The
            config then lacks its `model`, which is made of them.
        adaptive: whether K is chosen step by step.
        max_prompt_len: tokens of the longest prompt that is drafted for; None for any.
    """

    config: dict[str, Any] | None
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    rule: AcceptanceRule = field(default_factory=AcceptanceRule)
    fallback: str | None = None
    layers: tuple[int, ...] | None = None
    adaptive: bool = False
    max_prompt_len: int | None = None

    @property
    def only_predictions(self) -> bool:
        """Whether nothing drafts but what requests predict."""
        return self.config is not None and self.config.get("method") == "prediction"

    @property
    def line(self) -> str:
        """The one line that a log carries."""
        if self.config is None:
            head = "speculation off"
        else:
            head = f"speculation {', '.join(f'{key}={self.config[key]}' for key in self.config)}"
        return f"{head} ({'; '.join(self.reasons)})" if self.reasons else head


@dataclass
class Decision:
    """A `Speculation` while it is made."""

    config: dict[str, Any] | None = None
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    rule: AcceptanceRule = field(default_factory=AcceptanceRule)
    layers: tuple[int, ...] | None = None
    adaptive: bool = False
    max_prompt_len: int | None = None

    def without_effect(self, settings: Settings, variables: Iterable[str], why: str) -> None:
        """Note the variables of `variables` that are set, and why they do nothing."""
        if given := names_given(settings, variables):
            self.notes.append(f"{given}: no effect, {why}")

    def add_lookup(self, low: int | None, high: int | None) -> None:
        """Add the bounds of an n-gram lookup."""
        assert self.config is not None
        bounds, reasons = drafting.lookup(low, high)
        self.config |= bounds
        self.reasons += reasons
        widest, tokens = bounds["prompt_lookup_max"], self.config["num_speculative_tokens"]
        if max(widest, tokens) > SENSIBLE_LOOKUP:
            self.notes.append(
                f"NGRAM_PROMPT_LOOKUP_MAX={widest} with K={tokens}: windows and drafts above "
                f"{SENSIBLE_LOOKUP} cost time on long prompts and rarely match"
            )

    def add_schedule(self, limit: int) -> None:
        """Draft up to `limit` running requests, and not above."""
        assert self.config is not None
        tokens = self.config["num_speculative_tokens"]
        self.config["num_speculative_tokens_per_batch_size"] = drafting.schedule(limit, tokens)
        self.reasons.append(f"off above {limit} running requests")

    def made(self) -> Speculation:
        """The decision, final."""
        return Speculation(
            self.config,
            tuple(self.reasons),
            tuple(self.notes),
            tuple(self.problems),
            self.rule,
            layers=self.layers,
            adaptive=self.adaptive,
            max_prompt_len=self.max_prompt_len,
        )


def names_given(settings: Settings, variables: Iterable[str]) -> str:
    """The names of those of `variables` that are set."""
    return ", ".join(name.upper() for name in variables if getattr(settings, name) is not None)
