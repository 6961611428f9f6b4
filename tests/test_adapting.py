"""What a controller of K is told of the steps of a scheduler, which tests make up here."""

from types import SimpleNamespace
from typing import Any

import pytest

from specworker.inside_vllm.adapting import Adapting
from tests.clocks import Clock

CHOICES = (0, 1, 2, 3, 4)


def made(clock: Clock, **options: Any) -> Adapting:
    usual: dict[str, Any] = {"choices": CHOICES, "overlaps": False}
    return Adapting(4, None, **usual | options, clock=clock)


def step(drafts: dict[str, int], prompts: dict[str, int] | None = None, **whose: Any) -> Any:
    """A step as vLLM's scheduler makes it, by the drafts of each request that decodes.

    Args:
        drafts: how many drafted tokens of each are verified.
        prompts: tokens of each prompt that is read.
        whose: the requests that are `new`, were `resumed`, or have `finished` before.
    """
    scheduled = {name: 1 + count for name, count in drafts.items()} | (prompts or {})
    return SimpleNamespace(
        num_scheduled_tokens=scheduled,
        scheduled_spec_decode_tokens={name: [7] * k for name, k in drafts.items() if k},
        scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in whose.get("new", set())],
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=whose.get("resumed", set())),
        finished_req_ids=whose.get("finished", set()),
    )


def land(found: Adapting, output: Any, accepted: dict[str, int]) -> None:
    """Have a step's tokens arrive: those accepted, and one more each."""
    rows = {name: row for row, name in enumerate(output.num_scheduled_tokens)}
    sampled = [[7] * (accepted[name] + 1) if name in accepted else [] for name in rows]
    found.landed(output, sampled, rows)


def serve(found: Adapting, clock: Clock, output: Any, accepted: dict[str, int], k: int) -> None:
    """A step of ten milliseconds, whose drafter is told `k`."""
    found.choose(len(output.num_scheduled_tokens))
    found.made(output, {}, k)
    clock.now += 0.01
    land(found, output, accepted)


#: How far the position before, which is likened to it, draws what is known of a position.
DRAWN = 0.05


def yields(found: Adapting) -> dict[int, float]:
    return dict(found.state()["yields"])


def seconds(found: Adapting) -> dict[int, float]:
    return dict(found.state()["seconds"])


def test_drafts_count_as_those_of_the_k_that_was_asked_for_a_step_before(clock: Clock) -> None:
    found = made(clock)
    serve(found, clock, step({"a": 0}), {"a": 0}, 2)
    untried = yields(found)
    for _ in range(60):
        serve(found, clock, step({"a": 2}), {"a": 1}, 2)
    known = yields(found)
    assert known[1] == pytest.approx(2.0)
    assert known[2] == pytest.approx(2.0, abs=DRAWN)
    # What lies beyond has not been tried, and promises nothing after a position that never held.
    assert known[4] == pytest.approx(2.0, abs=DRAWN)
    assert untried[4] > 2.5


def test_requests_with_terms_of_their_own_are_left_out(clock: Clock) -> None:
    found = made(clock)
    untried = yields(found)
    for _ in range(60):
        found.choose(2)
        output = step({"a": 4, "b": 4})
        found.made(output, {"a": object(), "b": object()}, 4)
        land(found, output, {"a": 0, "b": 0})
    assert yields(found) == untried
    for _ in range(60):
        found.choose(2)
        output = step({"a": 4, "b": 4})
        found.made(output, {"a": object()}, 4)
        land(found, output, {"a": 0, "b": 4})
    assert yields(found)[4] == pytest.approx(5.0)


@pytest.mark.parametrize("whose", ["new", "resumed"])
def test_a_request_that_had_no_draft_to_come_is_left_out(clock: Clock, whose: str) -> None:
    found = made(clock)
    serve(found, clock, step({"a": 0}), {"a": 0}, 4)
    for _ in range(60):
        output = step({"a": 4, "b": 0}, None, **{whose: {"b"}})
        serve(found, clock, output, {"a": 4, "b": 0}, 4)
    assert yields(found)[4] == pytest.approx(5.0)


