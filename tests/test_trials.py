"""Turns, counters and failures of a measurement, against a server that only counts."""

import os
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from specworker.measured import OFF, MeasuringError, Round
from specworker.places import Place
from specworker.trials import WARM, Arm, Manner, Trial, complete, measure, missing
from specworker.workloads import Prompt, Workload
from tests import counted_server
from tests.counted_server import MODEL, TOKENS, Server

PROMPTS = tuple(
    Prompt(f"p{number}", ({"role": "user", "content": f"Question {number}"},))
    for number in range(3)
)
WORKLOAD = Workload("three", "three questions", PROMPTS)
ONE = Manner((1,), rounds=1)
CHAT = "POST /v1/chat/completions"


def trial(url: str, key: str = "") -> Trial:
    return Trial("ngram", (Arm(OFF, 0), Arm("ngram")), (Place(url=url, key=key),))


async def measured(
    server: Server,
    manner: Manner = ONE,
    workload: Workload = WORKLOAD,
    done: tuple[Round, ...] = (),
    key: str = "",
) -> tuple[list[Round], list[str]]:
    """The rounds, and what was said."""
    said: list[str] = []
    with counted_server.serving(server) as url:
        rounds = measure(trial(url, key), workload, manner, Path(), said.append, done)
        async with aclosing(rounds):
            return [one async for one in rounds], said


async def test_variants_take_turns_and_their_order_turns_too() -> None:
    server = Server()
    rounds, _ = await measured(server, Manner((1, 2), rounds=2))
    assert [(one.concurrency, one.number, one.variant) for one in rounds] == [
        (1, 0, OFF),
        (1, 0, "ngram"),
        (1, 1, "ngram"),
        (1, 1, OFF),
        (2, 0, OFF),
        (2, 0, "ngram"),
        (2, 1, "ngram"),
        (2, 1, OFF),
    ]
    assert {len(one.answers) for one in rounds if one.concurrency == 1} == {3}
    assert {one.trial for one in rounds} == {"ngram"}


async def test_off_is_k_of_zero_and_k_is_set_back() -> None:
    server = Server(tokens=2)
    rounds, _ = await measured(server)
    of_requests = [tokens for route, tokens in server.asked if route == CHAT]
    # One request of each warms up.
    assert of_requests == [0, 2, 0, 0, 0, 2, 2, 2]
    assert server.tokens == 2
    off, on = rounds
    assert (off.counts.drafts, on.counts.drafts) == (0, 6)
    assert (on.counts.drafted, on.counts.accepted, on.counts.generated) == (12, 6, 3 * TOKENS)
    assert (off.draft_cost, on.draft_cost) == (None, 0.0)


async def test_answers_carry_what_the_server_counts_and_when_it_came() -> None:
    rounds, said = await measured(Server(slow=0.05))
    assert [answer.prompt for answer in rounds[0].answers] == [0, 1, 2]
    first = rounds[0].answers[0]
    assert (first.tokens, first.text, first.error) == (TOKENS, "a a a a a ", "")
    assert 0 < first.ttft < first.elapsed <= rounds[0].seconds
    assert first.tpot == pytest.approx((first.elapsed - first.ttft) / (TOKENS - 1))
    assert rounds[0].notes == ()
    assert said[-1].startswith("ngram, concurrency 1, round 1 of 1: ")


async def test_requests_are_greedy_and_as_long_as_asked() -> None:
    server = Server()
    long = replace(PROMPTS[0], max_tokens=7, extra={"tools": []})
    text = Prompt("text", text="Once upon")
    await measured(server, workload=Workload("two", "", (long, text)))
    chat, completion = server.bodies[-2:]
    assert (chat["temperature"], chat["max_completion_tokens"], chat["tools"]) == (0, 7, [])
    assert (chat["model"], "ignore_eos" in chat) == (MODEL, False)
    assert (completion["prompt"], completion["max_tokens"]) == ("Once upon", 256)
    await measured(server, Manner((1,), 1, tokens=9), Workload("one", "", (long,)))
    fixed = server.bodies[-1]
    assert (fixed["max_completion_tokens"], fixed["ignore_eos"]) == (9, True)


async def test_as_many_requests_are_in_flight_as_wanted_and_no_prompt_is_asked_more_often() -> None:
    server = Server(slow=0.05)
    rounds, _ = await measured(server, Manner((4,), rounds=1))
    assert server.most_in_flight == 4
    assert [answer.prompt for answer in rounds[0].answers] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


async def test_the_prefix_cache_is_emptied_before_each_round_unless_it_is_to_be_warm() -> None:
    server = Server()
    await measured(server)
    routes = [route for route in server.routes() if route in ("POST /reset_prefix_cache", CHAT)]
    assert routes == [
        *(["POST /reset_prefix_cache", CHAT] * 2),
        *(["POST /reset_prefix_cache", CHAT, CHAT, CHAT] * 2),
    ]
    warm = Server()
    await measured(warm, replace(ONE, is_warm=True))
    assert "POST /reset_prefix_cache" not in warm.routes()
    (off, _), _ = await measured(Server(forgets=False))
    assert off.notes == (WARM,)


