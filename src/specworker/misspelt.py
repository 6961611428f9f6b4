"""Variables that look like one of speculation and are none."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches

from specworker.settings import Settings

#: How the names of variables of speculation begin, the misspelt ones too.
BEGINNINGS = ("SPECULATIVE_", "SPEC_DECODING_", "NUM_SPECULATIVE", "NGRAM_", "TYPICAL_")


def notes(environment: Mapping[str, str]) -> list[str]:
    """A note on each of them, with what was probably meant."""
    known = [name.upper() for name in Settings.model_fields]
    return [
        f"{name}: no effect, there is no such variable{hint(name, known)}"
        for name in environment
        if name.startswith(BEGINNINGS) and name not in known
    ]


def hint(name: str, known: Collection[str]) -> str:
    """The end of a message on `name`: which of the `known` names was probably meant."""
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
