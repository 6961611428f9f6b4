"""How the text of an environment variable becomes a value, and how a value is shown."""

import json
import re
from collections.abc import Mapping
from typing import Any

#: What consoles and templates send for a field that nobody filled in.
UNSET = frozenset({"", "none", "null"})

BOOLEANS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


#: Zero, as a console sends it for a number that nobody filled in.
ZERO = re.compile(r"[+-]?0+(\.0*)?")


def is_unset(value: str) -> bool:
    """Whether a variable's text means that nobody set it."""
    return value.strip().lower() in UNSET


def text_of(environment: Mapping[str, str], name: str) -> str | None:
    """A variable's text; None where nobody set it."""
    text = environment.get(name, "").strip()
    return None if is_unset(text) else text


def parse_boolean(value: Any) -> Any:
    """`true`, `1`, `yes`, `on` or their opposites, in any case; nothing else."""
    if isinstance(value, str):
        try:
            return BOOLEANS[value.strip().lower()]
        except KeyError:
            raise ValueError("is not a boolean") from None
    return value


def plain_integer(value: str) -> str:
    """An integer in exponent form (`1e+06`, as some consoles print it) in plain digits."""
    if re.fullmatch(r"[+-]?\d+(\.\d+)?[eE][+-]?\d+", value) and float(value).is_integer():
        return str(int(float(value)))
    return value


def parse_integer(value: Any) -> Any:
    """An integer in digits or in exponent form."""
    if isinstance(value, str):
        value = plain_integer(value.strip())
        if not re.fullmatch(r"[+-]?\d+", value):
            raise ValueError("is not an integer")
    return value


def parse_lower(value: Any) -> Any:
    """A choice, whose case does not matter."""
    return value.lower() if isinstance(value, str) else value


def parse_json_object(value: Any) -> Any:
    """The JSON object in a string."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"is not valid JSON ({error})") from None
        if not isinstance(value, dict):
            raise ValueError("is JSON, but not an object")
    return value


def shown(text: str, limit: int = 80) -> str:
    """A value as an error may print it: on one line, cut when it is long."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[:limit]}… ({len(text)} characters)"
