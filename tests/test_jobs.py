import json
from typing import Any

import pytest

from specworker import jobs
from specworker.errors import RequestError
from specworker.jobs import Request, request_of

MESSAGES = [{"role": "user", "content": "Hi"}]


def refusal(job_input: Any) -> str:
    with pytest.raises(RequestError) as caught:
        request_of(job_input, "served")
    assert caught.value.status == 400
    return caught.value.message


@pytest.mark.parametrize(
    ("job_input", "expected"),
    [
        (
            {"openai_route": "/v1/chat/completions", "openai_input": {"messages": MESSAGES}},
            Request("POST", "/v1/chat/completions", {"messages": MESSAGES, "model": "served"}),
        ),
        (
            {"openai_input": {"messages": MESSAGES, "model": "other"}},
            Request("POST", "/v1/chat/completions", {"messages": MESSAGES, "model": "other"}),
        ),
        (
            {"openai_route": "v1/completions", "openai_input": {"prompt": "Hi", "model": ""}},
            Request("POST", "/v1/completions", {"prompt": "Hi", "model": "served"}),
        ),
        (
            {"openai_route": None, "openai_input": {"prompt": "Hi", "model": None}},
            Request("POST", "/v1/chat/completions", {"prompt": "Hi", "model": "served"}),
        ),
        ({"openai_route": "/v1/models"}, Request("GET", "/v1/models")),
        ({"openai_route": "/v1/models", "openai_input": {}}, Request("GET", "/v1/models")),
        ({"openai_route": "/v1/models", "openai_input": None}, Request("GET", "/v1/models")),
    ],
)
def test_a_call_that_the_platform_wrapped(job_input: Any, expected: Request) -> None:
    assert request_of(job_input, "served") == expected


@pytest.mark.parametrize(
    ("job_input", "expected"),
    [
        ({"route": "/health"}, Request("GET", "/health")),
        ({"route": "metrics"}, Request("GET", "/metrics")),
        (
            {"route": "/tokenize", "body": {"prompt": "Hi"}},
            Request("POST", "/tokenize", {"prompt": "Hi", "model": "served"}),
        ),
        (
            {"route": "/tokenize", "method": "put", "body": {"model": "a"}},
            Request("PUT", "/tokenize", {"model": "a"}),
        ),
        ({"route": "/x", "method": "GET", "body": {"a": 1}}, Request("GET", "/x", {"a": 1})),
        ({"route": "/x", "method": "", "body": None}, Request("GET", "/x")),
        ({"route": "/x", "method": "POST"}, Request("POST", "/x")),
        ({"route": "/x", "body": {}}, Request("POST", "/x", {"model": "served"})),
        ({"route": "/x", "body": [1]}, Request("POST", "/x", [1])),
        ({"route": "/x?a=b"}, Request("GET", "/x?a=b")),
    ],
)
def test_a_call_of_any_route(job_input: Any, expected: Request) -> None:
    assert request_of(job_input, "served") == expected


@pytest.mark.parametrize(
    ("job_input", "path", "body"),
    [
        (
            {"prompt": "Hi"},
            "/v1/completions",
            {"prompt": "Hi", "max_tokens": jobs.DEFAULT_MAX_TOKENS},
        ),
        (
            {"prompt": "Hi", "sampling_params": {"max_tokens": 8, "temperature": 0}},
            "/v1/completions",
            {"prompt": "Hi", "max_tokens": 8, "temperature": 0},
        ),
        (
            {"prompt": "Hi", "sampling_params": None, "stream": True},
            "/v1/completions",
            {"prompt": "Hi", "max_tokens": 100, "stream": True},
        ),
        (
            {"messages": MESSAGES, "stream": False},
            "/v1/chat/completions",
            {"messages": MESSAGES, "max_tokens": 100, "stream": False},
        ),
        (
            {"prompt": "no", "messages": MESSAGES},
            "/v1/chat/completions",
            {"messages": MESSAGES, "max_tokens": 100},
        ),
        (
            {"prompt": "Hi", "apply_chat_template": True},
            "/v1/chat/completions",
            {"messages": MESSAGES, "max_tokens": 100},
        ),
        (
            {"prompt": "Hi", "messages": [], "apply_chat_template": False},
            "/v1/completions",
            {"prompt": "Hi", "max_tokens": 100},
        ),
        (
            {"prompt": ["a", "b"]},
            "/v1/completions",
            {"prompt": ["a", "b"], "max_tokens": 100},
        ),
    ],
)
def test_a_plain_prompt_or_messages(job_input: Any, path: str, body: dict[str, Any]) -> None:
    expected = Request("POST", path, {**body, "model": "served"}, batching={})
    assert request_of(job_input, "served") == expected


@pytest.mark.parametrize("job_input", [{"prompt": "Hi"}, {"messages": MESSAGES}])
def test_a_plain_job_may_say_how_its_stream_is_batched(job_input: dict[str, Any]) -> None:
    batching = {"max_batch_size": 20, "min_batch_size": 2, "batch_size_growth_factor": 1.5}
    request = request_of({**job_input, **batching, "batch_size": 9}, "served")
    assert request.batching == {**batching, "batch_size": 9}
    assert request.body == request_of(job_input, "served").body


