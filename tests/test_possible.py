"""What an engine can do with what it is asked for: steering, requests' own terms, methods."""

import logging
from argparse import Namespace
from typing import Any

import pytest

from specworker.errors import ConfigurationError
from specworker.inside_vllm import possible
from specworker.inside_vllm.observer import SCHEDULER
from specworker.inside_vllm.steering import Steering
from specworker.request_speculation import RequestSpeculation
from tests.test_predictions import config

STEERED = Steering(adaptive=True, max_prompt_len=9)


def engine(method: str | None = "ngram", **changed: Any) -> Any:
    whole = config(method, **changed)
    if method:
        whole.speculative_config.num_speculative_tokens = 4
    return whole


def args(**changed: Any) -> Namespace:
    given = {
        "speculative_config": {"method": "ngram"},
        "data_parallel_size": 1,
        "scheduler_cls": SCHEDULER,
    }
    return Namespace(**(given | changed))


def test_requests_may_ask_for_all_that_the_engine_can_do(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    asked = possible.speculation(engine(), predicted=True)
    assert asked == RequestSpeculation(4, unbounded=None, unpredicted=None)
    assert caplog.messages == ["predicted outputs: taken"]


def test_the_start_says_why_predictions_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    asked = possible.speculation(engine("draft_model", async_scheduling=True), predicted=True)
    assert asked.unpredicted
    assert caplog.messages == [f"predicted outputs: refused, {asked.unpredicted}"]
    assert "ASYNC_SCHEDULING=false" in asked.unpredicted
    assert possible.speculation(engine(), predicted=False).unpredicted


def test_without_speculation_nothing_is_said_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    assert possible.speculation(engine(None), predicted=True) == RequestSpeculation()
    assert caplog.messages == []


def test_another_scheduler_bounds_k_for_no_request() -> None:
    asked = possible.speculation(engine(scheduler_cls="other.Scheduler"), predicted=True)
    assert asked.unbounded
    assert "other.Scheduler" in asked.unbounded
    assert asked.unpredicted


def test_nothing_but_predictions_and_no_predictions_stops_the_start() -> None:
    whole = engine(use_v2_model_runner=True)
    with pytest.raises(ConfigurationError, match=r"SPECULATIVE_METHOD=prediction: .*V2") as stopped:
        possible.speculation(whole, predicted=True, method="prediction")
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in stopped.value.problems[0]
    assert possible.speculation(whole, predicted=True, method="ngram").most == 4
    assert not possible.speculation(engine(), predicted=True, method="prediction").unpredicted


@pytest.mark.parametrize(
    ("changed", "expected", "said"),
    [
        ({}, STEERED, ""),
        ({"speculative_config": None}, Steering(), ""),
        ({"data_parallel_size": 2}, Steering(), "data parallelism"),
        ({"scheduler_cls": "other.Scheduler"}, Steering(), "other.Scheduler"),
    ],
)
def test_steering_that_cannot_be_is_said_to_have_no_effect(
    changed: dict[str, Any], expected: Steering, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert possible.steering(STEERED, args(**changed)) == expected
    assert [said in line and "no effect" in line for line in caplog.messages] == [True] * bool(said)
    caplog.clear()
    only = Steering(only_predictions=True)
    if changed.get("speculative_config", only):
        assert possible.steering(only, args(**changed)) == only
    assert caplog.messages == []


def test_methods_of_the_workers_own_are_told_as_vllms() -> None:
    for method, told in (("prediction", "ngram"), ("ngram", "ngram"), ("suffix", "suffix")):
        given = {"method": method, "num_speculative_tokens": 4}
        config = possible.in_vllms_terms(given)
        assert config is not None
        assert config["method"] == told
        assert config["num_speculative_tokens"] == 4
        assert given["method"] == method
    assert possible.in_vllms_terms(None) is None
