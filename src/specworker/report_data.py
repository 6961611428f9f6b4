"""A comparison for programs: one JSON object, and two tables as CSV. Pure.

Keys and columns are described in docs/measuring.md.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from specworker import comparison_verdict as verdict
from specworker.acceptance import Acceptance
from specworker.comparison import Comparison, Row, Spread, requests_per_second, tokens_per_second
from specworker.greedy import Agreement
from specworker.live import quantile
from specworker.measured import Round
from specworker.speedup import Speedup

#: The version of the keys; another one where a key goes or means something else.
FORMAT = 1


def as_object(comparison: Comparison) -> dict[str, Any]:
    """Everything there is, with every round."""
    return {
        "format": FORMAT,
        "model": comparison.model,
        "workload": comparison.workload,
        "dtype": comparison.dtype or None,
        "margin": comparison.margin,
        "provenance": {name: _plain(value) for name, value in comparison.provenance.items()},
        "verdict": [*verdict.conclusions(comparison)],
        "rows": [_row(comparison, row) for row in comparison.rows],
        "texts": [_texts(one, comparison.dtype) for one in comparison.agreements],
        "rounds": [_round(one) for one in comparison.rounds],
        "notes": [*comparison.notes],
    }


def rows_csv(comparison: Comparison) -> str:
    """A line for each variant and concurrency."""
    rows = [_row(comparison, row) for row in comparison.rows]
    none = dict.fromkeys(field.name for field in fields(Speedup))
    for row in rows:
        row["speedup"] = row["speedup"] or none
        row["verdict"] = row["verdict"] or dict.fromkeys(("kind", "text"))
    return _csv(rows, comparison)


def rounds_csv(comparison: Comparison) -> str:
    """A line for each round."""
    return _csv(map(_round, comparison.rounds), comparison)


def _row(comparison: Comparison, row: Row) -> dict[str, Any]:
    found = {(one.trial, one.variant, one.concurrency): one for one in verdict.findings(comparison)}
    own = found.get((row.trial, row.variant, row.concurrency))
    return {
        "trial": row.trial,
        "variant": row.variant,
        "concurrency": row.concurrency,
        "rounds": row.tokens_per_second.rounds,
        "requests": row.requests,
        "requests_per_second": _spread(row.requests_per_second),
        "tokens_per_second": _spread(row.tokens_per_second),
        **_times(row.ttfts, row.tpots),
        **_counts(row.counts),
        "speedup": row.speedup and row.speedup.as_object(),
        "predicted_speedup": row.predicted,
        "verdict": own and {"kind": own.kind, "text": own.text},
    }


def _round(one: Round) -> dict[str, Any]:
    tpots = sorted(tpot for answer in one.answers if (tpot := answer.tpot) is not None)
    return {
        "trial": one.trial,
        "variant": one.variant,
        "concurrency": one.concurrency,
        "round": one.number,
        "seconds": one.seconds,
        "requests": len(one.answers),
        "tokens": sum(answer.tokens for answer in one.answers),
        "requests_per_second": requests_per_second(one),
        "tokens_per_second": tokens_per_second(one),
        **_times(sorted(answer.ttft for answer in one.answers), tpots),
        **_counts(one.counts),
        "notes": [*one.notes],
    }


def _texts(one: Agreement, dtype: str) -> dict[str, Any]:
    differences = [asdict(difference) for difference in one.differences]
    return {
        "trial": one.trial,
        "variant": one.variant,
        "concurrency": one.concurrency,
        "compared": one.compared,
        "identical": not differences,
        "differences": differences,
        "unsettled": one.unsettled,
        "reason": one.reason(dtype) or None,
    }


def _spread(found: Spread) -> dict[str, float]:
    return {"median": found.median, "low": found.low, "high": found.high}


def _times(ttfts: Sequence[float], tpots: Sequence[float]) -> dict[str, Any]:
    shares = {"p50": 0.5, "p95": 0.95}

    def milliseconds(seconds: Sequence[float]) -> dict[str, float | None]:
        found = {name: quantile(seconds, share) for name, share in shares.items()}
        return {name: None if one is None else 1000 * one for name, one in found.items()}

    return {"ttft_ms": milliseconds(ttfts), "tpot_ms": milliseconds(tpots)}


def _counts(counts: Acceptance) -> dict[str, Any]:
    return {
        "generated": counts.generated,
        "drafts": counts.drafts,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "acceptance_by_position": [*counts.rate_by_position] if counts.drafts else [],
        "mean_acceptance_length": counts.mean_length if counts.drafts else None,
    }


def _csv(objects: Iterable[Mapping[str, Any]], comparison: Comparison) -> str:
    """As CSV, the provenance in columns of every line: readers of CSV know no comments."""
    about = {"model": comparison.model, "workload": comparison.workload}
    lines = [_flat({**about, **one, "provenance": comparison.provenance}) for one in objects]
    text = io.StringIO()
    # Lines differ in their number of positions; the longest has them in order.
    writer = csv.DictWriter(text, max(lines, key=len, default={}), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """What is in objects and in lists of numbers gets a column each: `ttft_ms.p50`."""
    found: dict[str, Any] = {}
    for key, one in value.items():
        name = f"{before}{key}"
        if isinstance(one, Mapping):
            found |= _flat(one, f"{name}.")
        elif name == "acceptance_by_position":
            found |= {f"{name}.{place}": share for place, share in enumerate(one, 1)}
        else:
            found[name] = "; ".join(one) if isinstance(one, list | tuple) else one
    return found


def _plain(value: str | Sequence[str]) -> str | list[str]:
    return value if isinstance(value, str) else [*value]
