"""Predicted outputs in an engine: what keeps it from taking them, and how a text is tokenised."""

import asyncio
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from specworker import predicted
from specworker.inside_vllm import predictions
from specworker.inside_vllm.observer import SCHEDULER
from specworker.predicted import Predicted


def config(method: str | None = "ngram", **changed: Any) -> Any:
    """A configuration under which predictions are taken, but for `changed`."""
    speculative = SimpleNamespace(method=method, draft_sample_method="greedy")
    scheduler = SimpleNamespace(scheduler_cls=SCHEDULER, async_scheduling=False)
    model = SimpleNamespace(skip_tokenizer_init=False)
    whole = SimpleNamespace(
        use_v2_model_runner=False,
        speculative_config=speculative if method else None,
        scheduler_config=scheduler,
        model_config=model,
    )
    for name, value in changed.items():
        (owner,) = (one for one in (speculative, scheduler, model, whole) if hasattr(one, name))
        setattr(owner, name, value)
    return whole


@pytest.mark.parametrize("method", ["ngram", "suffix", "draft_model", "eagle"])
def test_drafts_that_the_host_holds_can_be_replaced(method: str) -> None:
    assert predictions.obstacle(config(method)) is None


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("async_scheduling", True, "asynchronous scheduling keeps drafts on the GPU"),
        ("use_v2_model_runner", True, "vLLM's V2 model runner keeps drafts on the GPU"),
        ("draft_sample_method", "probabilistic", "drafts are probabilistic"),
        ("scheduler_cls", "other.Scheduler", "the scheduler is other.Scheduler"),
        ("skip_tokenizer_init", True, "there is no tokenizer"),
    ],
)
def test_what_keeps_predictions_from_being_taken_is_named(name: str, value: Any, says: str) -> None:
    reason = predictions.obstacle(config("draft_model", **{name: value}))
    assert reason is not None
    assert reason.startswith(says)


def test_predictions_that_are_not_wanted_are_not_taken() -> None:
    assert predictions.obstacle(config(), wanted=False) == "SPECULATIVE_PREDICTION is false"
    assert predictions.obstacle(config(None)) == "speculation is off"


def args(config: dict[str, Any] | None, **changed: Any) -> Namespace:
    given = {
        "speculative_config": config,
        "prefill_context_parallel_size": 1,
        "enable_batch_sharded_sampling": None,
        "watermark_config": None,
    }
    return Namespace(**{**given, **changed})


@pytest.mark.parametrize(
    ("config", "changed", "prefers"),
    [
        ({"method": "ngram"}, {}, True),
        ({"method": "prediction"}, {}, True),
        ({"method": "prediction"}, {"prefill_context_parallel_size": 2}, True),
        ({"method": "ngram", "rejection_sample_method": "block"}, {}, False),
        ({"method": "ngram"}, {"prefill_context_parallel_size": 2}, False),
        ({"method": "ngram"}, {"enable_batch_sharded_sampling": True}, False),
        ({"method": "ngram"}, {"watermark_config": {"a": 1}}, False),
        ({"method": "draft_model"}, {}, False),
        ({"method": "suffix"}, {}, False),
        (None, {}, False),
    ],
)
def test_lookups_are_served_by_the_runner_that_takes_predictions(
    config: dict[str, Any] | None, changed: dict[str, Any], prefers: bool
) -> None:
    assert predictions.prefers_v1(args(config, **changed)) is prefers


def test_vllm_looks_up_what_no_text_can_hold_where_only_predictions_draft() -> None:
    given = {"method": "prediction", "num_speculative_tokens": 16}
    told = predictions.as_lookup(given)
    assert told["method"] == "ngram"
    assert told["num_speculative_tokens"] == 16
    assert told["prompt_lookup_min"] == told["prompt_lookup_max"] > 2**30
    assert given["method"] == "prediction"


async def test_what_is_written_for_a_request_reaches_its_prediction_and_no_other() -> None:
    states: dict[str, Any] = {}

    def add(request: Any, prompt: str, parent: Any = None, index: int = 0) -> None:
        detokenizer = SimpleNamespace(output_token_ids=[])
        states[request.request_id] = SimpleNamespace(
            request_index=index, detokenizer=detokenizer, seen=(prompt, parent)
        )

    processor = SimpleNamespace(request_states=states, add_request=add)
    client: Any = SimpleNamespace(output_processor=processor)
    predictions.watch(client)

    async def request(name: str, prediction: Predicted | None, tokens: list[int]) -> None:
        predicted.current.set(prediction)
        await asyncio.sleep(0)
        for index in (0, 1):
            own = SimpleNamespace(request_id=f"{index}_{name}")
            processor.add_request(own, "prompt", "parent", index=index)
            states[own.request_id].detokenizer.output_token_ids += tokens[: 1 + index]

    first, second = Predicted([5, 6]), Predicted([7, 8])
    await asyncio.gather(
        request("a", first, [5, 6]), request("b", None, [5, 6]), request("c", second, [7, 1])
    )
    assert first.details(0)["accepted_prediction_tokens"] == 1
    assert first.details()["accepted_prediction_tokens"] == 3
    assert second.details()["accepted_prediction_tokens"] == 2
    assert {state.seen for state in states.values()} == {("prompt", "parent")}
