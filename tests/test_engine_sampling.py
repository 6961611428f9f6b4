"""Sampled text under speculation comes from the distribution without it."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from scipy.stats import chi2_contingency

from specworker import acceptance
from specworker.engine import Engine
from tests.engines import Rack, complete

PROMPT = "Red, green and blue. Red, green and blue. Red, green and"

#: Every word of the tiny model, so that a lookup drafts whatever was sampled.
EVERY_WORD = " ".join(f"w{index}" for index in range(32))
CHOICES, TOKENS = 100, 3
#: Samples of an engine, and those without speculation that each is compared with. What tells two
#: of them apart grows with the harmonic mean of their numbers, which is that of 20 000 and 20 000.
SAMPLES, PLAIN = 13_400, 40_000

Sample = tuple[int, ...]


async def sample(
    engine: Engine, temperature: float = 0.8, samples: int = SAMPLES
) -> Counter[Sample]:
    """The first tokens of many continuations."""
    body = {"max_tokens": TOKENS, "n": CHOICES, "ignore_eos": True}
    answers = await asyncio.gather(
        *(
            complete(engine, EVERY_WORD, temperature=temperature, **body)
            for _ in range(samples // CHOICES)
        )
    )
    return Counter(tuple(choice["token_ids"]) for answer in answers for choice in answer["choices"])


def first_tokens(samples: Counter[Sample], count: int) -> Counter[Sample]:
    totals: Counter[Sample] = Counter()
    for tokens, number in samples.items():
        totals[tokens[:count]] += number
    return totals


def p_value(first: Counter[Sample], second: Counter[Sample]) -> float:
    """How likely two samples of one distribution differ at least this much (chi-square).

    Values seen fewer than twenty times are counted together.
    """
    both = first + second
    common = [value for value, count in both.items() if count >= 20]
    table = [[counts[value] for value in common] for counts in (first, second)]
    for row, counts in zip(table, (first, second), strict=True):
        row.append(counts.total() - sum(row))
    columns = [column for column in zip(*table, strict=True) if sum(column) >= 10]
    return float(chi2_contingency(list(zip(*columns, strict=True))).pvalue)


@pytest.fixture(scope="session")
def plain_samples() -> list[Counter[Sample]]:
    return []


async def plain(rack: Rack, halves: list[Counter[Sample]]) -> Counter[Sample]:
    """What the engine without speculation samples; asked once, in two halves."""
    if not halves:
        engine = await rack.get("tiny plain")
        halves += [await sample(engine, samples=PLAIN // 2) for _ in range(2)]
    return halves[0] + halves[1]


@pytest.mark.engine("tiny plain")
async def test_the_measure_tells_distributions_apart_and_accepts_one_with_itself(
    engine: Engine, rack: Rack, plain_samples: list[Counter[Sample]]
) -> None:
    expected = await plain(rack, plain_samples)
    assert p_value(expected, await sample(engine, temperature=0.9)) < 1e-6
    assert p_value(*plain_samples) > 0.001


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=pytest.mark.engine(name))
        for name in ("tiny ngram", "tiny draft", "tiny probabilistic")
    ],
)
async def test_sampled_tokens_keep_their_distribution(
    method: str, rack: Rack, plain_samples: list[Counter[Sample]]
) -> None:
    expected = await plain(rack, plain_samples)
    engine = await rack.get(method)
    before = acceptance.read()
    samples = await sample(engine)
    figures = acceptance.read() - before
    assert figures.drafts > SAMPLES / 2
    assert 0 < figures.rate < 1
    assert (samples.total(), expected.total()) == (SAMPLES, PLAIN)
    for count in (1, 2, 3):
        assert p_value(first_tokens(expected, count), first_tokens(samples, count)) > 0.001


@pytest.mark.engine("tiny typical")
async def test_the_measure_finds_an_acceptance_that_is_not_exact(
    engine: Engine, rack: Rack, plain_samples: list[Counter[Sample]]
) -> None:
    expected = await plain(rack, plain_samples)
    samples = await sample(await rack.get("tiny typical"))
    assert p_value(first_tokens(expected, 1), first_tokens(samples, 1)) > 0.001  # none is drafted
    for count in (2, 3):
        assert p_value(first_tokens(expected, count), first_tokens(samples, count)) < 1e-6


@pytest.mark.parametrize(
    ("method", "requests"),
    [
        pytest.param("ngram", 100, marks=pytest.mark.engine("ngram")),
        pytest.param("self", 40, marks=pytest.mark.engine("self")),
    ],
)
async def test_any_mix_of_sampling_parameters_leaves_the_engine_healthy(
    method: str, requests: int, rack: Rack
) -> None:
    engine = await rack.get(method)
    chance = random.Random(7)
    choices: dict[str, list[Any]] = {
        "temperature": [0, 0.3, 0.8, 1.5],
        "top_k": [-1, 1, 5, 40],
        "top_p": [1.0, 0.9, 0.5],
        "frequency_penalty": [0, 0.5, 2],
        "presence_penalty": [0, 1],
        "repetition_penalty": [1.0, 1.2],
        "min_tokens": [0, 4],
        "seed": [None, 1, 2],
        "n": [1, 1, 1, 2],
        "logprobs": [None, None, 2],
        "max_tokens": [1, 2, 3, 12, 24],
        "stop": [None, None, ["."]],
    }

    async def ask(number: int) -> None:
        body = {name: chance.choice(values) for name, values in choices.items()}
        if body["temperature"] == 0:
            body["n"] = 1
        body["min_tokens"] = min(body["min_tokens"], body["max_tokens"])
        prompt = f"{number}: {PROMPT}" if number % 3 else PROMPT
        answer = await complete(engine, prompt, **body)
        assert len(answer["choices"]) == body["n"]
        total = sum(len(choice["token_ids"]) for choice in answer["choices"])
        assert answer["usage"]["completion_tokens"] == total

    for start in range(0, requests, 20):
        await asyncio.gather(*(ask(number) for number in range(start, start + 20)))
    assert not engine.client.errored


@pytest.mark.engine("ngram")
async def test_greedy_rows_stay_exact_beside_sampled_ones(engine: Engine) -> None:
    prompts = [PROMPT, "One, two, three, one, two, three, one,", "Copy, copy, copy,"]
    alone = [await complete(engine, prompt, max_tokens=32) for prompt in prompts]
    noise = [complete(engine, PROMPT, temperature=1.0, max_tokens=32) for _ in range(3)]
    mixed = await asyncio.gather(
        *(complete(engine, prompt, max_tokens=32) for prompt in prompts), *noise
    )
    for before, now in zip(alone, mixed, strict=False):
        assert now["choices"][0]["token_ids"] == before["choices"][0]["token_ids"]


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("ngram", "self-draft")],
)
async def test_a_seed_repeats_its_text(method: str, rack: Rack) -> None:
    engine = await rack.get(method)
    body = {"temperature": 0.9, "seed": 42, "max_tokens": 24, "top_p": 0.95}
    alone = await complete(engine, PROMPT, **body)
    others = [complete(engine, PROMPT, **{**body, "seed": seed}) for seed in (None, 43, 44)]
    beside, *_ = await asyncio.gather(complete(engine, PROMPT, **body), *others)
    assert beside["choices"][0]["token_ids"] == alone["choices"][0]["token_ids"]


@pytest.mark.engine("ngram")
async def test_a_seeded_prompt_of_several_steps_repeats_its_text(engine: Engine) -> None:
    prompt = "".join(f"Line {number} of the log says that all is well. " for number in range(70))
    body = {"temperature": 0.9, "seed": 42, "max_tokens": 16}
    first = await complete(engine, f"1 {prompt}", **body)
    assert first["usage"]["prompt_tokens"] > 512
    again = await asyncio.gather(*(complete(engine, f"1 {prompt}", **body) for _ in range(2)))
    for answer in again:
        assert answer["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]
    fresh = await complete(engine, f"2 {prompt}", **body)
    assert len(fresh["choices"][0]["token_ids"]) == 16
