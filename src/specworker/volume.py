"""Caches on the platform's volume, which may be absent, read-only or full."""

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path

from specworker.values import is_unset, text_of

logger = logging.getLogger(__name__)

SERVERLESS = Path("/runpod-volume")
POD = Path("/workspace")
#: Bytes that must be free where a cache is placed.
ROOM = 1024**3
#: Where models are cached; a user who sets one of these has placed them.
HUB_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
#: Where vLLM keeps what it compiles.
VLLM_VARIABLE = "VLLM_CACHE_ROOT"

#: The free bytes of a folder, which is made and written to. OSError: it cannot be.
Probe = Callable[[Path], int]


def place(environment: MutableMapping[str, str]) -> None:
    """Put the caches on the volume where they fit. For before the hub's client is imported."""
    for name in (*HUB_VARIABLES, VLLM_VARIABLE):
        if is_unset(environment.get(name, "")):  # else a folder of that name would be made
            environment.pop(name, None)
    variables, notes = placement(environment, of(environment), free_after_writing)
    environment.update(variables)
    for note in notes:
        logger.info("%s", note)


def of(environment: Mapping[str, str]) -> Path | None:
    """Where the platform mounts a volume, if one is attached; None off the platform."""
    if base := text_of(environment, "BASE_PATH"):
        return Path(base)
    serverless = ("RUNPOD_WEBHOOK_GET_JOB", "RUNPOD_ENDPOINT_ID")
    if any(text_of(environment, name) for name in serverless):
        return SERVERLESS
    return POD if text_of(environment, "RUNPOD_POD_ID") else None


def hub(volume: Path) -> Path:
    """The cache of models on a volume, where the platform looks for it and fills it."""
    return volume / "huggingface-cache" / "hub"


def placement(
    environment: Mapping[str, str], volume: Path | None, probe: Probe
) -> tuple[dict[str, str], list[str]]:
    """The variables that put the caches on `volume`, and why others are left alone."""
    if volume is None:
        return {}, []
    try:
        volume.stat()
    except OSError as error:
        reason = f"no volume at {volume} ({error.strerror})"
        return {}, [f"{reason}: models and what vLLM compiles are cached in the container"]
    models, compiled = hub(volume), volume / "vllm-cache"
    places = {
        models: dict(zip(HUB_VARIABLES, (models.parent, models, models), strict=True)),
        compiled: {VLLM_VARIABLE: compiled},
    }
    variables: dict[str, str] = {}
    notes = []
    for folder, wanted in places.items():
        if any(text_of(environment, name) for name in wanted):
            continue
        if reason := _unfit(folder, probe):
            notes.append(f"{', '.join(wanted)}: not placed on the volume, {folder} {reason}")
        else:
            variables |= {name: str(value) for name, value in wanted.items()}
    return variables, notes


def free_after_writing(folder: Path) -> int:
    """The free bytes of `folder`, which is made if need be.

    Raises:
        OSError: nothing can be written there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())  # a network volume says no only now
    return shutil.disk_usage(folder).free


def _unfit(folder: Path, probe: Probe) -> str:
    """Why no cache can be placed in `folder`; empty where one can."""
    try:
        free = probe(folder)
    except OSError as error:
        return f"cannot be written to ({error.strerror or error})"
    if free < ROOM:
        return f"has {free / 1024**3:.1f} GiB free of the {ROOM // 1024**3} GiB that it needs"
    return ""
