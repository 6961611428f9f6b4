"""A snapshot of a hub repository: which one is meant, and whether it is whole."""

import re
from collections import Counter
from collections.abc import Set
from pathlib import Path

from specworker.values import parse_json_object

#: Endings of weight files, in vLLM's order: it loads the first kind that is there.
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
#: Files that end like weights, and that a trainer left.
_NO_WEIGHTS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
_SHARD = re.compile(r"(.+)-\d+-of-(\d+)\.\w+")
_TOKENIZER = re.compile(r"token|vocab|tekken|spiece|sentencepiece", re.I)


def of(repository: Path, revision: str | None) -> Path | None:
    """The folder of `revision` in a hub cache's `repository`; None where it is not there.

    Where no revision is asked for and nothing says which snapshot the main branch is, the
    newest one serves.
    """
    snapshots = repository / "snapshots"
    wanted = f"{revision or 'main'}"
    reference = repository / "refs" / wanted
    commit = reference.read_text().strip() if reference.is_file() else wanted
    if commit and (snapshots / commit).is_dir():
        return snapshots / commit
    if revision is not None:
        return None
    complete = [file.parent for file in snapshots.glob("*/config.json") if file.is_file()]
    return max(complete, key=lambda folder: folder.stat().st_mtime, default=None)


def lacks(folder: Path, *, with_tokenizer: bool = False) -> str:
    """What the snapshot in `folder` lacks to be loaded; empty where it is whole.

    Raises:
        OSError, ValueError: a file cannot be read.
    """
    names = {file.name for file in folder.iterdir()}
    if not _is_there(folder / "config.json"):
        return "no config.json"
    if lacking := _lacking_weights(folder, names):
        return lacking
    if with_tokenizer and not any(map(_TOKENIZER.search, names)):
        return "no tokenizer"
    return ""


def _lacking_weights(folder: Path, names: Set[str]) -> str:
    for kind in WEIGHTS:
        files = {name for name in names if name.endswith(kind) and name not in _NO_WEIGHTS}
        indices = [name for name in names if name.endswith(f"{kind}.index.json")]
        listed = {name for index in indices for name in _listed(folder / index)}
        if absent := [name for name in files | listed if not _is_there(folder / name)]:
            return f"no weights in {min(absent)}"
        if listed:
            return ""
        if files:
            return _lacking_shards(files)
    return "no weights"


def _lacking_shards(files: Set[str]) -> str:
    """What the names say of files that nobody lists, as a download leaves that was cut off."""
    shards = Counter(shard.groups() for shard in map(_SHARD.fullmatch, files) if shard)
    for (name, total), count in sorted(shards.items()):
        if count < int(total):
            return f"{count} of {total} files of weights {name}"
    return ""


def _listed(index: Path) -> set[str]:
    """The files that an index of weights names."""
    weights = parse_json_object(index.read_text()).get("weight_map")
    return set(map(str, weights.values())) if isinstance(weights, dict) else set()


def _is_there(file: Path) -> bool:
    """Whether a file holds anything; a link whose end is gone does not."""
    return file.is_file() and file.stat().st_size > 0
