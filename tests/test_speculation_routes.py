import json
from typing import Any

import pytest
from fastapi import FastAPI

from specworker import asgi, speculation_routes
from specworker.errors import RequestError
from specworker.live import Live, Setup

NGRAM = Setup(method="ngram", tokens=3)


class Scheduler:
    """In the place of the engine's: remembers its K, which adapts to 1."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.most: int | None = None

    async def set_tokens(self, tokens: int) -> int:
        before, self.tokens, self.most = self.tokens, tokens, None
        return before

    async def adapt(self, most: int) -> int:
        before, self.tokens, self.most = self.tokens, 1, most
        return before

    async def adapting(self) -> dict[str, Any] | None:
        if self.most is None:
            return None
        yields, seconds = [[0, 1.0], [1, 1.5]], [[0, 0.01], [1, 0.012]]
        known = {"batch": 2, "yields": yields, "seconds": seconds, "changes": 7, "trials": 0.01}
        return {"most": self.most, "tokens": self.tokens, "reason": "K 0 → 1: it pays"} | known


def application(setup: Setup = NGRAM) -> tuple[FastAPI, Live, Scheduler]:
    app, live, scheduler = FastAPI(), Live(setup), Scheduler(setup.tokens)
    app.include_router(speculation_routes.router(live, scheduler))
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
            "adaptive": False,
            "previous": previous,
            "max_num_speculative_tokens": 3,
            "takes_effect": "at the next step",
        }
        assert live.tokens == scheduler.tokens == tokens
        status, shown = await ask(app, "GET")
        assert (status, shown["num_speculative_tokens"]) == (200, tokens)


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ({"adaptive": True}, 3),
        ({"adaptive": True, "num_speculative_tokens": 2}, 2),
    ],
    ids=str,
)
async def test_k_adapts_until_it_is_set(body: Any, most: int) -> None:
    app, live, scheduler = application()
    status, said = await ask(app, "PATCH", body)
    assert status == 200
    assert said == {
        "num_speculative_tokens": most,
        "adaptive": True,
        "previous": 3,
        "max_num_speculative_tokens": 3,
        "takes_effect": "at the next step",
    }
    assert scheduler.most == most
    shown = (await ask(app, "GET"))[1]
    assert shown["num_speculative_tokens"] == live.tokens == 1
    assert shown["max_num_speculative_tokens"] == 3
    assert shown["adaptive"] == {
        "num_speculative_tokens": 1,
        "max_num_speculative_tokens": most,
        "batch": 2,
        "tokens_per_step": {"0": 1.0, "1": 1.5},
        "milliseconds_per_step": {"0": 10.0, "1": 12.0},
        "changes": 7,
        "share_lost_to_trials": 0.01,
        "reason": "K 0 → 1: it pays",
    }
    status, said = await ask(app, "PATCH", {"num_speculative_tokens": 1, "adaptive": False})
    assert (status, said["previous"], said["adaptive"]) == (200, 1, False)
    assert scheduler.most is None
    shown = (await ask(app, "GET"))[1]
    assert (shown["num_speculative_tokens"], shown["adaptive"]) == (1, None)


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
        ({"adaptive": False}, "num_speculative_tokens: Field required"),
        ({"adaptive": 1, "num_speculative_tokens": 2}, "adaptive: Input should be False"),
        ({"adaptive": True, "num_speculative_tokens": 4}, "=4 is above the largest K"),
        ({"adaptive": True, "num_speculative_tokens": 0}, "greater than or equal to 1"),
        ({"adaptive": True, "num_speculative_tokens": "2"}, "valid integer"),
        ({"adaptive": True, "K": 2}, "K: Extra inputs"),
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
    assert '{"adaptive": true}' in error["message"]
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
    for body in ({"num_speculative_tokens": 1}, {"adaptive": True}):
        status, said = await ask(app, "PATCH", body)
        assert status == said["error"]["code"] == 409
        assert says in said["error"]["message"]
        assert (scheduler.tokens, scheduler.most) == (setup.tokens, None)


async def test_where_only_predictions_draft_k_does_not_adapt() -> None:
    app, _, scheduler = application(Setup(method="prediction", tokens=16))
    status, said = await ask(app, "PATCH", {"adaptive": True})
    assert (status, said["error"]["param"]) == (409, "adaptive")
    assert scheduler.most is None
    status, _ = await ask(app, "PATCH", {"num_speculative_tokens": 2})
    assert (status, scheduler.tokens) == (200, 2)


def test_the_documentation_names_the_routes_their_answers_and_the_largest_k() -> None:
    schema = application()[0].openapi()
    routes = schema["paths"]["/speculation"]
    assert set(routes) == {"get", "patch"}
    assert set(routes["patch"]["responses"]) == {"200", "409", "422"}
    body = routes["patch"]["requestBody"]["content"]["application/json"]["schema"]
    for form, least, needed in zip(
        body["anyOf"], (0, 1), ("num_speculative_tokens", "adaptive"), strict=True
    ):
        wanted = form["properties"]["num_speculative_tokens"]
        assert (wanted["type"], wanted["minimum"], wanted["maximum"]) == ("integer", least, 3)
        assert form["additionalProperties"] is False
        assert form["required"] == [needed]
    answer = routes["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer["$ref"].endswith("/Overview")
    properties = schema["components"]["schemas"]["Overview"]["properties"]
    assert {"verdict", "windows", "recent", "acceptance_rule", "adaptive"} <= set(properties)
