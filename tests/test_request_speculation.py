"""What a request says about its own speculation, and what vLLM is sent."""

import json
from typing import Any

import pytest

from specworker import request_speculation, terms, unsupported
from specworker.errors import RequestError
from specworker.request_speculation import CHAT, EXTRA, Asked, RequestSpeculation

GENERATE = "/inference/v1/generate"
COHERE = "/cohere/v2/chat"
TAKES = RequestSpeculation(4, unpredicted=None)
OFF = RequestSpeculation()
PREDICTION = {"type": "content", "content": "x = 1"}


def refused(body: Any, path: str = CHAT, takes: RequestSpeculation = TAKES) -> RequestError:
    with pytest.raises(RequestError) as raised:
        takes.asked(path, body)
    assert raised.value.status == 400
    assert raised.value.param
    assert raised.value.message.startswith(f"{raised.value.param}: ")
    return raised.value


def xargs(path: str, extra: Any) -> dict[str, Any]:
    """A body with extra arguments where vLLM takes them."""
    for key in reversed(EXTRA[path]):
        extra = {key: extra}
    return dict(extra)


def test_every_route_that_generates_has_a_place_for_it_or_none() -> None:
    assert EXTRA.keys() == unsupported.ROUTES.keys()
    assert [path for path, keys in EXTRA.items() if not keys] == [COHERE]


@pytest.mark.parametrize(
    ("field", "tokens"),
    [
        ({"enabled": False}, 0),
        ({"enabled": False, "num_speculative_tokens": 0}, 0),
        ({"enabled": True}, None),
        ({"num_speculative_tokens": 0}, 0),
        ({"num_speculative_tokens": 4}, 4),
        ({"enabled": True, "num_speculative_tokens": 2}, 2),
        ({}, None),
        (None, None),
    ],
)
@pytest.mark.parametrize("path", [path for path in EXTRA if path != COHERE])
def test_the_field_bounds_k_on_every_route(path: str, field: Any, tokens: int | None) -> None:
    body = {"speculation": field, "temperature": 0, "sampling_params": {"top_k": 3}}
    assert TAKES.asked(path, body) == Asked(tokens)
    sent = request_speculation.sent(path, body, tokens, [])
    given = {"num_speculative_tokens": tokens}
    expected = {"temperature": 0, "sampling_params": {"top_k": 3}}
    if tokens is not None and path == GENERATE:
        expected = {"temperature": 0, "sampling_params": {"top_k": 3, "extra_args": given}}
    elif tokens is not None:
        expected["vllm_xargs"] = given
    assert sent == expected


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ({"num_speculative_tokens": 5}, "num_speculative_tokens=5 is above the largest K"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens: Input should be greater"),
        ({"num_speculative_tokens": "2"}, "num_speculative_tokens: Input should be a valid int"),
        ({"num_speculative_tokens": 2.0}, "num_speculative_tokens: Input should be a valid int"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens: Input should be a valid int"),
        ({"enabled": 0}, "enabled: Input should be a valid boolean"),
        ({"enabled": "false"}, "enabled: Input should be a valid boolean"),
        ({"enabled": False, "num_speculative_tokens": 2}, "contradict each other"),
        ({"enabled": True, "num_speculative_tokens": 0}, "contradict each other"),
        ({"num_tokens": 2}, "num_tokens: Extra inputs are not permitted"),
        (False, "Input should be a valid dictionary"),
        ([], "Input should be a valid dictionary"),
    ],
)
def test_another_form_of_the_field_is_refused_with_what_is_allowed(field: Any, says: str) -> None:
    error = refused({"speculation": field})
    assert error.param == "speculation"
    assert says in error.message
    assert "allowed: " in error.message
    assert "from 0 (off) to 4" in error.message


@pytest.mark.parametrize("path", [path for path in EXTRA if path != COHERE])
def test_extra_arguments_of_the_client_are_checked_and_stay_as_they_are(path: str) -> None:
    body = xargs(path, {"num_speculative_tokens": 2, "other": [1]})
    assert TAKES.asked(path, body) == Asked(2)
    assert not request_speculation.concerns(body)
    assert TAKES.asked(path, xargs(path, {"other": 1})) == Asked()
    for wrong in (5, -1, "2", True, 2.0, None, [2], 10**30):
        error = refused(xargs(path, {"num_speculative_tokens": wrong}), path)
        assert error.param == f"{'.'.join(EXTRA[path])}.num_speculative_tokens"
        assert "from 0 (off) to 4" in error.message


