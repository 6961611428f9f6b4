"""Whether a variant pays, in words, and what to do. Never surer than the rounds are. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from specworker.comparison import Comparison, Row
from specworker.measured import OFF
from specworker.speedup import SURE, Speedup

Kind = Literal["pays", "does_not_pay", "unclear", "unsettled"]

WORDS: dict[Kind, str] = {
    "pays": "pays",
    "does_not_pay": "does not pay",
    "unclear": "is too close to call",
    "unsettled": "is not settled by one round",
}
LIMIT = "SPECULATIVE_DISABLE_BY_BATCH_SIZE"


@dataclass(frozen=True)
class Finding:
    """What is found of a variant at one concurrency.

    Attributes:
        trial: in which it was measured.
        variant: its name.
        concurrency: requests in flight at most.
        kind: what it is.
        text: the same in words, with the figures.
        falls_short: whether it surely gains less than the margin.
    """

    trial: str
    variant: str
    concurrency: int
    kind: Kind
    text: str
    falls_short: bool = False


def findings(comparison: Comparison) -> tuple[Finding, ...]:
    """One for each row that has a speed-up."""
    return tuple(
        _finding(row, row.speedup, comparison.margin)
        for row in comparison.rows
        if row.speedup is not None
    )


def finding_lines(comparison: Comparison) -> tuple[str, ...]:
    """The same, a line each."""
    return tuple(
        f"{_at_once([one.concurrency])}, {comparison.label(one.trial, one.variant)} {one.text}."
        for one in findings(comparison)
    )


def kind_of(speedup: Speedup, margin: float) -> Kind:
    """It pays where it is surely faster, and by the margin in half of the rounds."""
    if not speedup.is_settled:
        return "unsettled"
    if speedup.pays(margin):
        return "pays"
    return "does_not_pay" if speedup.is_slower else "unclear"


def _finding(row: Row, speedup: Speedup, margin: float) -> Finding:
    kind = kind_of(speedup, margin)
    counts = row.counts
    length = f"{counts.mean_length:.1f} tokens per drafted step"
    parts = [seen(speedup), length if counts.drafts else "nothing was drafted"]
    falls_short = speedup.upper < 1 + margin
    if kind == "unclear" and (falls_short or speedup.median < 1 + margin):
        surely = "surely " if falls_short else ""
        parts.append(f"{surely}less than the {margin:.0%} that would be worth it")
    text = f"{WORDS[kind]}: {', '.join(parts)}"
    return Finding(row.trial, row.variant, row.concurrency, kind, text, falls_short)


def seen(speedup: Speedup) -> str:
    """A speed-up with its interval, in a clause."""
    times = f"{speedup.median:.2f} times as fast as off"
    if not speedup.is_settled:
        return times
    interval = f"{SURE:.0%} interval {speedup.lower:.2f} to {speedup.upper:.2f}"
    return f"{times} ({interval}, {speedup.rounds} rounds)"


def conclusions(comparison: Comparison) -> tuple[str, ...]:
    """What to do, a sentence for each variant, and which is the fastest of several."""
    found = findings(comparison)
    told = []
    for trial, variant in comparison.variants:
        own = [one for one in found if (one.trial, one.variant) == (trial, variant)]
        if own:
            label = comparison.label(trial, variant)
            told.append(f"{label} {conclusion(own, comparison.margin)}.")
    if len(told) > 1:
        told.append(_fastest(comparison))
    return tuple(told)


def conclusion(found: Sequence[Finding], margin: float) -> str:
    """What to do about one variant, by what is found at each concurrency, ascending."""
    at: dict[Kind, list[int]] = {kind: [] for kind in WORDS}
    for one in found:
        at[one.kind].append(one.concurrency)
    paying, losing, unclear = at["pays"], at["does_not_pay"], at["unclear"] + at["unsettled"]
    if len(at["unsettled"]) == len(found):
        return "was measured in one round, which settles nothing: measure more rounds to decide"
    if not paying:
        if not losing and all(one.falls_short for one in found):
            return (
                f"surely gains less than {margin:.0%} with {_at_once(unclear)}: there is no reason "
                "to keep it on"
            )
        if not losing:
            return (
                f"shows no sure gain of {margin:.0%} with {_at_once(unclear)}: measure more rounds "
                "or prompts; until then there is no reason to keep it on"
            )
        but = f"; with {_at_once(unclear)} it is too close to call" if unclear else ""
        return f"does not pay with {_at_once(losing)}{but}: turn it off"
    if not losing and not unclear:
        return f"pays with {_at_once(paying)}, all that was measured: keep it"
    others = losing + unclear
    if max(paying) > min(others):
        sides = {"does not pay": losing, "is too close to call": unclear}
        rest = [f"{words} with {_at_once(side)}" for words, side in sides.items() if side]
        return (
            f"pays with {_at_once(paying)}, but {' and '.join(rest)}. A gain usually shrinks as "
            "the load grows: measure more rounds before you rely on it"
        )
    limit = f"{LIMIT}={max(paying)}"
    if losing and not unclear:
        return f"pays with {_at_once(paying)}, and not with {_at_once(losing)}: set {limit}"
    lost = f" and does not pay with {_at_once(losing)}" if losing else ""
    return (
        f"pays with {_at_once(paying)}; it is too close to call with {_at_once(unclear)}{lost}: "
        f"set {limit} to keep what is sure, or measure more rounds"
    )


def _at_once(concurrencies: Iterable[int]) -> str:
    """`1, 4 and 16 requests at once`, of at least one number."""
    numbers = [f"{number}" for number in sorted(concurrencies)]
    listed = " and ".join(filter(None, [", ".join(numbers[:-1]), numbers[-1]]))
    return f"{listed} request{'s' * (numbers != ['1'])} at once"


def _fastest(comparison: Comparison) -> str:
    """Which variant gains most where, as far as the intervals tell them apart."""
    winners: dict[str, list[int]] = {}
    for concurrency in comparison.concurrencies:
        rows = [
            (row.speedup, comparison.label(row.trial, row.variant))
            for row in comparison.rows
            if row.concurrency == concurrency and row.variant != OFF and row.speedup is not None
        ]
        rows.sort(key=lambda pair: -pair[0].median)
        if not rows:
            continue
        (best, name), *others = rows
        surest = all(best.lower > other.upper for other, _ in others)
        clear = best.pays(comparison.margin) and surest
        winners.setdefault(name if clear else "", []).append(concurrency)
    unclear = winners.pop("", [])
    told = [f"{name} gains most with {_at_once(at)}" for name, at in winners.items()]
    if unclear:
        told.append(f"none is surely the fastest with {_at_once(unclear)}")
    return f"Of these, {'; '.join(told)}."


def agreement_lines(comparison: Comparison) -> tuple[str, ...]:
    """Whether the greedy answers are those of plain decoding, a line for each variant's row.

    Rows without a difference share one line.
    """
    told: list[str] = []
    same: dict[str, list[int]] = {}
    for one in comparison.agreements:
        label = comparison.label(one.trial, one.variant)
        if not one.differences:
            same.setdefault(label, []).append(one.concurrency)
            continue
        first = min(one.differences, key=lambda difference: difference.character)
        told.append(
            f"{label} with {_at_once([one.concurrency])}: {len(one.differences)} of "
            f"{one.compared} answers differ from those of off, first at word {first.word + 1} "
            f"(prompt {first.prompt + 1}): {one.reason(comparison.dtype)}."
        )
    if same:
        rows = [f"{label} with {_at_once(concurrencies)}" for label, concurrencies in same.items()]
        told.append(f"The same text as without drafts: {'; '.join(rows)}.")
    return tuple(told)
