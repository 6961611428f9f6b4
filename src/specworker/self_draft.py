"""The draft of method self: made of the target's own files once, and kept."""

import hashlib
import json
import logging
import shutil
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from specworker import demo_model, layer_cut, snapshot, volume
from specworker.errors import ConfigurationError

logger = logging.getLogger(__name__)

#: The start of the name of a folder in which a draft is being made.
UNFINISHED = "unfinished-"
#: Seconds after which such a folder is one that a killed process left.
ABANDONED = 24 * 3600
#: Bytes that stay free beside a draft.
MARGIN = 256 * 1024**2
#: Bytes of a GiB.
GIB = 1024**3
#: Changes with what `layer_cut` writes, so that what an older version wrote is not used.
FORMAT = 1


def add(args: Namespace, layers: Sequence[int], homes: Sequence[Path]) -> None:
    """Have vLLM, whose own options `args` are, draft with `layers` of the model that it serves.

    Does nothing where they say otherwise how to draft.

    Raises:
        ConfigurationError: no such draft can be made.
    """
    config = args.speculative_config or {}
    if config.get("method") != "draft_model" or "model" in config:
        return
    target = Path(args.model)
    if not target.is_dir():
        raise ConfigurationError(
            [
                f"SPECULATIVE_METHOD=self: the files of {args.model} are not here before vLLM "
                "loads it; allowed: a folder, or a hub id without DOWNLOAD_DIR and "
                "VLLM_USE_MODELSCOPE"
            ]
        )
    if isinstance(args.hf_overrides, dict) and args.hf_overrides:
        logger.warning(
            "HF_OVERRIDES: no effect on the draft of method self, vLLM applies them to the target"
        )
    own = {"quantization": args.quantization} if args.quantization else {}
    args.speculative_config = {
        **own,  # where the target is quantized as it is loaded, so is its draft
        **config,
        "model": str(build(target, layers, homes)),
    }


def homes(environment: Mapping[str, str]) -> list[Path]:
    """Where drafts are kept, the place to be preferred first: a volume outlives a worker."""
    mounted = volume.of(environment)
    caches = [mounted / "specworker"] if mounted and mounted.is_dir() else []
    return [*caches, demo_model.folder().parent]


def build(target: Path, layers: Sequence[int], homes: Sequence[Path]) -> Path:
    """The folder of a draft that keeps `layers` of the model in `target`.

    It is one of `homes`: where it is already, else the first with room.

    Raises:
        ConfigurationError: no draft can be made of these files, or there is no room for it.
    """
    try:
        name = _name(target, layers)
        for home in homes:
            if (home / name).is_dir() and not snapshot.lacks(home / name):
                return home / name
        size = sum(part.size for part in layer_cut.parts(target, layers))
        home = _roomy(homes, size)
        _remove_abandoned(home)
        logger.info("making the draft of method self in %s, once: %.1f GiB", home, size / GIB)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=home) as work:
            written = layer_cut.cut(target, layers, Path(work) / name)
            _move(written, home / name)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            [
                f"SPECULATIVE_METHOD=self: no draft can be made of {target}: {error}; "
                "allowed: another method, or a llama-like model in safetensors"
            ]
        ) from error
    return home / name


def _name(target: Path, layers: Sequence[int]) -> str:
    """A name for a draft that changes with the target's files and with the layers.

    In a hub cache the commit is the identity; elsewhere files may be replaced in place.
    """
    folder = target.resolve()
    if folder.parent.name == "snapshots":
        model, identity = folder.parent.parent.name.lower(), folder.name
    else:
        files = ((file.name, file.stat()) for file in sorted(folder.iterdir()) if file.is_file())
        stats = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]
        model, identity = folder.name, json.dumps([str(folder), stats])
    code = hashlib.sha256(json.dumps([FORMAT, model, identity, list(layers)]).encode()).hexdigest()
    return f"{model.removeprefix('models--')}-{len(layers)}-layers-{code[:12]}"


def _roomy(homes: Sequence[Path], size: int) -> Path:
    """The first of `homes` that takes `size` bytes."""
    needed, found = size + MARGIN, []
    for home in homes:
        try:
            free = volume.free_after_writing(home)
        except OSError as error:
            found.append(f"{home} cannot be written to ({error.strerror or error})")
            continue
        if free >= needed:
            return home
        found.append(f"{home} has {free / GIB:.1f} GiB free")
    raise ConfigurationError(
        [
            f"SPECULATIVE_METHOD=self: the draft needs {needed / GIB:.1f} GiB of disk "
            f"({'; '.join(found)}); allowed: fewer layers in SPECULATIVE_SELF_LAYERS, or more room"
        ]
    )


def _remove_abandoned(home: Path) -> None:
    for folder in home.glob(f"{UNFINISHED}*"):
        if time.time() - folder.stat().st_mtime > ABANDONED:
            shutil.rmtree(folder, ignore_errors=True)


def _move(written: Path, target: Path) -> None:
    """Put a finished draft in its place, which another process may have done meanwhile."""
    if target.is_dir() and snapshot.lacks(target):
        shutil.rmtree(target)
    try:
        written.rename(target)
    except OSError:
        if not target.is_dir():
            raise
