"""Speculation that is off above a number of running requests."""

import asyncio
from typing import Any

import pytest
from vllm.v1.metrics.reader import Counter, get_metrics_snapshot

from specworker import acceptance
from specworker.acceptance import Acceptance
from specworker.engine import Engine
from tests.engines import Rack, complete

METHODS = ("ngram up to two", "self-draft up to two", "medusa up to two", "suffix up to two")
WITH_DRAFT = "self-draft up to two"  # the target as its own draft: every token is accepted
WORDS = ("tin", "oak", "sea", "fog", "jam", "owl", "ink", "pen", "cup", "hat")
#: Longer than a block of the KV cache, and within the draft's window.
LOG = "".join(
    f"Line {number} says {WORDS[number * 7 % 10]} and {WORDS[number * 3 % 10]}. "
    for number in range(40)
)
PROMPT = "One two three four. One two three four. One two three four. One two"


def cached_tokens() -> int:
    """Prompt tokens found in the prefix cache so far."""
    found = (metric for metric in get_metrics_snapshot() if isinstance(metric, Counter))
    return sum(metric.value for metric in found if metric.name == "vllm:prefix_cache_hits")


each_method = pytest.mark.parametrize(
    "method", [pytest.param(name, marks=pytest.mark.engine(name)) for name in METHODS]
)


async def together(
    engine: Engine, requests: int, tokens: int = 32, prompt: str = PROMPT
) -> Acceptance:
    """The figures of some requests that run at the same time."""
    before = acceptance.read()
    await asyncio.gather(
        *(
            complete(engine, f"{prompt} ({number})", max_tokens=tokens, ignore_eos=True)
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


@pytest.mark.engine(WITH_DRAFT)
async def test_a_draft_model_that_rested_drafts_as_well_as_before(engine: Engine) -> None:
    before = acceptance.read()
    long = asyncio.create_task(complete(engine, PROMPT, max_tokens=128, ignore_eos=True))
    for requests in (3, 1, 4, 2, 1, 5):
        await together(engine, requests, tokens=6)
    await long
    figures = acceptance.read() - before
    assert figures.drafts > 10
    assert figures.rate_by_position == (1.0, 1.0, 1.0)


@pytest.mark.engine(WITH_DRAFT)
async def test_what_was_cached_while_the_draft_rested_is_read_when_it_drafts(
    engine: Engine,
) -> None:
    start = acceptance.read()
    others = [
        asyncio.create_task(complete(engine, f"{number}", max_tokens=48, ignore_eos=True))
        for number in range(3)
    ]
    while (acceptance.read() - start).generated < 12:  # all of them run: the draft rests
        await asyncio.sleep(0.05)
    await complete(engine, LOG, max_tokens=1)
    assert not any(other.done() for other in others)
    await asyncio.gather(*others)
    hits = cached_tokens()
    figures = await together(engine, 1, prompt=f"{LOG}The log again, from the start: Line 0")
    assert cached_tokens() - hits >= 256
    assert figures.drafts > 5
    assert figures.rate_by_position == (1.0, 1.0, 1.0)


@pytest.mark.engine(WITH_DRAFT)
async def test_a_request_beyond_the_drafts_window_leaves_its_neighbour_its_drafts(
    engine: Engine,
) -> None:
    beyond, within = await asyncio.gather(
        complete(engine, f"{LOG} {LOG}", max_tokens=40, ignore_eos=True),
        complete(engine, PROMPT, max_tokens=40, ignore_eos=True),
    )
    assert beyond["usage"]["prompt_tokens"] > 512
    assert beyond["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    drafted = within["metrics"]["speculative_decoding"]
    assert drafted["num_spec_steps"] > 5
    assert drafted["draft_acceptance_rate"] == 1.0


@pytest.mark.engine(WITH_DRAFT)
async def test_a_request_that_grows_beyond_the_drafts_window_goes_on_without_drafts(
    engine: Engine,
) -> None:
    async def ask(prompt: str) -> dict[str, Any]:
        return await complete(engine, prompt, max_tokens=200, ignore_eos=True)

    growing, short = await asyncio.gather(ask(f"{LOG} Line"), ask(PROMPT))
    length = growing["usage"]["total_tokens"]
    assert growing["usage"]["prompt_tokens"] < 500 < 512 < length
    figures = growing["metrics"]["speculative_decoding"]
    assert 0 < figures["num_draft_tokens"] < 3 * 200 / 4
    assert figures["draft_acceptance_rate"] == 1.0
    assert short["metrics"]["speculative_decoding"]["draft_acceptance_rate"] == 1.0
