"""How a variable of the worker is declared, and what is said where its value is wrong.

A declaration is the one place for what a variable means: errors, the reference and the
form of the Hub listing are made of it.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, JsonValue, SecretStr
from pydantic.fields import FieldInfo

from specworker.values import (
    BOOLEANS,
    ZERO,
    is_unset,
    parse_boolean,
    parse_integer,
    parse_json_object,
    parse_lower,
    shown,
)

Boolean = Annotated[bool, BeforeValidator(parse_boolean)]
Integer = Annotated[int, BeforeValidator(parse_integer)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(parse_json_object)]
CASELESS = BeforeValidator(parse_lower)

Group = Literal["Speculation", "Model", "Worker", "Server", "Legacy", "Platform"]
#: Where the form of the Hub listing shows a variable.
Place = Literal["first", "advanced", "absent"]


def variable(
    default: Any,
    text: str,
    *,
    group: Group,
    place: Place = "advanced",
    label: str | None = None,
    zero_is_unset: bool = False,
    word: str | None = None,
    **bounds: Any,
) -> Any:
    """Declare one variable: default, one line of help, group, and pydantic's bounds.

    Args:
        default: the value where nobody sets it.
        text: what it means.
        group: what it is about.
        place: where the form shows it; it shows only what a queue worker reads.
        label: its name in the form; made of the variable's own where it is not given.
        zero_is_unset: whether a number's zero means unset, as consoles send it.
        word: a value that means something here though it looks like an empty field.
        bounds: pydantic's.
    """
    extra: dict[str, JsonValue] = {
        "group": group,
        "place": place,
        "label": label,
        "zero_is_unset": zero_is_unset,
        "word": word,
    }
    return Field(default, description=text, json_schema_extra=extra, **bounds)


def declared(field: FieldInfo) -> dict[str, JsonValue]:
    """What `variable` was told beside default, text and bounds."""
    assert isinstance(field.json_schema_extra, dict)
    return field.json_schema_extra


def speculative(default: Any, text: str, **bounds: Any) -> Any:
    """Declare a variable of speculation. A number's zero means unset, as consoles send it."""
    return variable(default, text, group="Speculation", zero_is_unset=True, **bounds)


def legacy(default: Any, text: str, **bounds: Any) -> Any:
    """Declare a variable of older workers' output shapes. A number's zero means unset."""
    return variable(default, text, group="Legacy", zero_is_unset=True, **bounds)


def means_unset(text: str, field: FieldInfo) -> bool:
    """Whether a value says nothing, as consoles send it for an empty field."""
    extra = declared(field)
    if text == extra["word"]:
        return False
    if extra["zero_is_unset"] and _is_number(field) and ZERO.fullmatch(text):
        return True
    return is_unset(text)


def kinds(annotation: Any) -> set[Any]:
    """The plain types that a field takes, `None` and annotations taken off."""
    if hasattr(annotation, "__metadata__"):
        return kinds(annotation.__origin__)
    if not get_args(annotation) or getattr(annotation, "__origin__", None) in (Literal, dict):
        return {annotation} - {type(None)}
    return set().union(*(kinds(part) for part in get_args(annotation)))


def _is_number(field: FieldInfo) -> bool:
    return bool(kinds(field.annotation) & {int, float})


def allowed(field: FieldInfo) -> str:
    """What a variable may be, in words."""
    kind = next(iter(kinds(field.annotation)))
    if kind is bool:
        return ", ".join(BOOLEANS)
    if getattr(kind, "__origin__", None) is Literal:
        return ", ".join(get_args(kind))
    if kind in (int, float):
        bounds = [
            f"{word} {getattr(constraint, name)}"
            for constraint in field.metadata
            for name, word in (("ge", "at least"), ("gt", "above"), ("le", "at most"))
            if hasattr(constraint, name)
        ]
        return " ".join(["an integer" if kind is int else "a number", " and ".join(bounds)]).strip()
    return "a JSON object" if getattr(kind, "__origin__", None) is dict else "text"


def problem(name: str, field: FieldInfo, text: str, message: str) -> str:
    """What is wrong with the variable `name`, in a line."""
    value = "(hidden)" if SecretStr in kinds(field.annotation) else shown(text)
    reason = message.removeprefix("Value error, ")
    if not reason.startswith("is "):
        reason = "is not allowed"
    return f"{name.upper()}={value}: {reason}; allowed: {allowed(field)}"
