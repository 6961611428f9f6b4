"""What was found by tuning, for people and for programs."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from specworker import tuning
from specworker.candidates import Refused
from specworker.tuning import Confirmed, Tried

#: Of the JSON.
FORMAT = 1


@dataclass(frozen=True)
class Tuned:
    """Everything that is reported.

    Attributes:
        model: that was tuned for.
        tried: the candidates that were measured.
        refused: those that were not, and why.
        confirmed: settings of the best, beside off.
        won: what is set; None for no speculation.
    """

    model: str
    tried: tuple[Tried, ...]
    refused: tuple[Refused, ...]
    confirmed: tuple[Confirmed, ...]
    won: Confirmed | None


def verdict(found: Tuned) -> str:
    """What is chosen and why, in a sentence or two."""
    if won := found.won:
        stopped = [size for size, k in won.kept.tokens.items() if k != won.setting.tokens[size]]
        sizes = sorted(won.speedups.keys() - {*stopped})
        times = _listed(f"{won.speedups[size].median:.2f}" for size in sizes)
        text = (
            f"{won.kept.name}: {times} times as fast as without speculation, with "
            f"{_listed(map(str, sizes))} request{'s' * (sizes != [1])} at once"
        )
        if stopped:
            lost = ", ".join(f"{won.speedups[size]} at {size}" for size in sorted(stopped))
            text += f"; K = 0 from {min(stopped)} on, where it did not pay: {lost}"
        return text
    best = max(found.tried, key=lambda one: one.highest[2])
    return f"no speculation: nothing gains enough. {best.name}: " + tuning.why_lost(
        best, found.confirmed, None
    )


def _listed(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def comments(found: Tuned, workload: str, told: Mapping[str, Any]) -> Iterator[str]:
    """What stands above the lines to be set."""
    device, date = told.get("device", ""), told.get("date", "")
    yield f"python -m specworker tune: {workload} on {found.model}, {device}, {date}"
    yield verdict(found)


def table(found: Tuned) -> Table:
    """What was tried, and why it lost."""
    shown = Table(box=box.SIMPLE_HEAD)
    shown.add_column("tried")
    shown.add_column("best K by requests at once", overflow="fold")
    shown.add_column("outcome", overflow="fold")
    for one in sorted(found.tried, key=lambda tried: -tried.worth):
        why = tuning.why_lost(one, found.confirmed, found.won)
        outcome = why or f"chosen: {verdict(found)}"
        shown.add_row(Text(one.name), _choices(one), Text(outcome))
    for refused in found.refused:
        shown.add_row(Text(refused.name), "", Text(f"not tried: {refused.reason}"))
    return shown


def _choices(one: Tried) -> str:
    return ", ".join(f"{choice.tokens} at {size}" for size, choice in sorted(one.choices.items()))


def as_object(found: Tuned, chosen: Mapping[str, str], told: Mapping[str, Any]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "format": FORMAT,
        "environment": dict(chosen),
        "schedule": found.won.kept.schedule if found.won else None,
        "verdict": verdict(found),
        "tried": [_tried(one, found) for one in found.tried],
        "confirmed": [_confirmed(one) for one in found.confirmed],
        "not_tried": [asdict(one) for one in found.refused],
        "provenance": dict(told),
    }


def _tried(one: Tried, found: Tuned) -> dict[str, Any]:
    cells = [
        {
            "concurrency": size,
            "num_speculative_tokens": k,
            "tokens_per_step": cell.length,
            "step_seconds": cell.step_time,
            "gain": one.gains[size].get(k, 1.0),
        }
        for size, of_size in sorted(one.cells.items())
        for k, cell in sorted(of_size.items())
    ]
    return {
        "name": one.name,
        "best": {str(size): choice.tokens for size, choice in sorted(one.choices.items())},
        "lost": tuning.why_lost(one, found.confirmed, found.won) or None,
        "cells": cells,
    }


def _confirmed(one: Confirmed) -> dict[str, Any]:
    return {
        "name": one.setting.name,
        "speedups": {str(at): found.as_object() for at, found in sorted(one.speedups.items())},
        "kept": {str(size): k for size, k in sorted(one.kept.tokens.items())},
    }
