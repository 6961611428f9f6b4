"""The figures of variants side by side, from the rounds in which they were measured. Pure.

Speed-ups are taken between rounds of the same number, which ran one after the other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from specworker import greedy, theory
from specworker.acceptance import Acceptance
from specworker.greedy import Agreement
from specworker.live import quantile
from specworker.measured import OFF, MeasuringError, Round
from specworker.speedup import Speedup

#: What a measurement was made with: values by name.
Provenance = Mapping[str, str | Sequence[str]]
#: Failed requests that an error names.
NAMED = 3


@dataclass(frozen=True)
class Spread:
    """The median over rounds, the lowest and the highest of them, and how many there are."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(median(values), min(values), max(values), len(values))


@dataclass(frozen=True)
class Row:
    """A variant at one concurrency.

    Attributes:
        trial: the engines on which it took turns with others.
        variant: its name.
        concurrency: requests in flight at most.
        requests: answered in all rounds together.
        requests_per_second: of a round.
        tokens_per_second: of a round, all requests together.
        ttfts: seconds to the first token, of each request, ascending.
        tpots: seconds per token after the first, of each request with several, ascending.
        counts: what was generated, drafted and accepted in all rounds together.
        speedup: tokens per second over those of `off` in the same round; None for `off`, and
            where it was not measured.
        predicted: how many times as fast decoding should be by `counts`; None for `off`, and
            where what a drafted token costs is not known.
    """

    trial: str
    variant: str
    concurrency: int
    requests: int
    requests_per_second: Spread
    tokens_per_second: Spread
    ttfts: tuple[float, ...]
    tpots: tuple[float, ...]
    counts: Acceptance
    speedup: Speedup | None = None
    predicted: float | None = None

    def ttft(self, share: float) -> float | None:
        """The seconds to the first token that `share` of the requests kept to."""
        return quantile(self.ttfts, share)

    def tpot(self, share: float) -> float | None:
        """The seconds per token after the first that `share` of the requests kept to."""
        return quantile(self.tpots, share)


@dataclass(frozen=True)
class Comparison:
    """Everything that is reported.

    Attributes:
        model: that answered.
        workload: what it was asked.
        provenance: what it was measured with.
        margin: the share of the speed without drafts that a variant must win to be worth it.
        rounds: as they were measured.
        rows: their figures, by concurrency and then in the order of the variants.
        agreements: whether the texts are those of plain decoding, for each row with drafts.
    """

    model: str
    workload: str
    provenance: Provenance
    margin: float
    rounds: tuple[Round, ...]
    rows: tuple[Row, ...]
    agreements: tuple[Agreement, ...]

    @property
    def variants(self) -> tuple[tuple[str, str], ...]:
        """Trial and name of each, in the order of the measurement."""
        return tuple(dict.fromkeys((one.trial, one.variant) for one in self.rounds))

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """Ascending."""
        return tuple(sorted({row.concurrency for row in self.rows}))

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of the rounds, each once."""
        return tuple(dict.fromkeys(note for one in self.rounds for note in one.notes))

    @property
    def dtype(self) -> str:
        """Of the sums of all who answered, as vLLM names it; empty where one does not tell it."""
        found = {one.dtype for one in self.rounds}
        return found.pop() if len(found) == 1 else ""

    def label(self, trial: str, variant: str) -> str:
        """A variant's name, with the trial where another trial has one of that name.

        Each trial has its `off`, which stands before what it is compared with.
        """
        same = sum(name == variant for _, name in self.variants)
        return f"{variant} ({trial})" if same > 1 and variant != OFF else variant

    def of_variant(self, trial: str, variant: str) -> tuple[Row, ...]:
        """Its rows, by concurrency."""
        return tuple(row for row in self.rows if (row.trial, row.variant) == (trial, variant))


def of(
    rounds: Iterable[Round],
    provenance: Provenance,
    *,
    model: str,
    workload: str,
    margin: float = theory.MARGIN,
) -> Comparison:
    """Compare what was measured.

    Args:
        rounds: of all variants, `off` among them.
        provenance: what they were measured with, for whoever reads the report.
        model: its name.
        workload: its name.
        margin: the share of the speed without drafts that a variant must win to be worth it.

    Raises:
        MeasuringError: a request failed, so that nothing may be concluded.
    """
    measured = tuple(rounds)
    _refuse_failures(measured)
    groups: dict[tuple[int, str, str], list[Round]] = {}
    for one in measured:
        groups.setdefault((one.concurrency, one.trial, one.variant), []).append(one)
    order = list(dict.fromkeys((one.trial, one.variant) for one in measured))
    keys = sorted(groups, key=lambda key: (key[0], order.index(key[1:])))
    rows = []
    for concurrency, trial, variant in keys:
        plain = groups.get((concurrency, trial, OFF), [])
        rows.append(_row(groups[concurrency, trial, variant], plain))
    found = greedy.agreements(measured)
    return Comparison(model, workload, provenance, margin, measured, tuple(rows), found)


def _refuse_failures(rounds: Sequence[Round]) -> None:
    failures = [
        f"{one.variant}, {one.concurrency} at once, round {one.number + 1}, "
        f"prompt {answer.prompt + 1}: {answer.error}"
        for one in rounds
        for answer in one.answers
        if answer.error
    ]
    if failures:
        more = [f"and {len(failures) - NAMED} more"] * (len(failures) > NAMED)
        raise MeasuringError("\n".join(["requests failed:", *failures[:NAMED], *more]))


def _row(rounds: Sequence[Round], plain: Sequence[Round]) -> Row:
    first, cost = rounds[0], rounds[0].draft_cost
    answers = [answer for one in rounds for answer in one.answers]
    counts = sum((one.counts for one in rounds), Acceptance())
    beside = {one.number: tokens_per_second(one) for one in plain}
    ratios = [
        rate / beside[one.number]
        for one in rounds
        if beside.get(one.number) and (rate := tokens_per_second(one))
    ]
    drafts = first.variant != OFF
    return Row(
        first.trial,
        first.variant,
        first.concurrency,
        len(answers),
        Spread.of([requests_per_second(one) for one in rounds]),
        Spread.of([tokens_per_second(one) for one in rounds]),
        tuple(sorted(answer.ttft for answer in answers)),
        tuple(sorted(tpot for answer in answers if (tpot := answer.tpot) is not None)),
        counts,
        Speedup.of(ratios) if drafts and ratios else None,
        predicted(counts, len(answers), cost) if drafts and cost is not None else None,
    )


def requests_per_second(one: Round) -> float:
    """Of a round."""
    return len(one.answers) / one.seconds


def tokens_per_second(one: Round) -> float:
    """Of a round, all requests together."""
    return sum(answer.tokens for answer in one.answers) / one.seconds


def predicted(counts: Acceptance, answers: int, cost: float) -> float | None:
    """How many times as fast decoding should be, by what was accepted alone.

    Steps for which nothing was drafted yield one token and cost no draft. The first token of an
    answer comes of reading the prompt, which no draft shortens, and is left out.

    Args:
        counts: what was generated, drafted and accepted.
        answers: how many answers that was.
        cost: what drafting a token costs, as a share of a step of the model.

    Returns:
        None where nothing was decoded.
    """
    decoded = counts.generated - answers
    # An answer that ends within a draft leaves accepted tokens behind.
    steps = max(counts.drafts, decoded - counts.accepted)
    if decoded <= 0 or not steps:
        return None
    return theory.speedup(decoded / steps, counts.drafted / steps, cost)
