"""Rounds as a load generator would have measured them."""

from collections.abc import Sequence
from typing import Any

from specworker import comparison
from specworker.acceptance import Acceptance
from specworker.comparison import Comparison
from specworker.measured import OFF, Answered, Round

TEXTS = ("alpha beta gamma delta", "one two three four")
#: Tokens of each answer.
TOKENS = 41
#: Ten steps a round: each draft of two, the first accepted in nine and the second in six.
DRAFTED = Acceptance(2 * TOKENS, 10, 20, 15, (9, 6))
PROVENANCE = {
    "command": "python -m specworker compare --workload copy",
    "versions": ["specworker 0.1.0", "vLLM 0.32.0"],
    "<b>marked & up</b>": "über <script>document.title = 'run'</script>",
}


def measured(
    variant: str = OFF,
    concurrency: int = 1,
    number: int = 0,
    *,
    rate: float = 100.0,
    texts: Sequence[str] = TEXTS,
    counts: Acceptance | None = None,
    **others: Any,
) -> Round:
    """A round in which `rate` tokens per second were generated."""
    answers = tuple(
        Answered(prompt, TOKENS, 0.1 * (prompt + 1), 0.1 * (prompt + 1) + 40 / rate, text)
        for prompt, text in enumerate(texts)
    )
    usual = DRAFTED if variant != OFF else Acceptance(len(texts) * TOKENS)
    seconds = len(texts) * TOKENS / rate
    if variant != OFF:
        others = {"draft_cost": 0.0} | others
    return Round(variant, concurrency, number, seconds, answers, counts or usual, **others)


def side_by_side(speedups: dict[str, dict[int, Sequence[float]]], **others: Any) -> list[Round]:
    """Rounds of `off` and of variants, by how many times as fast each is in each round."""
    rounds = []
    for concurrency in next(iter(speedups.values())):
        for number in range(len(next(iter(speedups.values()))[concurrency])):
            rounds.append(measured(OFF, concurrency, number, **others))
            for variant, times in speedups.items():
                rate = 100 * times[concurrency][number]
                rounds.append(measured(variant, concurrency, number, rate=rate, **others))
    return rounds


def compared(rounds: Sequence[Round], **others: Any) -> Comparison:
    usual = {"model": "acme/model", "workload": "copy"}
    return comparison.of(rounds, PROVENANCE, **{**usual, **others})
