"""The examples in the repository's Markdown: fenced blocks, and the commands in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Example:
    """One fenced block.

    Attributes:
        page: its file, from the root.
        language: what stands behind the fence.
        text: what is in it.
    """

    page: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block, each on one line."""
        joined = self.text.replace("\\\n", " ")
        return [" ".join(line.split()) for line in joined.splitlines() if line.strip()]

    @cached_property
    def variables(self) -> dict[str, str] | None:
        """The variables of a block that is nothing but assignments; None for any other."""
        matches = [_ASSIGNMENT.fullmatch(line) for line in self.text.splitlines() if line.strip()]
        if self.language != "sh" or not all(matches):
            return None
        found = {match[1]: match[2] for match in matches if match}
        return None if any(name for name in found if " .venv/" in found[name]) else found


def examples() -> Iterator[Example]:
    for page in PAGES:
        for language, text in _BLOCK.findall(page.read_text()):
            yield Example(str(page.relative_to(ROOT)), language, text)


def of(language: str) -> list[Example]:
    """The examples of one language, each text once."""
    return list(
        {example.text: example for example in examples() if example.language == language}.values()
    )


def commands() -> list[str]:
    """Every command, once; blocks of assignments have none."""
    found = (
        command for example in of("sh") if example.variables is None for command in example.commands
    )
    return list(dict.fromkeys(found))


def split(command: str) -> tuple[dict[str, str], list[str]]:
    """The variables that a command begins with, and its words."""
    words = shlex.split(command)
    variables = {}
    while words and (match := _ASSIGNMENT.fullmatch(words[0])):
        variables[match[1]] = match[2]
        words.pop(0)
    return variables, words
