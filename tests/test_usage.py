from typing import Any

import pytest

from specworker import usage

STREAM = {"model": "m", "stream": True}
TEXT = 'data: {"choices":[{"index":0,"text":"one"}]}\n\n'
USAGE = 'data: {"choices":[],"usage":{"completion_tokens":3}}\n\n'
DONE = "data: [DONE]\n\n"


@pytest.mark.parametrize("path", usage.ROUTES)
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_a_stream_is_asked_for_its_usage_though_its_client_did_not(path: str, options: Any) -> None:
    body, hidden = usage.asked_for(path, STREAM | {"stream_options": options})
    assert hidden
    assert body == STREAM | {"stream_options": {"include_usage": True}}


def test_other_options_of_the_stream_are_kept() -> None:
    options = {"continuous_usage_stats": False, "include_usage": False}
    body, _ = usage.asked_for("/v1/completions", STREAM | {"stream_options": options})
    assert body["stream_options"] == {"continuous_usage_stats": False, "include_usage": True}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", STREAM | {"stream_options": {"include_usage": True}}),
        ("/v1/completions", {"model": "m"}),
        ("/v1/completions", STREAM | {"stream": "true"}),
        ("/v1/completions", STREAM | {"stream_options": "nonsense"}),
        ("/v1/responses", STREAM),
        ("/v1/models", None),
        ("/v1/completions", [1]),
    ],
)
def test_everything_else_is_left_as_it_is(path: str, body: Any) -> None:
    assert usage.asked_for(path, body) == (body, False)


@pytest.mark.parametrize(
    ("group", "left"),
    [
        (TEXT, TEXT),
        (TEXT + USAGE + DONE, TEXT + DONE),
        (USAGE, ""),
        (USAGE + DONE, DONE),
    ],
)
def test_the_event_with_the_usage_alone_is_taken_out_whole(group: str, left: str) -> None:
    assert usage.without(group) == left
