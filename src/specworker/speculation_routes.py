"""The routes of `/speculation`: what speculation does, and a K that can change."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specworker import overview
from specworker.errors import RequestError
from specworker.live import Live, Setup

PATH = "/speculation"


class Change(BaseModel):
    """K, the tokens drafted a step: 0 drafts none."""

    model_config = ConfigDict(extra="forbid")

    num_speculative_tokens: Annotated[int, Field(strict=True, ge=0)]


class Changed(BaseModel):
    """What came of it."""

    num_speculative_tokens: int
    previous: int
    max_num_speculative_tokens: int
    takes_effect: str = "at the next step"


class ErrorObject(BaseModel):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorAnswer(BaseModel):
    """The body of every error."""

    error: ErrorObject


def router(live: Live, set_tokens: Callable[[int], Awaitable[int]]) -> APIRouter:
    """The routes for one engine.

    Args:
        live: its figures.
        set_tokens: sets K in the engine and returns what it was.
    """
    routes = APIRouter(tags=["speculation"])
    one_at_a_time = asyncio.Lock()

    @routes.get(PATH, summary="What speculation does, and whether it pays.")
    async def show() -> overview.Overview:
        return overview.of(live)

    @routes.patch(
        PATH,
        summary="Change K, the tokens drafted a step, while the engine runs.",
        response_model=Changed,
        responses={
            409: {"model": ErrorAnswer, "description": "K of this engine cannot be changed."},
            422: {"model": ErrorAnswer, "description": "No such K."},
        },
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": _schema(live.setup)}},
            }
        },
    )
    async def change(request: Request) -> Any:
        try:
            tokens = wanted(await request.body(), live.setup)
        except RequestError as error:
            return JSONResponse(error.body(), error.status)
        async with one_at_a_time:
            previous = await set_tokens(tokens)
            live.change(tokens)
        return Changed(
            num_speculative_tokens=tokens,
            previous=previous,
            max_num_speculative_tokens=live.setup.tokens,
        )

    return routes


def wanted(body: bytes, setup: Setup) -> int:
    """The K that a body asks for.

    Raises:
        RequestError: 409 where K cannot be changed, 422 where there is no such K.
    """
    if reason := "the engine decodes plainly" if setup.method is None else setup.fixed:
        raise RequestError(
            f"K cannot be changed: {reason}.", status=409, kind="ConflictError", param=None
        )
    try:
        tokens = Change.model_validate_json(body).num_speculative_tokens
    except ValidationError as invalid:
        raise _refusal(_reason(invalid), setup) from None
    if tokens > setup.tokens:
        raise _refusal(f"num_speculative_tokens={tokens} is above the largest K", setup)
    return tokens


def _refusal(reason: str, setup: Setup) -> RequestError:
    return RequestError(
        f'{reason}; allowed: {{"num_speculative_tokens": K}}, K an integer from 0 (off) to '
        f"{setup.tokens}.",
        status=422,
        kind="UnprocessableEntityError",
        param="num_speculative_tokens",
    )


def _reason(invalid: ValidationError) -> str:
    """What is wrong with a body, in a clause."""
    first = invalid.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else f"The body: {first['msg']}"


def _schema(setup: Setup) -> dict[str, Any]:
    """The form of a body, with the largest K of this engine."""
    schema = Change.model_json_schema()
    schema["properties"]["num_speculative_tokens"]["maximum"] = setup.tokens
    return schema
