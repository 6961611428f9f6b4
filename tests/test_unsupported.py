"""Which requests are refused or rewritten: those that vLLM would refuse, and no others."""

from collections.abc import Mapping
from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest
from vllm.exceptions import VLLMError
from vllm.sampling_params import SamplingParams

from specworker import unsupported
from specworker.unsupported import ROUTES, Unsupported

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, GENERATE = "/v1/responses", "/inference/v1/generate"
MESSAGES = [{"role": "user", "content": "Hi"}]


def sampling(path: str, body: Mapping[str, Any], defaults: dict[str, Any]) -> SamplingParams:
    """What vLLM makes of a request."""
    if path == CHAT:
        chat = ChatCompletionRequest.model_validate({"messages": MESSAGES, **body})
        return chat.to_sampling_params(16, defaults)
    if path == COMPLETIONS:
        completion = CompletionRequest.model_validate({"prompt": "x", **body})
        return completion.to_sampling_params(16, defaults)
    if path == RESPONSES:
        response = ResponsesRequest.model_validate({"input": "x", **body})
        return response.to_sampling_params(16, defaults)
    asked = {"token_ids": [1], "sampling_params": body}
    return GenerateRequest.model_validate(asked).sampling_params


def is_refused(path: str, body: Mapping[str, Any], defaults: dict[str, Any]) -> bool:
    """Whether vLLM refuses a request for the sake of speculation."""
    try:
        parameters = sampling(path, body, defaults)
    except (VLLMError, ValueError, TypeError):
        return False  # for another reason
    try:
        parameters._validate_spec_decode(object())
    except VLLMError:
        return True
    return False


ASKED: tuple[dict[str, Any], ...] = (
    {},
    {"min_p": 0.1},
    {"min_p": 1},
    {"min_p": 1.5},
    {"min_p": -0.1},
    {"min_p": 0},
    {"min_p": 1e-5},
    {"min_p": 1.1e-5},
    {"min_p": None},
    {"min_p": "0.1"},
    {"min_p": "much"},
    {"min_p": True},
    {"min_p": [0.1]},
    {"min_p": float("nan")},
    {"min_p": 0.1, "temperature": 0},
    {"min_p": 0.1, "temperature": "0"},
    {"min_p": 0.1, "temperature": 1e-7},
    {"min_p": 0.1, "temperature": 0.7},
    {"min_p": 0.1, "temperature": 2.5},
    {"min_p": 0.1, "temperature": -1},
    {"min_p": 0.1, "temperature": None},
    {"temperature": 0.7},
    {"temperature": 0},
    {"logit_bias": {}},
    {"logit_bias": None},
    {"logit_bias": {"5": 1.5}},
    {"logit_bias": {"5": 1.5}, "temperature": 0},
    {"logit_bias": [5]},
    {"logit_bias": {"5": 1.5}, "min_p": 0.1},
)
DEFAULTS: tuple[dict[str, Any], ...] = (
    {},
    {"min_p": 0.05},
    {"min_p": 0.05, "temperature": 0.0},
    {"min_p": 0.0, "temperature": 0.6},
    {"temperature": 0.0},
)


@pytest.mark.parametrize("defaults", DEFAULTS, ids=str)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, GENERATE])
def test_what_is_refused_is_what_vllm_refuses(path: str, defaults: dict[str, Any]) -> None:
    policy = Unsupported.of(defaults, drops=False)
    for asked in ASKED:
        body = {"token_ids": [1], "sampling_params": asked} if path == GENERATE else asked
        assert bool(policy.fields(path, body)) == is_refused(path, asked, defaults), asked


@pytest.mark.parametrize("defaults", DEFAULTS, ids=str)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, GENERATE])
def test_what_is_left_after_dropping_is_served_where_the_default_is_dropped_too(
    path: str, defaults: dict[str, Any]
) -> None:
    policy = Unsupported.of(defaults | {"min_p": 0.0}, drops=True)
    for asked in ASKED:
        body = {"token_ids": [1], "sampling_params": asked} if path == GENERATE else asked
        if fields := policy.fields(path, body):
            kept = unsupported.without(path, body, fields)
            assert policy.fields(path, kept) == ()
            left = kept["sampling_params"] if path == GENERATE else kept
            assert left == {name: asked[name] for name in asked if name not in fields}
            assert not is_refused(path, left, defaults | {"min_p": 0.0})


def test_only_the_fields_that_are_refused_are_named() -> None:
    policy = Unsupported()
    both = {"min_p": 0.1, "logit_bias": {"5": 1}}
    assert policy.fields(CHAT, both) == ("min_p", "logit_bias")
    assert policy.fields(CHAT, {**both, "temperature": 0}) == ("logit_bias",)
    assert policy.fields(CHAT, {**both, "logit_bias": {}}) == ("min_p",)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_beam_search_reads_neither_field_and_passes(path: str) -> None:
    body = {"min_p": 0.1, "logit_bias": {"5": 1}, "use_beam_search": True}
    assert Unsupported().fields(path, body) == ()
    assert Unsupported().fields(path, {**body, "use_beam_search": "false"})
    assert Unsupported().fields(RESPONSES, body)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("body", [None, [], "min_p", 5, {"sampling_params": "min_p"}])
def test_a_body_that_is_no_request_is_left_to_vllm(path: str, body: Any) -> None:
    assert Unsupported().fields(path, body) == ()


def test_a_body_that_names_neither_field_is_not_parsed() -> None:
    assert not Unsupported().may_concern(b'{"prompt": "x", "temperature": 1}')
    assert Unsupported().may_concern(b'{"min_p": 0.1}')
    assert Unsupported().may_concern(b'{"logit_bias": {"5": 1}}')
    assert Unsupported(min_p=0.1).may_concern(b'{"prompt": "x"}')


def test_a_refusal_names_the_fields_and_the_ways_out() -> None:
    body = {"min_p": 0.1, "logit_bias": {"5": 1}}
    fields = Unsupported().fields(CHAT, body)
    error = Unsupported().refusal(CHAT, body, fields)
    assert (error.status, error.param) == (400, "min_p")
    for said in ("min_p, logit_bias", "leave", "SPECULATIVE_UNSUPPORTED=drop", "off"):
        assert said in error.message


def test_a_refusal_of_the_models_own_default_says_that_it_is() -> None:
    policy = Unsupported.of({"min_p": 0.05, "top_k": 5}, drops=False)
    error = policy.refusal(CHAT, {}, policy.fields(CHAT, {}))
    assert "the model's own default is 0.05" in error.message
    assert "send min_p 0" in error.message
    assert policy.fields(CHAT, {"min_p": 0}) == ()


@pytest.mark.parametrize(("drops", "says"), [(False, "are refused"), (True, "left out")])
def test_a_start_tells_of_a_default_that_is_refused(drops: bool, says: str) -> None:
    note = Unsupported.of({"min_p": 0.05}, drops=drops).note
    assert note is not None
    assert note.startswith("min_p=0.05, the default of generation_config.json")
    assert says in note
    assert Unsupported.of({"temperature": 0.6}, drops=drops).note is None


def test_what_was_left_out_is_noted_by_name() -> None:
    first, second = unsupported.notes(("min_p", "logit_bias"))
    assert first.startswith("min_p: left out")
    assert second.startswith("logit_bias: left out")