async def test_other_traffic_is_told() -> None:
    rounds, said = await measured(Server(besides=2))
    assert rounds[0].notes == (
        "the server generated 21 tokens meanwhile, the answers have 15: there was other traffic, "
        "and acceptance is that of both",
    )
    assert rounds[0].notes[0] in said[-1]
    busy, _ = await measured(Server(running=2))
    assert "2 requests of others were running" in busy[0].notes[0]


async def test_rounds_carry_the_dtype_where_the_server_tells_it() -> None:
    assert {one.dtype for one in (await measured(Server(dtype="float32")))[0]} == {"float32"}
    assert {one.dtype for one in (await measured(Server()))[0]} == {""}


async def test_what_k_of_zero_still_costs_is_told_with_off_alone() -> None:
    off, on = (await measured(Server(at_zero="eagle still runs its layer")))[0]
    assert off.notes == ("off is K = 0 in the same engine: eagle still runs its layer",)
    assert on.notes == ()


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (
            (500, "EngineCore encountered an issue"),
            'HTTP 500: {"error":{"message":"EngineCore encountered an issue","code":500}}',
        ),
        ((0, ""), "the stream ended without its usage"),
    ],
)
async def test_a_request_that_fails_ends_it_and_k_is_set_back(
    failure: tuple[int, str], says: str
) -> None:
    server = Server(fails_from=6, failure=failure)
    with counted_server.serving(server) as url:
        running = measure(trial(url), WORKLOAD, ONE, Path(), print)
        assert (await anext(running)).variant == OFF
        with pytest.raises(MeasuringError) as failed:
            await anext(running)
    assert str(failed.value).startswith("ngram, concurrency 1, round 1: the request of prompt p1 ")
    assert says in str(failed.value)
    assert len(server.bodies) == 7  # the one after it is not asked any more
    assert server.tokens == 3


async def test_k_is_set_back_when_whoever_measures_stops() -> None:
    server = Server()
    with counted_server.serving(server) as url:
        running = measure(trial(url), WORKLOAD, ONE, Path(), print)
        assert (await anext(running)).variant == OFF
        assert server.tokens == 0
        await running.aclose()
        assert server.tokens == 3


async def test_a_k_that_cannot_be_changed_says_what_to_compare_with() -> None:
    with pytest.raises(MeasuringError, match=r"HTTP 409.*K cannot be changed.*--off engine"):
        await measured(Server(is_fixed=True))


async def test_a_key_is_brought_everywhere() -> None:
    rounds, _ = await measured(Server(key="sk-mine"), key="sk-mine")
    assert len(rounds) == 2
    with pytest.raises(MeasuringError, match=r"/v1/models: HTTP 401: .*Unauthorized"):
        await measured(Server(key="sk-mine"), key="sk-other")


async def test_no_other_key_is_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    server = Server()
    await measured(server, key="sk-mine")
    assert {tuple(keys) for keys in server.keys} == {("Bearer sk-mine",)}
    open_to_all = Server()
    await measured(open_to_all)
    assert {tuple(keys) for keys in open_to_all.keys} == {()}
    assert os.environ["OPENAI_API_KEY"] == "sk-other"


def test_a_key_is_in_no_text_of_a_place() -> None:
    assert "sk-mine" not in repr(Place(url="http://host", key="sk-mine"))


async def test_what_is_there_is_not_measured_again() -> None:
    rounds, _ = await measured(Server(), Manner((1,), rounds=2))
    server = Server()
    again, _ = await measured(server, Manner((1,), rounds=2), done=tuple(rounds))
    assert (again, server.asked) == ([], [])
    half = tuple(rounds[:3])  # of the second round, one variant
    rest, _ = await measured(server, Manner((1,), rounds=2), done=half)
    assert [(one.number, one.variant) for one in rest] == [(1, "ngram"), (1, OFF)]


def test_rounds_of_one_variant_alone_are_not_complete() -> None:
    two = Trial("t", (Arm(OFF, 0), Arm("ngram")), ())
    rounds = [
        Round(variant, 1, number, 1.0, (), counts=None, trial="t")  # type: ignore[arg-type]
        for variant, number in ((OFF, 0), ("ngram", 0), (OFF, 1))
    ]
    assert [(one.variant, one.number) for one in complete(two, rounds)] == [(OFF, 0), ("ngram", 0)]
    assert missing(two, Manner((1,), rounds=2), rounds) == [(1, 1)]
    assert missing(replace(two, name="other"), Manner((1,), rounds=1), rounds) == [(1, 0)]
