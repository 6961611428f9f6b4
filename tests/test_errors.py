import json
from typing import Any

import pytest

from specworker.errors import ConfigurationError, RequestError, job_error


def test_a_configuration_error_says_every_problem_on_a_line_of_its_own() -> None:
    error = ConfigurationError(["A=1: wrong", "B=2: wrong too"])
    assert error.problems == ("A=1: wrong", "B=2: wrong too")
    assert str(error) == "A=1: wrong\nB=2: wrong too"


def test_a_request_error_has_the_shape_of_openai() -> None:
    error = RequestError("no such thing", status=404, kind="NotFoundError")
    assert str(error) == "no such thing"
    assert error.body() == {
        "error": {"message": "no such thing", "type": "NotFoundError", "param": None, "code": 404}
    }


def test_a_request_error_names_the_field_that_it_is_about() -> None:
    assert RequestError("no", param="min_p").body()["error"]["param"] == "min_p"


def test_a_request_error_is_a_bad_request_unless_told_otherwise() -> None:
    inner = RequestError("no").body()["error"]
    assert (inner["code"], inner["type"]) == (400, "BadRequestError")


def test_a_failed_job_carries_the_error_object_as_json_text_unchanged() -> None:
    body = {"error": {"message": "don't — “quote”", "type": "T", "param": "p", "code": 404}}
    output = job_error(body, 404)
    assert list(output) == ["error"]
    assert json.loads(output["error"]) == body


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("Not Found", "Not Found"),
        ("  spaces \n", "spaces"),
        ("", "HTTP 503"),
        (" \n", "HTTP 503"),
        ({"detail": "why"}, '{"detail": "why"}'),
        ({"error": "flat text"}, '{"error": "flat text"}'),
        ({"error": None}, '{"error": null}'),
        (["list"], '["list"]'),
        (None, "null"),
        ("x" * 3000, "x" * 2000),
    ],
)
def test_a_body_that_is_no_error_object_is_wrapped_in_one(body: Any, message: str) -> None:
    error = json.loads(job_error(body, 503)["error"])["error"]
    assert error == {
        "message": message,
        "type": "InternalServerError",
        "param": None,
        "code": 503,
    }


def test_a_job_error_can_be_encoded_even_with_a_lone_surrogate() -> None:
    job_error({"error": {"message": "\ud800"}}, 400)["error"].encode()
    job_error("\ud800", 500)["error"].encode()
