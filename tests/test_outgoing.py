import json
import math
from typing import Any

import pytest

from specworker import outgoing


@pytest.mark.parametrize("value", ["text ü😀", {"a": [1, 2.5, None, True]}, [], "data: {}\n\n"])
def test_what_json_can_carry_is_left_as_it_is_and_measured(value: Any) -> None:
    assert outgoing.encodable(value) == (value, len(json.dumps(value, ensure_ascii=False).encode()))


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (
            {"logprob": math.nan, "other": [math.inf, -1.5]},
            {"logprob": None, "other": [None, -1.5]},
        ),
        ("half \ud800 a character", "half ? a character"),
        ({"\udfff": 1}, {"?": 1}),
        ({"raw": b"\xffok"}, {"raw": "\ufffdok"}),
        ({"several": {1}}, {"several": [1]}),
        ({1: object}, {"1": "<class 'object'>"}),
    ],
)
def test_what_json_cannot_carry_is_replaced(value: Any, sent: Any) -> None:
    cleaned, size = outgoing.encodable(value)
    assert cleaned == sent
    assert size == len(json.dumps(cleaned, ensure_ascii=False).encode())


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("no folder at /root/.cache/huggingface/hub", "no folder at <path>"),
        ("opened '/models/a.json' and ~/b/c", "opened '<path>' and <path>"),
        ("token hf_AbCdEfGhIjKl refused", "token <secret> refused"),
        ("see https://huggingface.co/org/model", "see https://huggingface.co/org/model"),
        ("MODEL_NAME=org/model is gated", "MODEL_NAME=org/model is gated"),
        ("a ratio of 1/10", "a ratio of 1/10"),
    ],
)
def test_an_error_for_a_client_names_no_place_and_no_token(text: str, public: str) -> None:
    assert outgoing.public(text) == public
