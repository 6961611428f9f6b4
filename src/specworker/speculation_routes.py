"""The routes of `/speculation`: what speculation does, and a K that can change."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import from_json

from specworker import overview
from specworker.adaptation import Adaptation
from specworker.errors import RequestError
from specworker.live import Live, Setup

if TYPE_CHECKING:
    from collections.abc import Mapping

PATH = "/speculation"


class Change(BaseModel):
    """K, the tokens drafted a step, from now on: 0 drafts none."""

    model_config = ConfigDict(extra="forbid")

    num_speculative_tokens: Annotated[int, Field(strict=True, ge=0)]
    adaptive: Literal[False] = False


class Adapting(BaseModel):
    """K adapts from now on, up to the one given, or to the engine's largest."""

    model_config = ConfigDict(extra="forbid")

    num_speculative_tokens: Annotated[int, Field(strict=True, ge=1)] | SkipJsonSchema[None] = None
    adaptive: Literal[True]


class Changed(BaseModel):
    """What came of it."""

    num_speculative_tokens: int = Field(description="K, or the largest K where it adapts.")
    adaptive: bool
    previous: int = Field(description="What K was.")
    max_num_speculative_tokens: int
    takes_effect: str = "at the next step"


class Wanted(NamedTuple):
    """What a body asks for: K, or the largest K of one that adapts."""

    tokens: int
    adaptive: bool


class ErrorObject(BaseModel):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorAnswer(BaseModel):
    """The body of every error."""

    error: ErrorObject


class Steerable(Protocol):
    """An engine whose K can change."""

    async def set_tokens(self, tokens: int) -> int:
        """Set K. Returns what it was."""

    async def adapt(self, most: int) -> int:
        """Have K adapt up to `most`. Returns what it was."""

    async def adapting(self) -> "Mapping[str, Any] | None":
        """What is known of a K that adapts; None where it does not."""


def router(live: Live, engine: Steerable) -> APIRouter:
    """The routes for one engine, whose figures are in `live`."""
    routes = APIRouter(tags=["speculation"])
    one_at_a_time = asyncio.Lock()

    @routes.get(PATH, summary="What speculation does, and whether it pays.")
    async def show() -> overview.Overview:
        return overview.of(live)

    @routes.patch(
        PATH,
        summary="Change K, the tokens drafted a step, while the engine runs, or have it adapt.",
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
            asked = wanted(await request.body(), live.setup)
        except RequestError as error:
            return JSONResponse(error.body(), error.status)
        async with one_at_a_time:
            if asked.adaptive:
                previous = await engine.adapt(asked.tokens)
                live.adapt(asked.tokens)
                if state := await engine.adapting():
                    live.hear(Adaptation.told(state))
            else:
                previous = await engine.set_tokens(asked.tokens)
                live.change(asked.tokens)
        return Changed(
            num_speculative_tokens=asked.tokens,
            adaptive=asked.adaptive,
            previous=previous,
            max_num_speculative_tokens=live.setup.tokens,
        )

    return routes


def wanted(body: bytes, setup: Setup) -> Wanted:
    """What a body asks for.

    Raises:
        RequestError: 409 where K cannot be changed, 422 where there is no such K.
    """
    if reason := "the engine decodes plainly" if setup.method is None else setup.fixed:
        raise RequestError(
            f"K cannot be changed: {reason}.", status=409, kind="ConflictError", param=None
        )
    form = Adapting if _adapts(body) else Change
    if form is Adapting and setup.method == "prediction":
        raise RequestError(
            "K does not adapt with method prediction, which drafts what requests predict.",
            status=409,
            kind="ConflictError",
            param="adaptive",
        )
    try:
        asked = form.model_validate_json(body)
    except ValidationError as invalid:
        raise _refusal(_reason(invalid), setup) from None
    tokens = setup.tokens if asked.num_speculative_tokens is None else asked.num_speculative_tokens
    if tokens > setup.tokens:
        raise _refusal(f"num_speculative_tokens={tokens} is above the largest K", setup)
    return Wanted(tokens, asked.adaptive)


def _adapts(body: bytes) -> bool:
    """Whether a body asks for a K that adapts, whatever else may be wrong with it."""
    try:
        asked = from_json(body)
    except ValueError:
        return False
    return isinstance(asked, dict) and asked.get("adaptive") is True


def _refusal(reason: str, setup: Setup) -> RequestError:
    return RequestError(
        f'{reason}; allowed: {{"num_speculative_tokens": K}}, K an integer from 0 (off) to '
        f'{setup.tokens}, or {{"adaptive": true}}, with K from 1 on for the largest.',
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
    """The forms of a body, with the largest K of this engine."""
    forms = [Change.model_json_schema(), Adapting.model_json_schema()]
    for form in forms:
        form["properties"]["num_speculative_tokens"]["maximum"] = setup.tokens
    return {"anyOf": forms}
