"""Hub caches on disk, in the layout of the hub's client."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WHOLE: Mapping[str, str] = {"model.safetensors": "weights", "tokenizer.json": "{}"}


def repository(cache: Path, name: str) -> Path:
    return cache / f"models--{name.replace('/', '--')}"


def snapshot(
    cache: Path,
    name: str,
    commit: str = "c0ffee",
    *,
    files: Mapping[str, str] = WHOLE,
    refs: tuple[str, ...] = ("main",),
    **config: Any,
) -> Path:
    """Write a snapshot of `name`, its files linked to blobs, and the `refs` that mean it."""
    home = repository(cache, name)
    folder = home / "snapshots" / commit
    (home / "blobs").mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True)
    for file, text in {"config.json": json.dumps(config), **files}.items():
        blob = home / "blobs" / f"{commit}-{file}"
        blob.write_text(text)
        (folder / file).symlink_to(Path("../../blobs") / blob.name)
    for ref in refs:
        reference = home / "refs" / ref
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit)
    return folder


def vanish(folder: Path, file: str = "model.safetensors") -> None:
    """Remove what a snapshot's link leads to."""
    (folder / file).resolve().unlink()


def place(cache: Path, name: str, folder: Path, commit: str = "c0ffee") -> Path:
    """Put the model in `folder` into the cache as a snapshot of `name`."""
    home = repository(cache, name)
    target = home / "snapshots" / commit
    target.mkdir(parents=True)
    for file in folder.iterdir():
        (target / file.name).symlink_to(file)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    return target
