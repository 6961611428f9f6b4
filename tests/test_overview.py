import pytest

from specworker import overview
from specworker.acceptance import Acceptance
from specworker.acceptance_rule import AcceptanceRule
from specworker.adaptation import Adaptation
from specworker.live import SHOWN, Finished, Live, Setup
from tests.clocks import Clock

STEP = Acceptance(20, 10, 30, 19, (9, 6, 4), (10, 10, 10))


def running(setup: Setup) -> Live:
    """An engine with a step and two requests behind it, one of them of a single token."""
    clock = Clock()
    live = Live(setup, clock)
    clock.now += 5.0
    live.count(STEP, (2, 1))
    live.finish(Finished("cmpl-1", 1764470000.0, 19, 1.0, 0.0125, 10, 30, 19))
    live.finish(Finished("cmpl-2", 1764470001.0, 1, 0.1))
    return live


def test_everything_is_told_as_documented() -> None:
    said = overview.of(running(Setup("ngram", None, 3, (0, 3, 3, 0), dtype="float32"))).model_dump()
    windows = said.pop("windows")
    assert list(windows) == ["10s", "1m", "since_start"]
    assert windows["10s"] == {
        "seconds": 5.0,
        "drafts": 10,
        "drafted": 30,
        "accepted": 19,
        "acceptance_by_position": [0.9, 0.6, 0.4],
        "mean_acceptance_length": 2.9,
        "tokens_per_second": 4.0,
        "tpot_ms": {"p50": 12.5, "p95": 12.5},
    }
    single = {"steps": None, "drafted": None, "accepted": None, "tpot_ms": None}
    assert said.pop("recent") == [
        {"id": "cmpl-2", "finished": 1764470001.0, "tokens": 1, "mean_acceptance_length": None}
        | single,
        {
            "id": "cmpl-1",
            "finished": 1764470000.0,
            "tokens": 19,
            "steps": 10,
            "drafted": 30,
            "accepted": 19,
            "mean_acceptance_length": 2.9,
            "tpot_ms": 12.5,
        },
    ]
    assert said == {
        "method": "ngram",
        "draft": None,
        "num_speculative_tokens": 3,
        "max_num_speculative_tokens": 3,
        "adaptive": None,
        "disable_by_batch_size": 2,
        "draft_cost": 0.0,
        "at_zero": None,
        "dtype": "float32",
        "acceptance_rule": {"name": "rejection_sampler", "lossy": False},
        "fallback": None,
        "requests": {"running": 2, "waiting": 1},
        "verdict": {
            "kind": "paying",
            "text": "2.9 tokens per step: paying off",
            "is_estimate": True,
        },
    }


def test_a_lossy_rule_is_told_with_its_settings() -> None:
    rule = AcceptanceRule("typical_acceptance_sampler", 0.1, 0.2, "sample")
    said = overview.of(Live(Setup("draft_model", "small", 3, rule=rule))).model_dump()
    assert said["acceptance_rule"] == {
        "name": "typical_acceptance_sampler",
        "lossy": True,
        "threshold": 0.1,
        "alpha": 0.2,
        "recovery": "sample",
    }
    assert said["draft"] == "small"


def test_an_engine_that_decodes_plainly_says_so() -> None:
    said = overview.of(Live(Setup(fallback="it did not load")))
    assert (said.method, said.num_speculative_tokens, said.max_num_speculative_tokens) == (
        None,
        0,
        0,
    )
    assert said.fallback == "it did not load"
    assert said.dtype is None
    assert said.verdict.kind == "off"
    assert said.windows["1m"].mean_acceptance_length == 1.0
    assert said.windows["1m"].acceptance_by_position == []


def test_only_the_last_requests_are_shown() -> None:
    live = Live(Setup("ngram", None, 3))
    for number in range(SHOWN + 5):
        live.finish(Finished(str(number), 0.0, 2))
    shown = [request.id for request in overview.of(live).recent]
    assert shown == [str(number) for number in range(SHOWN + 4, 4, -1)]


def test_the_line_of_the_log_has_the_verdict_and_its_grounds() -> None:
    live = running(Setup("ngram", None, 3))
    assert overview.line(live) == (
        "speculation: 2.9 tokens per step: paying off (an estimate); accepted 19 of 30 drafted "
        "(90% 60% 40%); ngram K=3; 4.0 tokens/s; TPOT 12.5 ms, p95 12.5 ms; 2 running, 1 waiting"
    )


def adapting() -> Live:
    """The same engine, whose K adapts and has come to 2."""
    live = running(Setup("ngram", None, 3, adaptive=True))
    yields, seconds = {0: 1.0, 1: 1.6, 2: 2.1}, {0: 0.01, 1: 0.012, 2: 0.014}
    live.hear(Adaptation(3, 2, 12, yields, seconds, 5, 0.0072, "K 0 → 2: it pays", 1.5))
    return live


def test_a_k_that_adapts_is_told_with_what_is_known_of_it() -> None:
    said = overview.of(adapting()).model_dump()
    assert said["num_speculative_tokens"] == 2
    assert said["adaptive"] == {
        "num_speculative_tokens": 2,
        "max_num_speculative_tokens": 3,
        "batch": 12,
        "tokens_per_step": {0: 1.0, 1: 1.6, 2: 2.1},
        "milliseconds_per_step": pytest.approx({0: 10.0, 1: 12.0, 2: 14.0}),
        "changes": 5,
        "share_lost_to_trials": 0.0072,
        "reason": "K 0 → 2: it pays",
    }
    unknown = overview.of(Live(Setup("ngram", None, 3, adaptive=True))).adaptive
    assert unknown is not None
    assert (unknown.num_speculative_tokens, unknown.reason) == (0, None)
    assert unknown.milliseconds_per_step == {}


def test_the_line_of_the_log_says_that_k_adapts() -> None:
    assert overview.line(adapting()) == (
        "speculation: 2.9 tokens per step, K adapts and is 2, about 1.5 times as fast as at K = 0: "
        "paying off (an estimate); accepted 19 of 30 drafted (90% 60% 40%); ngram K=2 (adapts up "
        "to 3, 5 changes, 0.7% for trials); 4.0 tokens/s; TPOT 12.5 ms, p95 12.5 ms; 2 running, "
        "1 waiting"
    )


def test_the_line_of_plain_decoding_has_no_figures_of_drafts() -> None:
    live = Live(Setup(), clock := Clock())
    clock.now += 2.0
    live.count(Acceptance(9), (1, 0))
    assert overview.line(live) == (
        "speculation: off: no speculation is set; 4.5 tokens/s; 1 running, 0 waiting"
    )
