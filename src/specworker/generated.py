"""The files of the repository that are made of the declarations, and whether they are current."""

import json
import sys
from pathlib import Path

from specworker import hub_listing, reference


def files() -> dict[str, str]:
    """Their content, by path in the repository."""
    return {
        ".runpod/hub.json": json.dumps(hub_listing.listing(), indent=2, ensure_ascii=False) + "\n",
        "docs/configuration.md": reference.text(),
    }


def run(root: Path, *, check: bool) -> int:
    """Write the files of the repository at `root`, or only look at them.

    Returns:
        The exit status: 1 where a file that is only looked at differs, 2 where `root` is no
        such repository.
    """
    if not (root / "handler.py").is_file():
        sys.stderr.write(f"{root}: is not the worker's repository; run this in its root\n")
        return 2
    status = 0
    for name, content in files().items():
        path = root / name
        if path.is_file() and path.read_text() == content:
            continue
        if check:
            sys.stderr.write(f"{name}: differs from the declarations; run it without --check\n")
            status = 1
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        sys.stderr.write(f"{name}: written\n")
    return status