def test_only_plain_jobs_are_batched() -> None:
    for job_input in ({"openai_input": {"prompt": "Hi"}}, {"route": "/x", "body": {}}):
        assert request_of(job_input, "served").batching is None
        assert "unknown keys batch_size" in refusal({**job_input, "batch_size": 9})


def test_null_says_nothing_of_batches() -> None:
    assert request_of({"prompt": "Hi", "max_batch_size": None}, "served").batching == {}


@pytest.mark.parametrize(
    "key", ["max_batch_size", "min_batch_size", "batch_size_growth_factor", "batch_size"]
)
@pytest.mark.parametrize(
    "value", [0, -1, 0.0, "3", True, False, [], {}, float("nan"), float("inf"), 10**400]
)
def test_a_batch_size_that_is_no_positive_number_is_refused_by_name(key: str, value: Any) -> None:
    message = refusal({"prompt": "Hi", key: value})
    assert message == f"{key} is a number above 0 and at most 1000000."


@pytest.mark.parametrize("value", [True, False, None, "yes"])
def test_the_switch_that_never_did_anything_still_does_nothing(value: Any) -> None:
    plain = {"prompt": "Hi"}
    switched = request_of({**plain, "use_openai_format": value}, "served")
    assert switched == request_of(plain, "served")


def test_older_keys_are_taken_but_not_told_to_anyone() -> None:
    message = refusal({"prompt": "Hi", "temperature": 0})
    assert "sampling_params" in message
    assert "batch_size" not in message
    assert "use_openai_format" not in message


def test_a_plain_job_may_name_its_model() -> None:
    request = request_of({"prompt": "Hi", "model": "adapter"}, "served")
    assert request.body["model"] == "adapter"


def test_the_jobs_own_objects_are_not_changed() -> None:
    job_input = {"openai_input": {"prompt": "Hi"}, "openai_route": "/v1/completions"}
    before = json.dumps(job_input)
    request_of(job_input, "served")
    assert json.dumps(job_input) == before


@pytest.mark.parametrize("job_input", [None, {}, [], "Hi", 7, {"message": "Hi"}])
def test_an_input_of_no_known_shape_is_refused_with_the_shapes(job_input: Any) -> None:
    assert jobs.SHAPES in refusal(job_input)


def test_a_refusal_names_the_keys_that_were_given() -> None:
    assert refusal({"message": "Hi", "b": 1}).startswith("The input has the keys b, message; ")


def test_a_refusal_stays_short_whatever_was_given() -> None:
    message = refusal({f"{number:03}{'x' * 500}": 1 for number in range(100)})
    assert len(message) < 1000
    assert ", …" in message


@pytest.mark.parametrize(
    ("job_input", "unknown"),
    [
        ({"openai_input": {"prompt": "Hi"}, "prompt": "Hi"}, "prompt"),
        ({"route": "/x", "body": {}, "headers": {}}, "headers"),
        ({"prompt": "Hi", "temperature": 0}, "temperature"),
        ({"messages": MESSAGES, "max_tokens": 3}, "max_tokens"),
    ],
)
def test_a_key_that_would_be_dropped_is_refused_instead(job_input: Any, unknown: str) -> None:
    assert f"unknown keys {unknown} beside" in refusal(job_input)


def test_a_sampling_parameter_out_of_place_is_told_its_place() -> None:
    assert "inside sampling_params" in refusal({"prompt": "Hi", "temperature": 0})
    assert "inside sampling_params" not in refusal({"route": "/x", "temperature": 0})


@pytest.mark.parametrize(
    "job_input",
    [{"route": None}, {"route": 7}, {"openai_route": 7}, {"route": "/x", "method": 7}],
)
def test_a_route_or_method_that_is_no_text_is_refused(job_input: Any) -> None:
    assert refusal(job_input) == "The route and the method of a job are texts."


def test_sampling_parameters_that_are_no_object_are_refused() -> None:
    assert "sampling_params" in refusal({"prompt": "Hi", "sampling_params": [1]})


@pytest.mark.parametrize(
    ("body", "streams"),
    [
        ({"stream": True}, True),
        ({"stream": False}, False),
        ({"stream": "true"}, False),
        ({}, False),
        (None, False),
        ([{"stream": True}], False),
    ],
)
def test_only_a_body_that_asks_for_a_stream_streams(body: Any, *, streams: bool) -> None:
    assert Request("POST", "/x", body).streams is streams


@pytest.mark.parametrize(
    ("body", "output"),
    [
        (b'{"a": [1, null]}', {"a": [1, None]}),
        (b"", {}),
        (b"plain text", "plain text"),
        ("é — 日本".encode(), "é — 日本"),
        (b"# HELP x\nx 1.0\n", "# HELP x\nx 1.0\n"),
        (b"\xff", "�"),
        (b"7", 7),
    ],
)
def test_a_body_becomes_json_or_else_text(body: bytes, output: Any) -> None:
    assert jobs.parsed(body) == output
