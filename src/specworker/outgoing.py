"""What may leave the worker: values that JSON can carry, and errors that give nothing away."""

import json
import math
import re
from typing import Any

_SECRET = re.compile(r"\b(hf|rpa|sk)[_-][A-Za-z0-9_-]{6,}")
_PATH = re.compile(r"(?<![\w:/.])~?(/[\w.@+-]+){2,}/?")


def public(text: str) -> str:
    """An error's text without places in the file system and without tokens."""
    return _PATH.sub("<path>", _SECRET.sub("<secret>", text))


def encodable(value: Any) -> tuple[Any, int]:
    """A value that the SDK can send, and its size in bytes as JSON.

    What JSON cannot carry is replaced: a number that is none by null, half a character
    by a question mark, anything else by its text.
    """
    try:
        return value, len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError):
        cleaned = _cleaned(value)
        return cleaned, len(json.dumps(cleaned, ensure_ascii=False).encode())


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(_cleaned(key)): _cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_cleaned(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    return value if isinstance(value, bool | int | float | None) else _cleaned(str(value))
