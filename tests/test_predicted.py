"""How much of a prediction came true, in the words of OpenAI's usage."""

import json
from typing import Any

import pytest

from specworker.predicted import CARRIERS, Predicted

PREDICTION = [*range(10, 30)]


def figures(accepted: int, rejected: int) -> dict[str, int]:
    return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}


def told(prediction: Predicted, answer: Any) -> Any:
    return json.loads(prediction.told(json.dumps(answer, separators=(",", ":")).encode()))


def test_accepted_and_rejected_are_the_predictions_own_tokens() -> None:
    prediction = Predicted(PREDICTION)
    assert prediction.details() == figures(0, 0)
    written: list[int] = []
    prediction.watch(0, lambda: written)
    assert prediction.details() == figures(0, 20)
    written += PREDICTION[:8]
    assert prediction.details() == figures(8, 12)
    written += [1, 2, 3]  # in place of one token of the prediction
    written += PREDICTION[9:]
    assert prediction.details() == figures(19, 1)
    written += [4, 5, 6]
    assert prediction.details() == figures(19, 1)


def test_choices_are_told_one_by_one_up_to_a_token_and_together() -> None:
    prediction = Predicted(PREDICTION)
    prediction.watch(0, lambda: PREDICTION)
    prediction.watch(1, lambda: [1, 2])
    assert prediction.details(0, 5) == figures(5, 15)
    assert prediction.details(0, 7) == figures(7, 13)
    assert prediction.details(1, 2) == figures(0, 20)
    assert prediction.details() == figures(20, 20)


@pytest.mark.parametrize("details", [None, {"reasoning_tokens": 3}])
def test_a_whole_answers_usage_has_them_beside_what_vllm_says(details: Any) -> None:
    prediction = Predicted(PREDICTION)
    prediction.watch(0, lambda: PREDICTION)
    usage = {"completion_tokens": 20, "completion_tokens_details": details}
    choices = [{"index": 0, "message": {"content": "é"}}]
    answer = told(prediction, {"id": "x", "choices": choices, "usage": usage})
    assert answer["choices"] == choices
    assert answer["usage"]["completion_tokens_details"] == {**(details or {}), **figures(20, 0)}
    assert answer["usage"]["completion_tokens"] == 20


def test_an_event_with_a_choice_tells_that_choice_up_to_there() -> None:
    prediction = Predicted(PREDICTION)
    for choice in (0, 1):
        prediction.watch(choice, lambda: PREDICTION)
    seen = []
    for choice, tokens in ((0, 0), (1, 0), (0, 4), (1, 20), (0, 5)):
        choices = [{"index": choice, "delta": {"content": "a"}}]
        event = told(prediction, {"choices": choices, "usage": {"completion_tokens": tokens}})
        seen.append(event["usage"]["completion_tokens_details"])
    assert seen == [figures(n, 20 - n) for n in (0, 0, 4, 20, 5)]
    last = told(prediction, {"choices": [], "usage": {"completion_tokens": 40}})
    assert last["usage"]["completion_tokens_details"] == figures(40, 0)


@pytest.mark.parametrize(
    "body", [b"[DONE]", b"", b'{"usage":null,"choices":[]}', b'{"error":{"code":400}}', b"[1]"]
)
def test_what_tells_no_usage_stays_as_it_is(body: bytes) -> None:
    assert Predicted(PREDICTION).told(body) == body


def test_only_events_with_usage_are_looked_at() -> None:
    (sign,) = CARRIERS
    assert sign in b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":3}}\n\n'
    assert sign not in b'data: {"id":"x","choices":[{"delta":{}}]}\n\n'