@pytest.mark.parametrize("path", [path for path in EXTRA if path != COHERE])
@pytest.mark.parametrize("ids", [[1], [10**9], [-1], [], "1", None])
def test_token_ids_of_a_client_never_reach_the_engine(path: str, ids: Any) -> None:
    error = refused(xargs(path, {terms.PREDICTION: ids}), path)
    assert error.param == f"{'.'.join(EXTRA[path])}.prediction_ids"


def test_both_ways_may_say_the_same_and_nothing_else() -> None:
    both = {"speculation": {"num_speculative_tokens": 2}, **xargs(CHAT, {terms.TOKENS: 2})}
    assert TAKES.asked(CHAT, both) == Asked(2)
    error = refused(both | {"speculation": {"enabled": False}})
    assert error.param == "speculation"
    assert "says K=0, and vllm_xargs.num_speculative_tokens says 2" in error.message


@pytest.mark.parametrize("path", [GENERATE, COHERE])
@pytest.mark.parametrize("name", [terms.TOKENS, terms.PREDICTION])
def test_extra_arguments_that_vllm_does_not_read_are_refused(path: str, name: str) -> None:
    error = refused({"vllm_xargs": {name: 2}, "sampling_params": {}}, path)
    assert error.param == f"vllm_xargs.{name}"
    assert TAKES.asked(path, {"vllm_xargs": {"other": 2}}) == Asked()


def test_a_route_that_hands_nothing_on_refuses_the_field_by_name() -> None:
    error = refused({"speculation": {"enabled": False}}, COHERE)
    assert error.param == "speculation"
    assert COHERE in error.message
    assert TAKES.asked(COHERE, {"speculation": {"enabled": True}}) == Asked()


@pytest.mark.parametrize("path", EXTRA)
def test_without_speculation_off_is_fine_and_k_is_refused(path: str) -> None:
    assert OFF.asked(path, {"speculation": {"enabled": False}}) == Asked()
    assert OFF.asked(path, {"speculation": {"num_speculative_tokens": 0}}) == Asked()
    for field in ({"enabled": True}, {"num_speculative_tokens": 1}):
        error = refused({"speculation": field}, path, OFF)
        assert error.param == "speculation"
        assert "speculation is off in this worker; allowed: " in error.message
        assert '{"enabled": false}' in error.message or "allowed: 0" in error.message
    assert OFF.asked(CHAT, xargs(CHAT, {terms.TOKENS: 0})) == Asked()
    assert "speculation is off" in refused(xargs(CHAT, {terms.TOKENS: 1}), CHAT, OFF).message


def test_a_scheduler_that_cannot_bound_k_is_named() -> None:
    takes = RequestSpeculation(4, unbounded="the engine has another scheduler")
    for body in ({"speculation": {"enabled": False}}, xargs(CHAT, {terms.TOKENS: 2})):
        assert "the engine has another scheduler" in refused(body, CHAT, takes).message
    assert takes.asked(CHAT, {"speculation": {"enabled": True}}) == Asked()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("x = 1\n", "x = 1\n"),
        ([{"type": "text", "text": "x"}, {"type": "text", "text": " = 1"}], "x = 1"),
        ("", ""),
        ([], ""),
    ],
)
@pytest.mark.parametrize("more", [{}, {"n": 3, "temperature": 0.7, "tools": [], "logprobs": True}])
def test_a_prediction_is_its_text(content: Any, text: str, more: dict[str, Any]) -> None:
    body = {"prediction": {"type": "content", "content": content}, **more}
    assert TAKES.asked(CHAT, body) == Asked(None, text)


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("x = 1", "Input should be a valid dictionary"),
        ({"type": "content"}, "content: Field required"),
        ({"content": "x"}, "type: Field required"),
        ({"type": "text", "content": "x"}, "type: Input should be 'content'"),
        ({"type": "content", "content": 3}, "content.str: Input should be a valid string"),
        ({"type": "content", "content": None}, "content.str: Input should be a valid string"),
        ({"type": "content", "content": [{"type": "image_url"}]}, "content"),
        ({"type": "content", "content": "x", "more": 1}, "more: Extra inputs are not permitted"),
    ],
)
def test_another_form_of_a_prediction_is_refused(field: Any, says: str) -> None:
    error = refused({"prediction": field})
    assert error.param == "prediction"
    assert says in error.message
    assert '{"type": "content", "content": TEXT}' in error.message


