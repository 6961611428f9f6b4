"""Typical acceptance on a real engine: what stays exact, and what it is for."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest

from specworker import acceptance
from specworker.engine import Engine
from tests.engines import Rack, complete
from tests.test_engine_sampling import EVERY_WORD

PROMPTS = (EVERY_WORD, "w1 w2 w3 w1 w2 w3 w1", "w31 w7", "w5 w5 w5 w5", "w9 w8 w7 w6 w5 w4")
TOKENS = 48
#: Neither the first choice of the target nor the draft's stays the same for long.
PENALTIES: dict[str, Any] = {
    "frequency_penalty": 0.4,
    "presence_penalty": 0.3,
    "repetition_penalty": 1.2,
}

each_recovery = pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=pytest.mark.engine(name))
        for name in ("tiny typical", "tiny typical, sampled")
    ],
)


async def texts(engine: Engine, **body: Any) -> list[list[int]]:
    """Token ids of every prompt's continuation, asked for at once."""
    asked = {"max_tokens": TOKENS, "ignore_eos": True, **body}
    answers = await asyncio.gather(*(complete(engine, prompt, **asked) for prompt in PROMPTS))
    return [answer["choices"][0]["token_ids"] for answer in answers]


@pytest.fixture(scope="session")
def greedy() -> dict[str, list[list[int]]]:
    return {}


async def plain_texts(rack: Rack, greedy: dict[str, list[list[int]]]) -> Any:
    """Greedy texts without speculation, without penalties and with; asked for once."""
    if not greedy:
        engine = await rack.get("tiny plain")
        greedy.update(free=await texts(engine), penalised=await texts(engine, **PENALTIES))
    return greedy


@pytest.mark.engine("tiny plain")
async def test_penalties_change_the_text(rack: Rack, greedy: dict[str, list[list[int]]]) -> None:
    plain = await plain_texts(rack, greedy)
    assert all(
        free != penalised for free, penalised in zip(plain["free"], plain["penalised"], strict=True)
    )


@each_recovery
async def test_greedy_text_is_that_without_speculation_alone_and_beside_sampled_text(
    method: str, rack: Rack, greedy: dict[str, list[list[int]]]
) -> None:
    plain = await plain_texts(rack, greedy)
    engine = await rack.get(method)
    assert await texts(engine) == plain["free"]
    assert await texts(engine, **PENALTIES) == plain["penalised"]
    free, penalised, sampled, _ = await asyncio.gather(
        texts(engine),
        texts(engine, **PENALTIES),
        texts(engine, temperature=1.0),
        texts(engine, temperature=0.7, top_p=0.9, logprobs=2),
    )
    assert free == plain["free"]
    assert penalised == plain["penalised"]
    assert sampled != plain["free"]


@each_recovery
@pytest.mark.parametrize("constraint", [{"top_k": 1}, {"top_p": 1e-6}])
async def test_sampling_that_leaves_one_token_is_greedy(
    method: str, constraint: dict[str, Any], rack: Rack, greedy: dict[str, list[list[int]]]
) -> None:
    plain = await plain_texts(rack, greedy)
    engine = await rack.get(method)
    body = {"temperature": 1.0, **constraint}
    free, penalised, _ = await asyncio.gather(
        texts(engine, **body), texts(engine, **body, **PENALTIES), texts(engine, temperature=1.0)
    )
    assert free == plain["free"]
    assert penalised == plain["penalised"]


@each_recovery
async def test_a_seed_repeats_its_text_beside_others(method: str, rack: Rack) -> None:
    engine = await rack.get(method)
    body = {"temperature": 1.2, "top_p": 0.95}
    alone = [
        (await complete(engine, PROMPTS[0], max_tokens=TOKENS, seed=seed, **body))["choices"][0]
        for seed in (1, 2)
    ]
    assert alone[0]["token_ids"] != alone[1]["token_ids"]
    others = asyncio.gather(texts(engine, temperature=1.0), texts(engine))
    beside = await asyncio.gather(
        *(complete(engine, PROMPTS[0], max_tokens=TOKENS, seed=seed, **body) for seed in (1, 2))
    )
    await others
    for choice, answer in zip(alone, beside, strict=True):
        assert answer["choices"][0]["token_ids"] == choice["token_ids"]


async def logprobs_read(engine: Engine, ids: Sequence[int]) -> list[float]:
    """What the target says of each token when it reads them all, without any draft."""
    answer = await complete(engine, list(ids), echo=True, logprobs=0, max_tokens=1)
    return list(answer["choices"][0]["logprobs"]["token_logprobs"])


@each_recovery
async def test_logprobs_are_the_targets_of_the_tokens_that_were_chosen(
    method: str, rack: Rack
) -> None:
    engine = await rack.get(method)
    body = {"temperature": 1.3, "top_k": 3, "max_tokens": TOKENS, "ignore_eos": True}
    before = acceptance.read()
    answer = await complete(engine, EVERY_WORD, logprobs=3, return_tokens_as_token_ids=True, **body)
    figures = acceptance.read() - before
    assert 0 < figures.accepted < figures.drafted
    (choice,) = answer["choices"]
    reported = choice["logprobs"]
    assert reported["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert all(math.isfinite(value) for value in reported["token_logprobs"])
    read = await logprobs_read(engine, choice["prompt_token_ids"] + choice["token_ids"])
    assert reported["token_logprobs"] == pytest.approx(read[-TOKENS - 1 : -1], abs=1e-3)
    # Whatever was accepted or recovered is one of the three that may be sampled.
    for token, best in zip(reported["tokens"], reported["top_logprobs"], strict=True):
        assert token in sorted(best, key=best.__getitem__)[-3:]


@pytest.fixture(scope="session")
def exact_length() -> list[float]:
    return []


async def mean_length(engine: Engine) -> float:
    """Tokens per verified draft on sampled traffic."""
    before = acceptance.read()
    for _ in range(4):
        await texts(engine, temperature=1.0)
    return (acceptance.read() - before).mean_length


async def exact(rack: Rack, exact_length: list[float]) -> float:
    if not exact_length:
        exact_length.append(await mean_length(await rack.get("tiny draft")))
    return exact_length[0]


@pytest.mark.engine("tiny draft")
async def test_an_exact_rule_seldom_accepts_what_a_poor_draft_is_sure_of(
    rack: Rack, exact_length: list[float]
) -> None:
    assert 1 < await exact(rack, exact_length) < 1.5


@each_recovery
async def test_typical_acceptance_accepts_more(
    method: str, rack: Rack, exact_length: list[float]
) -> None:
    before = await exact(rack, exact_length)
    assert await mean_length(await rack.get(method)) > before + 0.2
