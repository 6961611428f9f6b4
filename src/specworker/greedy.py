"""Whether greedy answers are those of plain decoding, letter by letter. Pure.

The texts are compared within a round: the same prompts, at the same concurrency. How much plain
decoding differs from itself in other rounds and at other concurrencies stands beside it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from specworker.measured import OFF, Round

#: Characters that are shown before and after the place where two texts part.
SHOWN = 40


@dataclass(frozen=True)
class Difference:
    """An answer that is not the one of plain decoding.

    Attributes:
        prompt: its number in the workload.
        round: in which it was seen first.
        character: the first that differs, from 0.
        word: the one that it is in, from 0.
        plain: the text without drafts, around that place.
        drafted: the text with drafts, around that place.
    """

    prompt: int
    round: int
    character: int
    word: int
    plain: str
    drafted: str

    @property
    def before(self) -> int:
        """How many characters of either are the same."""
        return min(self.character, SHOWN)


@dataclass(frozen=True)
class Agreement:
    """A variant's answers at one concurrency, beside those without drafts.

    Attributes:
        variant: the one with drafts.
        trial: in which both were measured.
        concurrency: requests in flight at most.
        compared: prompts that both answered.
        differences: one for each prompt whose answers differ in some round.
        unsettled: of these prompts, how many have several answers without drafts already, in
            other rounds or at other concurrencies.
    """

    variant: str
    trial: str
    concurrency: int
    compared: int
    differences: tuple[Difference, ...]
    unsettled: int = 0

    def reason(self, dtype: str) -> str:
        """What may be behind the differences; empty where there are none.

        Args:
            dtype: of the model's sums, as vLLM names it; empty where it is not known.
        """
        if not self.differences:
            return ""
        if self.unsettled == len(self.differences):
            return "plain decoding does not repeat these texts either"
        if dtype in ("float32", "float"):
            if self.concurrency == 1:
                return "in float32, one request at a time, this is a fault"
            return "sums are rounded by the shape of the batch, but seldom so in float32"
        return (
            f"sums are rounded by the shape of the batch, and {dtype or 'fewer than 32 bits'} "
            "can tip the choice between two tokens that are nearly as likely"
        )


def agreements(rounds: Iterable[Round]) -> tuple[Agreement, ...]:
    """One for each variant with drafts, trial and concurrency that has rounds of `off`."""
    measured = tuple(rounds)
    plain = {
        (one.trial, one.concurrency, one.number): _texts(one)
        for one in measured
        if one.variant == OFF
    }
    found: dict[tuple[str, str, int], list[tuple[Round, dict[int, str]]]] = {}
    for one in measured:
        beside = plain.get((one.trial, one.concurrency, one.number))
        if one.variant != OFF and beside is not None:
            key = (one.trial, one.variant, one.concurrency)
            found.setdefault(key, []).append((one, beside))
    return tuple(
        _agreement(pairs, [texts for (named, *_), texts in plain.items() if named == trial])
        for (trial, *_), pairs in found.items()
    )


def _texts(one: Round) -> dict[int, str]:
    """The first answer to each prompt."""
    return {answer.prompt: answer.text for answer in reversed(one.answers)}


def _agreement(pairs: list[tuple[Round, dict[int, str]]], plain: list[dict[int, str]]) -> Agreement:
    differences: dict[int, Difference] = {}
    compared = set()
    for one, beside in pairs:
        for prompt, text in _texts(one).items():
            if prompt not in beside:
                continue
            compared.add(prompt)
            if text != beside[prompt] and prompt not in differences:
                differences[prompt] = _difference(prompt, one.number, beside[prompt], text)
    unsettled = (len({texts.get(prompt, "") for texts in plain}) for prompt in differences)
    first = pairs[0][0]
    return Agreement(
        first.variant,
        first.trial,
        first.concurrency,
        len(compared),
        tuple(differences[prompt] for prompt in sorted(differences)),
        sum(texts > 1 for texts in unsettled),
    )


def _difference(prompt: int, number: int, plain: str, drafted: str) -> Difference:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(plain, drafted, strict=False))
    character = sum(1 for _ in same)
    before = plain[:character]
    in_word = bool(before) and not before[-1].isspace()
    around = slice(max(0, character - SHOWN), character + SHOWN)
    return Difference(
        prompt,
        number,
        character,
        len(before.split()) - in_word,
        plain[around],
        drafted[around],
    )
