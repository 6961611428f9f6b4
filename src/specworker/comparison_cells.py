"""The figures of a comparison as text, the same in a terminal and on a page. Pure."""

from specworker.comparison import Comparison, Row
from specworker.measured import OFF
from specworker.speedup import SURE

#: The columns, their names in lines that keep a terminal's table narrow.
CONCURRENCY, VARIANT = "requests\nat once", "variant"
SPEED = (
    CONCURRENCY,
    VARIANT,
    "req/s",
    "tokens/s",
    "TTFT, ms\np50 / p95",
    "TPOT, ms\np50 / p95",
    "times as\nfast as off",
    "theory",
)
POSITIONS = "accepted by\nposition, %"
ACCEPTANCE = (
    CONCURRENCY,
    VARIANT,
    "drafted",
    "accepted",
    "accepted,\n%",
    "mean\nacceptance\nlength",
    POSITIONS,
)
#: Columns of text, whose cells may go on in a second line.
OF_TEXT = (VARIANT, POSITIONS)
NONE = "–"


def speed(comparison: Comparison) -> list[tuple[str, ...]]:
    """How fast each variant is, a row each."""
    return [
        (
            f"{row.concurrency}",
            comparison.label(row.trial, row.variant),
            number(row.requests_per_second.median),
            number(row.tokens_per_second.median),
            _milliseconds(row.ttft(0.5), row.ttft(0.95)),
            _milliseconds(row.tpot(0.5), row.tpot(0.95)),
            NONE if row.speedup is None else f"{row.speedup}",
            NONE if row.predicted is None else f"{row.predicted:.2f}",
        )
        for row in comparison.rows
    ]


def acceptance(comparison: Comparison) -> list[tuple[str, ...]]:
    """What was drafted and accepted, a row for each variant that drafts."""
    return [_acceptance(comparison, row) for row in comparison.rows if row.variant != OFF]


def _acceptance(comparison: Comparison, row: Row) -> tuple[str, ...]:
    counts = row.counts
    return (
        f"{row.concurrency}",
        comparison.label(row.trial, row.variant),
        f"{counts.drafted:,}",
        f"{counts.accepted:,}",
        percent(counts.rate) if counts.drafted else NONE,
        f"{counts.mean_length:.2f}" if counts.drafts else NONE,
        " ".join(map(percent, counts.rate_by_position)) or NONE,
    )


def percent(share: float) -> str:
    """Without its sign."""
    return f"{100 * share:.0f}"


def number(value: float) -> str:
    """With about three digits that count."""
    places = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{places}f}"


def _milliseconds(*seconds: float | None) -> str:
    return " / ".join(NONE if value is None else number(1000 * value) for value in seconds)


def legend(comparison: Comparison) -> str:
    """How the figures are to be read, in a paragraph."""
    rounds = {row.tokens_per_second.rounds for row in comparison.rows}
    most = max(rounds, default=0)
    counted = f"{'up to ' * (len(rounds) > 1)}{most} round{'s' * (most != 1)}"
    return (
        f"Rates are medians of {counted}; TTFT and TPOT are over all requests. Times as fast as "
        f"off: tokens/s over those of off in the same round, median ({SURE:.0%} interval). Theory: "
        "of decoding, by what was accepted and by what drafting a token is taken to cost, where "
        "verifying costs nothing. Mean acceptance length: tokens per drafted step, the bonus "
        "token included; 1 is nothing accepted."
    )
