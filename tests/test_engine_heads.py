"""Draft heads of every kind, each known by its folder alone, on a real engine."""

import asyncio
from collections.abc import Mapping

import pytest

from specworker import acceptance
from specworker.engine import Engine
from tests import successors
from tests.engines import Rack, complete

#: Their target is the tiny model, or one that computes the same.
OF_THE_TINY_MODEL = ("eagle", "eagle3", "mtp")
PROMPTS = (
    "w1 w2 w3 w1 w2 w3 w1 w2",
    "w5",
    "w30 w4 w8 w2 w9 w9 w12 w7 w3",
    " ".join(f"w{number * 7 % 32}" for number in range(600)),  # more than a step reads
)
TOKENS = 64
MLP = "mlp_speculator up to two"

each_head = pytest.mark.parametrize(
    "head", [pytest.param(name, marks=pytest.mark.engine(name)) for name in OF_THE_TINY_MODEL]
)


async def written(engine: Engine, prompt: str, tokens: int = TOKENS) -> list[int]:
    answer = await complete(engine, prompt, max_tokens=tokens, ignore_eos=True)
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


@pytest.fixture(scope="session")
def texts() -> dict[str, list[int]]:
    return {}


async def plain_texts(rack: Rack, texts: dict[str, list[int]]) -> Mapping[str, list[int]]:
    """What the tiny model writes without speculation; asked once."""
    if not texts:
        engine = await rack.get("tiny plain")
        texts.update({prompt: await written(engine, prompt) for prompt in PROMPTS})
    return texts


@pytest.mark.engine("tiny plain")
async def test_the_tiny_models_texts_are_worth_comparing(
    rack: Rack, texts: dict[str, list[int]]
) -> None:
    expected = await plain_texts(rack, texts)
    assert len({tuple(text) for text in expected.values()}) == len(PROMPTS)
    assert all(len(text) == TOKENS for text in expected.values())
    assert all(len(set(text)) > 3 for text in expected.values())


@each_head
async def test_a_head_leaves_greedy_text_as_it_is(
    head: str, rack: Rack, texts: dict[str, list[int]]
) -> None:
    expected = await plain_texts(rack, texts)
    engine = await rack.get(head)
    before = acceptance.read()
    for prompt in PROMPTS:
        assert await written(engine, prompt) == expected[prompt], prompt
    alone = acceptance.read() - before
    batch = await asyncio.gather(*(written(engine, prompt) for prompt in PROMPTS))
    assert batch == list(expected.values())
    both = acceptance.read() - before
    for figures in (alone, both):
        assert figures.drafted == 3 * figures.drafts > 0
        assert figures.drafted > figures.accepted == sum(figures.accepted_by_position)
    assert both.drafted > alone.drafted


@pytest.mark.engine(MLP)
async def test_an_mlp_speculator_drafts_from_the_last_token_and_the_state_before_it(
    engine: Engine,
) -> None:
    for token in range(0, successors.VOCABULARY - 1, 5):
        before = acceptance.read()
        text = await written(engine, f"w3 w9 w{token}")
        figures = acceptance.read() - before
        assert text == successors.text(token, TOKENS)
        steps = successors.accepted(token, TOKENS, most=3)
        assert {0, 1, 2, 3} == set(steps)
        assert figures.drafts == len(steps)
        assert figures.drafted == 3 * len(steps)
        by_position = tuple(sum(right > place for right in steps) for place in range(3))
        assert figures.accepted_by_position == by_position


@pytest.mark.engine(MLP)
async def test_the_requests_of_a_batch_do_not_get_each_others_drafts(engine: Engine) -> None:
    tokens = (4, 23)
    before = acceptance.read()
    texts = await asyncio.gather(*(written(engine, f"w1 w{token}") for token in tokens))
    figures = acceptance.read() - before
    assert texts == [successors.text(token, TOKENS) for token in tokens]
    steps = [right for token in tokens for right in successors.accepted(token, TOKENS, most=3)]
    assert figures.accepted == sum(steps)


@pytest.mark.engine(MLP)
async def test_an_mlp_speculator_stops_above_the_threshold_and_resumes(engine: Engine) -> None:
    long = asyncio.create_task(written(engine, "w0", 400))
    for requests in (3, 1, 4, 2, 5):
        texts = await asyncio.gather(*(written(engine, f"w{n}", 8) for n in range(requests)))
        assert texts == [successors.text(n, 8) for n in range(requests)]
    assert await long == successors.text(0, 400)
    before = acceptance.read()
    six = [written(engine, f"w{number}") for number in range(6)]
    assert await asyncio.gather(*six) == [successors.text(n, TOKENS) for n in range(6)]
    together = acceptance.read() - before
    # The first step of the first request may run before the others have joined.
    assert together.drafts <= 2
    before = acceptance.read()
    await written(engine, "w0")
    assert (acceptance.read() - before).accepted == sum(successors.accepted(0, TOKENS, most=3))


def test_a_pair_of_successors_says_what_it_writes_and_accepts() -> None:
    assert successors.text(3, 4) == [8, 13, 18, 23]
    # After 3 comes 8, after which a wrong token is drafted; then 13 is known, and so on to 24.
    assert successors.accepted(3, 11, most=3) == [0, 3, 3, 0]
