"""Speculation that is off above a number of running requests."""

import asyncio

import pytest

from specworker import acceptance
from specworker.acceptance import Acceptance
from specworker.engine import Engine
from tests.engines import Rack, complete

METHODS = ("ngram up to two", "medusa up to two", "suffix up to two")
PROMPT = "One two three four. One two three four. One two three four. One two"

each_method = pytest.mark.parametrize(
    "method", [pytest.param(name, marks=pytest.mark.engine(name)) for name in METHODS]
)


async def together(engine: Engine, requests: int, tokens: int = 32) -> Acceptance:
    """The figures of some requests that run at the same time."""
    before = acceptance.read()
    await asyncio.gather(
        *(
            complete(engine, f"{PROMPT} ({number})", max_tokens=tokens, ignore_eos=True)
            for number in range(requests)
        )
    )
    return acceptance.read() - before


@each_method
async def test_drafting_stops_above_the_threshold_and_resumes(method: str, rack: Rack) -> None:
    engine = await rack.get(method)
    one, two = await together(engine, 1), await together(engine, 2)
    six = await together(engine, 6)
    again = await together(engine, 1)
    assert one.drafted > 0
    assert two.drafted > 0
    assert again.drafted > 0
    # The first step of the first request may run before the others have joined.
    assert six.drafts <= 2
    assert six.generated == 6 * 32


@each_method
async def test_crossing_the_threshold_many_times_leaves_the_engine_healthy(
    method: str, rack: Rack
) -> None:
    engine = await rack.get(method)
    expected = await complete(engine, PROMPT, max_tokens=48, ignore_eos=True)
    long = asyncio.create_task(complete(engine, PROMPT, max_tokens=48, ignore_eos=True))
    for requests in (3, 1, 4, 2, 1, 5):
        await together(engine, requests, tokens=4)
    assert (await long)["choices"][0]["token_ids"] == expected["choices"][0]["token_ids"]
    assert not engine.client.errored
