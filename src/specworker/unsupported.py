"""Fields of a request that vLLM refuses while it speculates: `min_p` and `logit_bias`.

Clients send them by habit. SPECULATIVE_UNSUPPORTED says what becomes of them. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from specworker.errors import RequestError

#: The routes that generate, and the key under which their bodies hold sampling parameters;
#: None where these stand in the body itself.
ROUTES: Mapping[str, str | None] = {
    "/v1/chat/completions": None,
    "/v1/chat/completions/batch": None,
    "/v1/completions": None,
    "/v1/responses": None,
    "/v1/messages": None,
    "/cohere/v2/chat": None,
    "/invocations": None,
    "/inference/v1/generate": "sampling_params",
}
#: The routes that take `use_beam_search`, under which vLLM reads neither field.
BEAM_ROUTES = ("/v1/chat/completions", "/v1/completions", "/invocations")
FIELDS = ("min_p", "logit_bias")
#: Up to here vLLM takes a min_p for none.
NO_MIN_P = 1e-5

WHY = "vLLM 0.32.0 does not serve it while speculation is on"

_NUMBER = TypeAdapter(float)
_TRUTH = TypeAdapter(bool)


@dataclass(frozen=True)
class Unsupported:
    """What becomes of such fields, and what a request means that leaves them out.

    Attributes:
        drops: whether a request is served without them, in place of being refused.
        min_p: the model's default, as its `generation_config.json` has it.
        temperature: likewise.
    """

    drops: bool = False
    min_p: float = 0.0
    temperature: float = 1.0

    @classmethod
    def of(cls, defaults: Mapping[str, Any], *, drops: bool) -> "Unsupported":
        """The same for a model with these default sampling parameters."""
        known = {name: defaults[name] for name in ("min_p", "temperature") if name in defaults}
        return cls(drops, **known)

    @property
    def default_is_refused(self) -> bool:
        """Whether the model's own default is what vLLM refuses."""
        return self.min_p > NO_MIN_P

    @property
    def note(self) -> str | None:
        """What to tell at start about the model's own default."""
        if not self.default_is_refused:
            return None
        head = f"min_p={self.min_p}, the default of generation_config.json: {WHY}; "
        if self.drops:
            return head + "left out (SPECULATIVE_UNSUPPORTED=drop)"
        return head + (
            "requests with temperature above 0 that do not send min_p 0 are refused; set "
            'SPECULATIVE_UNSUPPORTED=drop or OVERRIDE_GENERATION_CONFIG={"min_p": 0}, or turn '
            "speculation off"
        )

    def may_concern(self, content: bytes) -> bool:
        """Whether a body is worth parsing."""
        return self.default_is_refused or any(name.encode() in content for name in FIELDS)

    def fields(self, path: str, body: Any) -> tuple[str, ...]:
        """The fields for which vLLM would refuse `body`, a request to `path`.

        What vLLM refuses for another reason, such as a min_p above 1, is left to it.
        """
        asked = _parameters(path, body)
        if asked is None or (path in BEAM_ROUTES and is_true(asked.get("use_beam_search"))):
            return ()
        bias = asked.get("logit_bias") or {}
        if ROUTES[path] is None:
            min_p = _number(asked.get("min_p"), self.min_p)
            temperature = _number(asked.get("temperature"), self.temperature)
        else:  # vLLM's own class of parameters, to which it does not apply the model's defaults
            min_p = _number(asked.get("min_p", 0.0))
            temperature = _number(asked.get("temperature", 1.0))
        if not isinstance(bias, dict):
            return ()
        refused = {
            "min_p": NO_MIN_P < min_p <= 1 and 0 < temperature <= 2,
            "logit_bias": bool(bias),
        }
        return tuple(name for name in FIELDS if refused[name])

    def refusal(self, path: str, body: Any, fields: tuple[str, ...]) -> RequestError:
        """The error for a request that asks for `fields`."""
        asked = _parameters(path, body) or {}
        way = "leave it out of the request"
        if asked.get(fields[0]) is None:
            way = f"the model's own default is {self.min_p}: send min_p 0, or temperature 0"
        message = (
            f"{', '.join(fields)}: {WHY}; {way}, or let the worker's operator set "
            "SPECULATIVE_UNSUPPORTED=drop or turn speculation off."
        )
        return RequestError(message, param=fields[0])


def without(path: str, body: Any, fields: Iterable[str]) -> dict[str, Any]:
    """`body`, a request to `path`, without `fields`."""
    asked = _parameters(path, body) or {}
    kept = {name: value for name, value in asked.items() if name not in fields}
    key = ROUTES[path]
    return kept if key is None else {**body, key: kept}


def notes(fields: Iterable[str]) -> list[str]:
    """What an answer says about fields that were left out of its request."""
    return [f"{name}: left out, {WHY} (SPECULATIVE_UNSUPPORTED=drop)" for name in fields]


def _parameters(path: str, body: Any) -> Mapping[str, Any] | None:
    key = ROUTES[path]
    asked = body.get(key) if key is not None and isinstance(body, dict) else body
    return asked if isinstance(asked, dict) else None


def _number(value: Any, default: float | None = None) -> float:
    """A number as vLLM takes it, which may be text; NaN for what it does not take."""
    try:
        return _NUMBER.validate_python(default if value is None else value)
    except ValidationError:
        return float("nan")


def is_true(value: Any) -> bool:
    """Whether vLLM takes a value for true."""
    try:
        return _TRUTH.validate_python(value)
    except ValidationError:
        return False
