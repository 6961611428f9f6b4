"""What to speculate with, from what was measured: first of each K, then in turns with off. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from specworker import choosing, theory
from specworker.acceptance import Acceptance
from specworker.choosing import Choice
from specworker.comparison import Row
from specworker.measured import MeasuringError, Round
from specworker.speedup import Speedup


@dataclass(frozen=True)
class Cell:
    """A K at one concurrency.

    Attributes:
        length: tokens that a step yields a request.
        step_time: seconds of a step, reading prompts left out.
    """

    length: float
    step_time: float


@dataclass(frozen=True)
class Tried:
    """A candidate whose values of K were measured.

    Attributes:
        name: the candidate's.
        cells: concurrency -> K -> what was measured, 0 among them.
        margin: the gain from which on drafts are worth it.
    """

    name: str
    cells: Mapping[int, Mapping[int, Cell]]
    margin: float = theory.MARGIN

    @cached_property
    def gains(self) -> dict[int, dict[int, float]]:
        """Concurrency -> K -> how many times as fast as K = 0."""
        return {size: choosing.gains(*_columns(found)) for size, found in self.cells.items()}

    @cached_property
    def choices(self) -> dict[int, Choice]:
        """The best K at each concurrency."""
        return {
            size: choosing.best(*_columns(found), self.margin) for size, found in self.cells.items()
        }

    @property
    def worth(self) -> float:
        """How many times as fast as without it is with these, over all concurrencies alike."""
        return choosing.mean_gain(self.choices)

    @property
    def highest(self) -> tuple[int, int, float]:
        """Concurrency, K and gain of what gains most, whether that is enough or not."""
        return max(
            ((size, k, gain) for size, found in self.gains.items() for k, gain in found.items()),
            key=lambda one: one[2],
        )

    @property
    def settings(self) -> list["Setting"]:
        """What of it is worth confirming: the best fixed K, and a K by batch size."""
        chosen = {size: choice.tokens for size, choice in self.choices.items()}
        if not any(chosen.values()):
            return []
        fixed = choosing.fixed(self.gains, margin=0)
        found = [Setting(self.name, dict.fromkeys(chosen, fixed.tokens))] if fixed.tokens else []
        if chosen not in [one.tokens for one in found]:
            found.append(Setting(self.name, chosen))
        return found


@dataclass(frozen=True)
class Setting:
    """What a worker could be set to.

    Attributes:
        candidate: how it drafts.
        tokens: concurrency -> K.
    """

    candidate: str
    tokens: Mapping[int, int]

    @property
    def is_fixed(self) -> bool:
        """Whether K is the same at each concurrency."""
        return len(set(self.tokens.values())) == 1

    @property
    def largest(self) -> int:
        """The largest K of it."""
        return max(self.tokens.values())

    @property
    def schedule(self) -> list[list[int]]:
        """Rows of [first batch size, last, K]."""
        return choosing.schedule(self.tokens)

    @property
    def name(self) -> str:
        """What tells it from others, in a few words."""
        if self.is_fixed:
            return f"{self.candidate} K={self.largest}"
        each = ",".join(str(tokens) for _, tokens in sorted(self.tokens.items()))
        return f"{self.candidate} K={each} by batch"


@dataclass(frozen=True)
class Confirmed:
    """A setting that took turns with off.

    Attributes:
        setting: as it was measured.
        speedups: concurrency -> how many times as fast as off.
        narrows: whether it may be turned off where it did not pay.
        margin: the gain from which on drafts are worth it.
    """

    setting: Setting
    speedups: Mapping[int, Speedup]
    narrows: bool
    margin: float

    def pays(self, size: int) -> bool:
        """Whether it is surely faster with drafts, and by the margin in half of the rounds."""
        return self.speedups[size].pays(self.margin)

    @cached_property
    def kept(self) -> Setting:
        """What of it is kept: K = 0 from the concurrency on at which it did not pay."""
        if not self.narrows:
            return self.setting
        tokens, paid = {}, True
        for size in sorted(self.speedups):
            paid = paid and (self.pays(size) or not self.setting.tokens[size])
            tokens[size] = self.setting.tokens[size] if paid else 0
        return Setting(self.setting.candidate, tokens)

    @property
    def worth(self) -> float:
        """How many times as fast as off what is kept is, over all concurrencies alike."""
        kept = self.kept.tokens
        return choosing.mean_gain(
            {
                size: Choice(k, 1.0 if k != self.setting.tokens[size] else found.median)
                for (size, found), k in zip(
                    sorted(self.speedups.items()),
                    (kept[size] for size in sorted(self.speedups)),
                    strict=True,
                )
            }
        )

    @property
    def is_worth_it(self) -> bool:
        """Whether it pays at the smallest concurrency of all, or alike over all of them."""
        if self.narrows:
            return any(self.kept.tokens.values())
        return all(found.is_faster for found in self.speedups.values()) and (
            self.worth >= 1 + self.margin
        )


def tried(
    name: str,
    variants: Mapping[str, int],
    rounds: Iterable[Round],
    margin: float,
    *,
    left_to_right: bool,
) -> Tried:
    """A candidate by its rounds.

    Args:
        name: the candidate's.
        variants: variant -> K.
        rounds: of these variants.
        margin: the gain from which on drafts are worth it.
        left_to_right: whether acceptance at the largest K tells that of all.

    Raises:
        MeasuringError: nothing was decoded, so that there is no time of a step.
    """
    groups: dict[tuple[int, int], list[Round]] = {}
    for one in rounds:
        if one.variant in variants:
            groups.setdefault((one.concurrency, variants[one.variant]), []).append(one)
    largest = max(variants.values())
    pooled = (found for (_, k), found in groups.items() if k == largest)
    counts = sum((one.counts for found in pooled for one in found), Acceptance())
    lengths = dict(enumerate(theory.mean_lengths(counts.rate_by_position)))
    cells: dict[int, dict[int, Cell]] = {}
    for (size, k), found in groups.items():
        cell = _cell(name, found)
        if left_to_right and k in lengths:
            cell = Cell(lengths[k], cell.step_time)
        cells.setdefault(size, {})[k] = cell
    return Tried(name, cells, margin)


def worth_confirming(found: Collection[Tried], count: int) -> list[Tried]:
    """The best of those that gain enough: those within the margin of the best, `count` at most."""
    good = sorted((one for one in found if one.settings), key=lambda one: -one.worth)
    return [one for one in good if one.worth * (1 + one.margin) >= good[0].worth][:count]


def confirmed(settings: Sequence[Setting], rows: Iterable[Row], margin: float) -> list[Confirmed]:
    """Settings of one candidate with the figures of their rounds beside off; the last narrows."""
    speedups: dict[str, dict[int, Speedup]] = {}
    for row in rows:
        if row.speedup:
            speedups.setdefault(row.variant, {})[row.concurrency] = row.speedup
    return [
        Confirmed(one, speedups[one.name], one is settings[-1], margin)
        for one in settings
        if one.name in speedups
    ]


def winner(found: Iterable[Confirmed]) -> Confirmed | None:
    """What is fastest of what is worth it; None for no drafts. Of equal ones the first."""
    return max((one for one in found if one.is_worth_it), key=lambda one: one.worth, default=None)


def why_lost(one: Tried, confirmed: Sequence[Confirmed], won: Confirmed | None) -> str:
    """Why a candidate is not what is chosen, in a clause; empty for the one that is."""
    if won and won.setting.candidate == one.name:
        return ""
    size, k, gain = one.highest
    if not one.settings:
        return (
            f"{gain:.2f} times as fast at best, with K={k} at {size} at once: below the "
            f"{1 + one.margin:.2f} that it must gain"
        )
    seen = [found for found in confirmed if found.setting.candidate == one.name]
    if not seen:
        return f"{one.worth:.2f} times as fast where first measured, which others surpass"
    best = max(seen, key=lambda found: found.worth)
    if not best.is_worth_it:
        each = ", ".join(f"{found} at {at}" for at, found in best.speedups.items())
        return f"in turns with off it did not pay: {each} at once"
    assert won is not None
    return f"{best.worth:.2f} times as fast as off, {won.setting.candidate} {won.worth:.2f}"


def _columns(found: Mapping[int, Cell]) -> tuple[dict[int, float], dict[int, float]]:
    """Lengths and times of steps, by K."""
    lengths = {k: cell.length for k, cell in found.items()}
    return lengths, {k: cell.step_time for k, cell in found.items()}


def _cell(name: str, rounds: Sequence[Round]) -> Cell:
    """The figures of the rounds with one K at one concurrency.

    The first token of an answer comes of reading the prompt, and so does the time to it.
    """
    answers = [answer for one in rounds for answer in one.answers]
    counts = sum((one.counts for one in rounds), Acceptance())
    decoded = sum(answer.tokens for answer in answers) - len(answers)
    # An answer that ends within a draft leaves accepted tokens behind.
    steps = max(counts.drafts, decoded - counts.accepted)
    seconds = sum(answer.elapsed - answer.ttft for answer in answers)
    if decoded <= 0 or steps <= 0 or seconds <= 0:
        first = rounds[0]
        raise MeasuringError(
            f"{name}: {first.variant}, {first.concurrency} at once: no answer has a second token, "
            "so that there is no time of a step; allowed: prompts with longer answers, or --tokens"
        )
    return Cell(decoded / steps, seconds / steps)
