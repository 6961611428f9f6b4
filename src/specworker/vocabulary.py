"""Whether two models give the same ids to the same tokens, by their tokenizer files."""

from dataclasses import dataclass
from filecmp import cmp
from pathlib import Path

from specworker.values import parse_json_object

#: Files that hold a vocabulary. The first is whole and can be read, the next two as well.
TOKENIZER, WORDS, ADDED = "tokenizer.json", "vocab.json", "added_tokens.json"
#: Those that can only be compared as they are.
OPAQUE = ("tokenizer.model", "tekken.json", "tiktoken.model", "spiece.model", "vocab.txt")
FILES = (TOKENIZER, WORDS, ADDED, *OPAQUE)
#: Drafts are still worth it where no more than this share of the ids mean other tokens.
TOLERABLE = 0.01


@dataclass(frozen=True)
class Comparison:
    """Two vocabularies side by side.

    Attributes:
        common: how many ids both have; 0 where their files are the same, and were not read.
        shared: how many of them mean the same token in both.
        example: the lowest id that does not, with the token that it means in the first and
            in the second; None where the vocabularies are the same.
    """

    common: int = 0
    shared: int = 0
    example: tuple[int, str, str] | None = None

    @property
    def alike(self) -> bool:
        """Whether no more ids differ than special tokens make, so that drafts are worth it."""
        return self.common - self.shared <= self.common * TOLERABLE


def is_in(folder: Path) -> bool:
    """Whether there are tokenizer files in `folder`."""
    return any((folder / name).is_file() for name in FILES)


def compare(first: Path, second: Path) -> Comparison | None:
    """The vocabularies of the models in two folders; None where nothing can be said.

    Tokens that only one of them has make no difference.
    """
    if _same(TOKENIZER, first, second):
        return Comparison()
    tokens, others = _tokens(first), _tokens(second)
    if ids := tokens.keys() & others.keys():
        differing = [index for index in ids if tokens[index] != others[index]]
        lowest = min(differing, default=None)
        example = None if lowest is None else (lowest, tokens[lowest], others[lowest])
        return Comparison(len(ids), len(ids) - len(differing), example)
    return Comparison() if any(_same(name, first, second) for name in OPAQUE) else None


def _same(name: str, first: Path, second: Path) -> bool:
    """Whether both folders have the file `name`, with the same content."""
    files = (first / name, second / name)
    return all(file.is_file() for file in files) and cmp(*files, shallow=False)


def _tokens(folder: Path) -> dict[int, str]:
    """Token by id; empty where no file of a layout that can be read has them."""
    if (file := folder / TOKENIZER).is_file() and (ids := _ids(file)):
        return {index: token for token, index in ids.items()}
    try:
        words = parse_json_object((folder / WORDS).read_text())
        if (added := folder / ADDED).is_file():
            words |= parse_json_object(added.read_text())
    except (OSError, ValueError):
        return {}
    return {index: token for token, index in words.items() if isinstance(index, int)}


def _ids(tokenizer: Path) -> dict[str, int]:
    from tokenizers import Tokenizer

    try:
        return dict(Tokenizer.from_file(str(tokenizer)).get_vocab(with_added_tokens=True))
    except Exception:  # noqa: BLE001 - the library raises nothing narrower
        return {}
