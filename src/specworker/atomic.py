"""Files that are there in one piece or not at all."""

import os
from pathlib import Path


def write(path: Path, content: str | bytes) -> Path:
    """Write `content` to `path`, which has what it had before until all of it is on the disk."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path
