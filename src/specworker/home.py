"""A home for who has none, as with `docker run --user 1000`: caches must lie somewhere."""

import logging
import os
import pwd
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

logger = logging.getLogger(__name__)


def place(environment: MutableMapping[str, str]) -> None:
    """Have HOME name a folder that can be written to, and USER whoever this is.

    Libraries put their caches below the one and ask for the other; without a line in
    /etc/passwd there is neither.
    """
    try:
        known = pwd.getpwuid(os.geteuid())
        own, name = known.pw_dir, known.pw_name
    except KeyError:
        own, name = "/", str(os.geteuid())
    home = environment.get("HOME") or own
    if not (Path(home).is_dir() and os.access(home, os.W_OK)):
        environment["HOME"] = str(_made())
        logger.info("%s cannot be written to: HOME is %s", home, environment["HOME"])
    if not (environment.get("USER") or environment.get("LOGNAME")):
        environment["USER"] = name


def _made() -> Path:
    """A folder for this user alone, the same one after a restart."""
    folder = Path(tempfile.gettempdir()) / f"specworker-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid == os.geteuid() and not folder.is_symlink():
        return folder
    return Path(tempfile.mkdtemp(prefix="specworker-"))
