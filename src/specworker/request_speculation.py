"""What a request says about its own speculation, and how vLLM is told. Pure.

`speculation` bounds K for one request; `prediction`, OpenAI's predicted outputs, is the text
that its answer is expected to be. Both reach the scheduler among vLLM's extra arguments, in
the keys of `terms`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from specworker import terms
from specworker.errors import RequestError
from specworker.request_fields import Prediction, Speculation, Tokens
from specworker.unsupported import is_true
from specworker.values import shown

FIELD, PREDICTION = "speculation", "prediction"
CHAT = "/v1/chat/completions"
#: The routes that generate, and under which keys vLLM takes extra arguments in their bodies;
#: empty where it takes none.
EXTRA: Mapping[str, tuple[str, ...]] = {
    CHAT: ("vllm_xargs",),
    "/v1/chat/completions/batch": ("vllm_xargs",),
    "/v1/completions": ("vllm_xargs",),
    "/v1/responses": ("vllm_xargs",),
    "/v1/messages": ("vllm_xargs",),
    "/invocations": ("vllm_xargs",),
    "/cohere/v2/chat": (),
    "/inference/v1/generate": ("sampling_params", "extra_args"),
}
#: What only those bodies hold that may name a field: its name, or a way to write it otherwise,
#: an escape in JSON's text or an encoding with zero bytes.
_SIGNS = (FIELD.encode(), PREDICTION.encode(), terms.TOKENS.encode(), b"\\u", b"\0")

_TOKENS = TypeAdapter[int](Tokens)


class Asked(NamedTuple):
    """What a request asks for.

    Attributes:
        tokens: the most drafted tokens a step, 0 for none; None where it does not say.
        prediction: the text that it predicts; empty for none.
    """

    tokens: int | None = None
    prediction: str = ""


@dataclass(frozen=True)
class RequestSpeculation:
    """What requests may ask of an engine.

    Attributes:
        most: its largest K; 0 where it decodes plainly.
        unbounded: why K cannot be bounded for one request; None where it can.
        unpredicted: why no prediction is taken; None where they are.
    """

    most: int = 0
    unbounded: str | None = None
    unpredicted: str | None = "speculation is off"

    def may_concern(self, content: bytes) -> bool:
        """Whether a body is worth parsing."""
        return any(sign in content for sign in _SIGNS)

    def asked(self, path: str, body: Any) -> Asked:
        """What `body`, a request to `path`, asks for.

        What is nothing of this is left to vLLM, wrong or not.

        Raises:
            RequestError: it cannot be served; `param` is the field.
        """
        if not isinstance(body, dict):
            return Asked()
        tokens = self._tokens(path, body)
        prediction = self._prediction(path, body)
        if prediction and tokens == 0:
            raise _refusal(
                PREDICTION,
                f"the request turns speculation off, and would not draft from it; "
                f"allowed: {PREDICTION}, or speculation off",
            )
        return Asked(tokens, prediction)

    def _tokens(self, path: str, body: Mapping[str, Any]) -> int | None:
        """The K at most that a request asks for, in one way or in both."""
        given = self._by_field(body)
        extra = _extra(path, body)
        name = f"{'.'.join(EXTRA[path])}.{terms.TOKENS}"
        if not EXTRA[path] or EXTRA[path][0] != "vllm_xargs":
            _refuse_elsewhere(path, body)
        if terms.PREDICTION in extra:
            raise _refusal(
                f"{'.'.join(EXTRA[path])}.{terms.PREDICTION}",
                f"is the worker's own; allowed: the field {PREDICTION} of {CHAT}",
            )
        if terms.TOKENS not in extra:
            tokens = given
        else:
            try:
                tokens = _TOKENS.validate_python(extra[terms.TOKENS])
            except ValidationError as invalid:
                raise _refusal(name, f"{_reason(invalid)}; allowed: {self._range}") from None
            if given not in (None, tokens):
                raise _refusal(
                    FIELD, f"says K={given}, and {name} says {tokens}; allowed: one of the two"
                )
            self._check(name, "", tokens)
        if tokens is None or not self.most:
            return None
        if not EXTRA[path]:
            raise _refusal(
                FIELD,
                f"{path} hands nothing on to the engine; allowed: another route, such as {CHAT}",
            )
        if self.unbounded:
            raise _refusal(FIELD, f"K cannot be bounded for one request: {self.unbounded}")
        return tokens

    def _by_field(self, body: Mapping[str, Any]) -> int | None:
        """The K at most that the field `speculation` says."""
        if body.get(FIELD) is None:
            return None
        forms = f'{{"enabled": false}} or {{"{terms.TOKENS}": K}}, K {self._range}'
        try:
            field = Speculation.model_validate(body[FIELD])
        except ValidationError as invalid:
            raise _refusal(FIELD, f"{_reason(invalid)}; allowed: {forms}") from None
        tokens = field.num_speculative_tokens
        if field.enabled is not None and tokens is not None and field.enabled == (not tokens):
            raise _refusal(
                FIELD,
                f"enabled and {terms.TOKENS}={tokens} contradict each other; allowed: {forms}",
            )
        if field.enabled is False:
            return 0
        if field.enabled and not self.most:
            raise _refusal(FIELD, f"speculation is off in this worker; allowed: {forms}")
        if tokens is not None:
            self._check(FIELD, f"{terms.TOKENS}=", tokens)
        return tokens

    def _check(self, name: str, key: str, tokens: int) -> None:
        """Refuse a K that the engine does not have."""
        if tokens > self.most:
            why = "the largest K" if self.most else "0, and speculation is off in this worker"
            raise _refusal(name, f"{key}{tokens} is above {why}; allowed: {self._range}")

    @property
    def _range(self) -> str:
        return f"an integer from 0 (off) to {self.most}" if self.most else "0"

    def _prediction(self, path: str, body: Mapping[str, Any]) -> str:
        """The text that a request predicts; empty for none."""
        if body.get(PREDICTION) is None:
            return ""
        if path != CHAT:
            raise _refusal(PREDICTION, f"{path} does not take it; allowed: {CHAT}")
        if self.unpredicted:
            raise _refusal(
                PREDICTION,
                f"this worker takes none: {self.unpredicted}; allowed: a request without it",
            )
        try:
            text = Prediction.model_validate(body[PREDICTION]).text
        except ValidationError as invalid:
            raise _refusal(
                PREDICTION,
                f'{_reason(invalid)}; allowed: {{"type": "content", "content": TEXT}}, or a list '
                'of {"type": "text", "text": TEXT} as content',
            ) from None
        if text and is_true(body.get("use_beam_search")):
            raise _refusal(
                PREDICTION,
                "beam search drafts nothing; allowed: a request without it, or without "
                "use_beam_search",
            )
        return text


def concerns(body: Any) -> bool:
    """Whether a body has a field that vLLM does not know."""
    return isinstance(body, dict) and (FIELD in body or PREDICTION in body)


def sent(
    path: str, body: Mapping[str, Any], tokens: int | None, prediction: Sequence[int]
) -> dict[str, Any]:
    """What vLLM is sent in place of `body`, a request to `path`.

    Args:
        path: the route.
        body: a body that `RequestSpeculation.asked` has understood.
        tokens: the most drafted tokens a step; None where that is not bounded.
        prediction: token ids of the predicted text.
    """
    told = {name: value for name, value in body.items() if name not in (FIELD, PREDICTION)}
    own: dict[str, Any] = {} if tokens is None else {terms.TOKENS: tokens}
    if prediction:
        own[terms.PREDICTION] = [*prediction]
    return _with(told, EXTRA[path], own) if own else told


def _with(body: Mapping[str, Any], keys: Sequence[str], own: Mapping[str, Any]) -> dict[str, Any]:
    """`body` with `own` in the object under `keys`. What vLLM refuses there stays as it is."""
    if not keys:
        return {**body, **own}
    inner = body.get(keys[0])
    if inner is None and len(keys) == 1:
        inner = {}
    if not isinstance(inner, dict):
        return {**body}
    return {**body, keys[0]: _with(inner, keys[1:], own)}


def _extra(path: str, body: Any) -> Mapping[str, Any]:
    """The extra arguments of a request; empty where it has none, or they are no object."""
    for key in EXTRA[path]:
        body = body.get(key) if isinstance(body, dict) else None
    return body if EXTRA[path] and isinstance(body, dict) else {}


def _refuse_elsewhere(path: str, body: Mapping[str, Any]) -> None:
    """Refuse extra arguments where vLLM would not read them."""
    given = body.get("vllm_xargs")
    found = {terms.TOKENS, terms.PREDICTION} & {*given} if isinstance(given, dict) else ()
    for name in found:
        place = ".".join(EXTRA[path])
        raise _refusal(
            f"vllm_xargs.{name}",
            f"{path} does not read it; allowed: {f'{place}.{name}' if place else 'another route'}",
        )


def _refusal(param: str, why: str) -> RequestError:
    return RequestError(f"{param}: {why}.", param=param)


def _reason(invalid: ValidationError) -> str:
    """What is wrong with a field, in a clause."""
    first = invalid.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return shown(f"{place}: {first['msg']}" if place else first["msg"], 200)
