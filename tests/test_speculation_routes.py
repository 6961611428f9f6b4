import json
from typing import Any

import pytest
from fastapi import FastAPI

from specworker import asgi, speculation_routes
from specworker.errors import RequestError
from specworker.live import Live, Setup

NGRAM = Setup(method="ngram", tokens=3)


class Scheduler:
    """In the place of the engine's: remembers its K."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    async def set(self, tokens: int) -> int:
        before, self.tokens = self.tokens, tokens
        return before


def application(setup: Setup = NGRAM) -> tuple[FastAPI, Live, Scheduler]:
    app, live, scheduler = FastAPI(), Live(setup), Scheduler(setup.tokens)
    app.include_router(speculation_routes.router(live, scheduler.set))
    return app, live, scheduler


async def ask(app: FastAPI, method: str, body: Any = None) -> tuple[int, Any]:
    async with asgi.request(app, method, "/speculation", body) as response:
        return response.status, json.loads(await response.read())


async def test_k_is_set_and_shown() -> None:
    app, live, scheduler = application()
    for tokens, previous in ((2, 3), (0, 2), (3, 0), (3, 3)):
        status, said = await ask(app, "PATCH", {"num_speculative_tokens": tokens})
        assert status == 200
        assert said == {
            "num_speculative_tokens": tokens,
            "previous": previous,
            "max_num_speculative_tokens": 3,
            "takes_effect": "at the next step",
        }
        assert live.tokens == scheduler.tokens == tokens
        status, shown = await ask(app, "GET")
        assert (status, shown["num_speculative_tokens"]) == (200, tokens)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"num_speculative_tokens": 4}, "num_speculative_tokens=4 is above the largest K"),
        ({"num_speculative_tokens": 10**30}, "num_speculative_tokens"),
        ({"num_speculative_tokens": -1}, "greater than or equal to 0"),
        ({"num_speculative_tokens": True}, "valid integer"),
        ({"num_speculative_tokens": 2.0}, "valid integer"),
        ({"num_speculative_tokens": "2"}, "valid integer"),
        ({"num_speculative_tokens": None}, "valid integer"),
        ({"num_speculative_tokens": [2]}, "valid integer"),
        ({"num_speculative_tokens": 2, "K": 2}, "K: Extra inputs"),
        ({"k": 2}, "num_speculative_tokens: Field required"),
        ({}, "Field required"),
        ([2], "The body"),
        (2, "The body"),
        (None, "Invalid JSON"),
    ],
    ids=str,
)
async def test_no_other_k_is_taken_and_the_limits_are_named(body: Any, says: str) -> None:
    app, live, scheduler = application()
    status, said = await ask(app, "PATCH", body)
    error = said["error"]
    assert status == error["code"] == 422
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == "num_speculative_tokens"
    assert says in error["message"]
    assert "K an integer from 0 (off) to 3" in error["message"]
    assert live.tokens == scheduler.tokens == 3


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"num_speculative_tokens": NaN}', b"[" * 5000])
def test_what_is_no_json_is_refused_alike(body: bytes) -> None:
    with pytest.raises(RequestError, match="from 0") as refused:
        speculation_routes.wanted(body, NGRAM)
    assert refused.value.status == 422


@pytest.mark.parametrize(
    ("setup", "says"),
    [
        (Setup(), "the engine decodes plainly"),
        (Setup(method="ngram", tokens=3, fixed="it has another scheduler"), "another scheduler"),
    ],
    ids=["plain", "another scheduler"],
)
async def test_where_k_cannot_be_changed_the_reason_is_given(setup: Setup, says: str) -> None:
    app, _, scheduler = application(setup)
    status, said = await ask(app, "PATCH", {"num_speculative_tokens": 1})
    assert status == said["error"]["code"] == 409
    assert says in said["error"]["message"]
    assert scheduler.tokens == setup.tokens


def test_the_documentation_names_the_routes_their_answers_and_the_largest_k() -> None:
    schema = application()[0].openapi()
    routes = schema["paths"]["/speculation"]
    assert set(routes) == {"get", "patch"}
    assert set(routes["patch"]["responses"]) == {"200", "409", "422"}
    body = routes["patch"]["requestBody"]["content"]["application/json"]["schema"]
    wanted = body["properties"]["num_speculative_tokens"]
    assert (wanted["type"], wanted["minimum"], wanted["maximum"]) == ("integer", 0, 3)
    assert body["additionalProperties"] is False
    answer = routes["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer["$ref"].endswith("/Overview")
    properties = schema["components"]["schemas"]["Overview"]["properties"]
    assert {"verdict", "windows", "recent", "acceptance_rule"} <= set(properties)