@pytest.mark.parametrize("path", [path for path in EXTRA if path != CHAT])
def test_a_prediction_is_refused_by_name_on_every_other_route(path: str) -> None:
    error = refused({"prediction": PREDICTION}, path)
    assert error.param == "prediction"
    assert error.message == f"prediction: {path} does not take it; allowed: {CHAT}."
    assert TAKES.asked(path, {"prediction": None}) == Asked()


def test_a_prediction_is_refused_with_the_reason_why_none_is_taken() -> None:
    takes = RequestSpeculation(4, unpredicted="SPECULATIVE_PREDICTION is false")
    for content in ("x", ""):
        error = refused({"prediction": {"type": "content", "content": content}}, CHAT, takes)
        assert error.param == "prediction"
        assert "SPECULATIVE_PREDICTION is false" in error.message
    assert "speculation is off" in refused({"prediction": PREDICTION}, CHAT, OFF).message


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"use_beam_search": True}, "beam search"),
        ({"use_beam_search": "true"}, "beam search"),
        ({"speculation": {"enabled": False}}, "turns speculation off"),
        ({"vllm_xargs": {"num_speculative_tokens": 0}}, "turns speculation off"),
    ],
)
def test_a_prediction_that_nothing_would_draft_from_is_refused(more: Any, says: str) -> None:
    error = refused({"prediction": PREDICTION, **more})
    assert error.param == "prediction"
    assert says in error.message
    assert TAKES.asked(CHAT, more).prediction == ""


def test_vllm_is_sent_a_prediction_as_token_ids_beside_what_the_client_sends() -> None:
    body = {"n": 2, "prediction": PREDICTION, "vllm_xargs": {"other": 1, terms.TOKENS: 2}}
    asked = TAKES.asked(CHAT, body)
    sent = request_speculation.sent(CHAT, body, asked.tokens, [5, 6])
    extra = {"other": 1, terms.TOKENS: 2, terms.PREDICTION: [5, 6]}
    assert sent == {"n": 2, "vllm_xargs": extra}
    assert body["vllm_xargs"] == {"other": 1, terms.TOKENS: 2}


@pytest.mark.parametrize("wrong", [[], "x", 3])
def test_what_vllm_refuses_by_itself_is_left_to_it(wrong: Any) -> None:
    body = {"speculation": {"enabled": False}, "vllm_xargs": wrong}
    assert request_speculation.sent(CHAT, body, 0, []) == {"vllm_xargs": wrong}
    assert request_speculation.sent(GENERATE, body, 0, []) == {"vllm_xargs": wrong}
    assert TAKES.asked(GENERATE, {**body, "sampling_params": wrong}) == Asked(0)
    for whole in (wrong, None, True):
        assert TAKES.asked(CHAT, whole) == Asked()


@pytest.mark.parametrize(
    "body", [{"speculation": 1}, {"prediction": 1}, {"vllm_xargs": {terms.TOKENS: 1}}]
)
def test_a_body_that_names_a_field_is_parsed_however_it_is_written(body: Any) -> None:
    text = json.dumps(body)
    escaped = text.replace("s", "\\u0073").replace("p", "\\u0070").replace("n", "\\u006e")
    assert json.loads(escaped) == body
    for content in (text.encode(), escaped.encode(), text.encode("utf-16")):
        assert json.loads(content) == body
        assert TAKES.may_concern(content)


def test_any_other_body_is_not_parsed() -> None:
    body = {"messages": [{"role": "user", "content": "é, specul, predict"}], "vllm_xargs": {"a": 1}}
    assert not TAKES.may_concern(json.dumps(body, ensure_ascii=False).encode())