@pytest.mark.parametrize("whose", ["new", "resumed"])
def test_the_controller_hears_of_requests_that_join(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    found = made(clock)
    shares: list[float] = []
    monkeypatch.setattr(found._controller, "renew", shares.append)
    serve(found, clock, step({"a": 0, "b": 0, "c": 0}, {"d": 40}, **{whose: {"d"}}), {}, 0)
    serve(found, clock, step(dict.fromkeys("abcd", 0)), {}, 0)
    assert shares == [0.25]


def test_a_request_without_tokens_is_left_out(clock: Clock) -> None:
    found = made(clock)
    serve(found, clock, step({"a": 0}), {"a": 0}, 4)
    for _ in range(60):
        serve(found, clock, step({"a": 4, "b": 4}), {"a": 4}, 4)  # b was aborted meanwhile
    assert yields(found)[4] == pytest.approx(5.0)


def test_steps_that_read_a_prompt_are_not_timed(clock: Clock) -> None:
    found = made(clock)
    for _ in range(20):
        serve(found, clock, step({"a": 0}, {"b": 64}, new={"b"}), {"a": 0}, 0)
    assert seconds(found) == {}
    for _ in range(20):
        serve(found, clock, step({"a": 0, "b": 0}), {"a": 0, "b": 0}, 0)
    assert seconds(found)[0] == pytest.approx(0.01)


def told(found: Adapting, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens to catch up with, as the controller is told of them from now on."""
    unread: list[int] = []

    def choose(_: int, missed: int, useful: int | None) -> int:
        unread.append(missed)
        return 0

    monkeypatch.setattr(found._controller, "choose", choose)
    return unread


def test_what_a_draft_missed_while_it_rested_is_known_by_request(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = made(clock, rests=True)
    unread = told(found, monkeypatch)
    serve(found, clock, step({}, {"a": 50, "b": 30}, new={"a", "b"}), {}, 0)
    serve(found, clock, step({"a": 0, "b": 0}), {"a": 0, "b": 0}, 0)
    serve(found, clock, step({"a": 0}, finished={"b"}), {"a": 0}, 2)
    serve(found, clock, step({"a": 2}), {"a": 1}, 0)
    serve(found, clock, step({"a": 0}), {"a": 0}, 0)
    assert unread == [0, 80, 82, 0, 3]
    found.resume()
    serve(found, clock, step({"a": 0}), {"a": 0}, 0)
    assert unread[-1] == 0


def test_a_draft_that_never_rests_misses_nothing(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = made(clock)
    unread = told(found, monkeypatch)
    for _ in range(3):
        serve(found, clock, step({"a": 0}), {"a": 0}, 0)
    assert unread == [0, 0, 0]


def test_the_time_without_requests_is_no_steps(clock: Clock) -> None:
    found = made(clock)
    for _ in range(20):
        for _ in range(5):
            serve(found, clock, step({"a": 0}), {"a": 0}, 0)
        found.rest()
        clock.now += 60
    assert seconds(found)[0] == pytest.approx(0.01)


def test_with_two_steps_under_way_each_has_the_k_that_its_drafts_were_asked_for(
    clock: Clock,
) -> None:
    found = made(clock, overlaps=True)
    flies: list[tuple[Any, int]] = []
    ks = [2, 4] * 60
    for number, k in enumerate(ks):
        found.choose(1)
        drafted = ks[number - 1] if number else 0
        output = step({"a": drafted})
        found.made(output, {}, k)
        flies.append((output, drafted))
        clock.now += 0.01
        if len(flies) > 1:
            landed, drafted = flies.pop(0)
            land(found, landed, {"a": min(drafted, 3)})
    known = yields(found)
    # Taken for drafts of the other K, two of four would have been the most, or two of two few.
    assert known[2] == pytest.approx(3.0)
    assert known[3] == pytest.approx(4.0)
    assert known[4] == pytest.approx(4.0, abs=DRAWN)


def test_a_step_that_is_not_known_changes_nothing(clock: Clock) -> None:
    found = made(clock)
    untried = yields(found)
    land(found, step({"a": 4}), {"a": 0})
    serve(found, clock, step({"a": 4}), {"a": 0}, 4)
    serve(found, clock, step({"a": 4}), {}, 4)
    found.landed(step({"a": 4}), [], {})
    assert yields(found) == untried


def test_after_a_rest_from_adapting_the_drafts_of_another_k_do_not_count(clock: Clock) -> None:
    found = made(clock)
    for _ in range(3):
        serve(found, clock, step({"a": 0}), {"a": 0}, 4)
    before, known = yields(found), seconds(found)
    clock.now += 60  # in which K was 1
    found.resume()
    serve(found, clock, step({"a": 1}), {"a": 0}, 4)
    assert yields(found) == before
    assert seconds(found) == known
    assert found.state()["most"] == 4


def test_what_it_knows_passes_between_processes() -> None:
    import msgspec

    found = Adapting(3, None, choices=CHOICES, overlaps=False)
    for _ in range(20):
        serve(found, Clock(), step({"a": 0}), {"a": 0}, 3)
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(found.state()))
    assert state == found.state()
    assert [k for k, _ in state["yields"]] == [0, 1, 2, 3]
