"""What drafts of lookups a scheduler leaves its requests, and what it learns of all of them."""

from types import SimpleNamespace
from typing import Any

import pytest

from specworker.inside_vllm.adapting_lookup import AdaptingLookup
from tests.clocks import Clock

MOST = 4
#: What is always drafted, and what the model writes where it is not right.
DRAFT, OTHER = [7] * MOST, 8


def fresh(clock: Clock) -> AdaptingLookup:
    return AdaptingLookup(MOST, 8, choices=(0, 1, 2, 3, 4), clock=clock)


def made(clock: Clock) -> AdaptingLookup:
    """One that knows what steps of one request take."""
    found = fresh(clock)
    for count in (0, 1, 2, 3, 4) * 4:
        found.settle([one := request("a", DRAFT)], ())
        one.spec_token_ids = DRAFT[:count]
        step(found, clock, [one], {"a": MOST})
    return found


def request(name: str, drafts: list[int], left: int = 100) -> Any:
    """A request as vLLM's scheduler has it, with so many tokens to come."""
    return SimpleNamespace(
        request_id=name, spec_token_ids=drafts, max_tokens=200, num_output_tokens=200 - left
    )


def serve(
    found: AdaptingLookup,
    clock: Clock,
    running: list[Any],
    right: dict[str, int],
    *,
    others: frozenset[str] = frozenset(),
    prompt: int = 0,
    finished: frozenset[str] = frozenset(),
) -> dict[str, int]:
    """A step, whose drafts are right up to some. One takes a fifth of the time without any.

    Returns:
        How many of each request were verified.
    """
    found.settle(running, others)
    return step(found, clock, running, right, prompt, finished)


def step(
    found: AdaptingLookup,
    clock: Clock,
    running: list[Any],
    right: dict[str, int],
    prompt: int = 0,
    finished: frozenset[str] = frozenset(),
) -> dict[str, int]:
    """The step after a scheduler has settled what is verified."""
    drafts = {one.request_id: one.spec_token_ids for one in running}
    scheduled = {name: 1 + len(tokens) for name, tokens in drafts.items()}
    output = SimpleNamespace(
        num_scheduled_tokens=scheduled | ({"prompt": prompt} if prompt else {}),
        scheduled_spec_decode_tokens={name: tokens for name, tokens in drafts.items() if tokens},
        finished_req_ids=finished,
    )
    found.made(output, {}, MOST)
    clock.now += 0.01 * (1 + sum(map(len, drafts.values())) / 5)
    names = [name for name in drafts if name in right]
    sampled = []
    for name in names:
        accepted = min(right[name], len(drafts[name]))
        comes = DRAFT[0] if accepted < right[name] else OTHER
        sampled.append([*drafts[name][:accepted], comes])
    found.landed(output, sampled, {name: row for row, name in enumerate(names)})
    return {name: len(tokens) for name, tokens in drafts.items()}


def yields(found: AdaptingLookup) -> dict[int, float]:
    return dict(found.state()["yields"])


def learn(found: AdaptingLookup, clock: Clock, right: int, steps: int = 60, **how: Any) -> int:
    """Steps of one request. Returns how many of its drafts were verified in the last one."""
    last = 0
    for _ in range(steps):
        last = serve(found, clock, [request("a", DRAFT)], {"a": right}, **how)["a"]
    return last


def test_drafts_that_are_right_are_verified_and_others_are_not(clock: Clock) -> None:
    found = made(clock)
    assert learn(found, clock, right=MOST) == MOST
    assert learn(found, clock, right=0) == 0
    assert learn(found, clock, right=MOST) == MOST


def test_what_is_not_verified_is_compared_with_what_comes(clock: Clock) -> None:
    found = made(clock)
    learn(found, clock, right=0, steps=200)
    assert yields(found)[1] < 1.1
    # The model writes the drafted token by itself, though none is verified.
    for _ in range(60):
        found.settle([one := request("a", DRAFT)], ())
        one.spec_token_ids = []
        step(found, clock, [one], {"a": MOST})
    assert yields(found)[MOST] > 3


def test_the_run_of_a_request_is_its_own_and_ends_with_it(clock: Clock) -> None:
    found = made(clock)

    def both(**more: Any) -> dict[str, int]:
        running = [request("a", DRAFT), request("b", DRAFT)]
        return serve(found, clock, running, {"a": MOST, "b": 0}, **more)

    for _ in range(300):
        both()
    assert both() == {"a": MOST, "b": 0}
    assert found._runs["a"] > MOST
    assert found._runs["b"] == 0
    serve(found, clock, [], {}, finished=frozenset({"a"}))
    assert "a" not in found._runs


def test_no_request_gets_more_than_it_can_use(clock: Clock) -> None:
    found = made(clock)
    learn(found, clock, right=MOST)
    for left, most in ((4, 3), (2, 1), (1, 0)):
        one = request("a", DRAFT, left)
        assert serve(found, clock, [one], {"a": MOST})["a"] == most


def test_the_lookup_is_asked_for_all_that_can_be_used(clock: Clock) -> None:
    found = made(clock)
    learn(found, clock, right=0)
    assert found.choose(1, 100) == MOST
    assert found.choose(1, 2) == 2


def test_drafts_that_are_no_lookups_are_left_and_count_in_the_time(clock: Clock) -> None:
    found = made(clock)
    learn(found, clock, right=0)
    predicted = list(range(10, 30))
    before = yields(found)
    for _ in range(20):
        one = request("p", predicted)
        serve(found, clock, [one], {"p": 0}, others=frozenset({"p"}))
        assert one.spec_token_ids == predicted
    assert yields(found)[MOST] <= before[MOST]
    assert "p" not in found._runs


def test_steps_that_read_a_prompt_are_not_timed(clock: Clock) -> None:
    found = fresh(clock)
    learn(found, clock, right=MOST, prompt=64)
    assert found.state()["seconds"] == []
    learn(found, clock, right=0)
    assert dict(found.state()["seconds"])[0] == pytest.approx(0.01)


def test_a_request_without_tokens_tells_nothing(clock: Clock) -> None:
    found = made(clock)
    for _ in range(30):
        serve(found, clock, [request("a", DRAFT)], {})  # it was aborted meanwhile
    untried = made(clock)
    serve(untried, clock, [request("a", DRAFT)], {})
    assert found._controller._odds.chances(MOST) == pytest.approx(
        untried._controller._odds.chances(MOST)
    )


def test_after_a_rest_from_adapting_what_was_found_before_does_not_count(clock: Clock) -> None:
    found = made(clock)
    learn(found, clock, right=MOST)
    known = dict(found.state()["seconds"])
    found.settle([request("a", DRAFT)], ())
    clock.now += 60  # in which K was set
    found.resume()
    learn(found, clock, right=MOST, steps=2)
    assert dict(found.state()["seconds"]) == pytest.approx(known)
    assert found.state()["most"] == MOST


def test_what_it_knows_passes_between_processes(clock: Clock) -> None:
    import msgspec

    found = made(clock)
    learn(found, clock, right=MOST)
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(found.state()))
    assert state == found.state()
    assert [k for k, _ in state["yields"]] == [0, 1, 2, 3, 4]
    assert state["gain"] == pytest.approx(5.0 / 1.8, rel=0.1)
