"""SSH on a pod. The platform gives the user's public key; the image brings the server.

Nothing but keys is let in. Host keys are made where there are none, so that no two
containers share them.
"""

import logging
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specworker.settings import Settings

logger = logging.getLogger(__name__)

SERVER = Path("/usr/sbin/sshd")
#: Makes the host keys that there are not yet.
HOST_KEYS = ("ssh-keygen", "-A")
#: The folder that the server asks for.
RUN = Path("/run/sshd")
OPTIONS = {
    "KbdInteractiveAuthentication": "no",
    "PasswordAuthentication": "no",
    "PermitRootLogin": "prohibit-password",
    "PermitUserEnvironment": "yes",
    "UsePAM": "no",  # it would replace the container's PATH
}
#: What a session has of its own.
NOT_HANDED_ON = frozenset(
    ("HOME", "HOSTNAME", "LOGNAME", "OLDPWD", "PUBLIC_KEY", "PWD", "SHELL", "SHLVL", "TERM", "USER")
)


def start(settings: "Settings", environment: Mapping[str, str]) -> None:
    """Have a pod answer SSH where the user's key is known. What keeps it from that is logged."""
    if settings.public_key is None or settings.where != "pod":
        return
    if os.geteuid() != 0:
        logger.warning("PUBLIC_KEY: no SSH, only root can start its server")
        return
    if not SERVER.exists():
        logger.warning("PUBLIC_KEY: no SSH, there is no %s; the worker's image has one", SERVER)
        return
    try:
        admit(settings.public_key, environment, Path.home() / ".ssh")
        RUN.mkdir(mode=0o755, parents=True, exist_ok=True)
        _run(*HOST_KEYS)
        _run(str(SERVER), *(f"-o{name}={value}" for name, value in OPTIONS.items()))
    except (OSError, ValueError) as error:
        logger.warning("PUBLIC_KEY: no SSH, %s", error)
    else:
        logger.info("SSH: sessions of this pod are open to PUBLIC_KEY")


def admit(keys: str, environment: Mapping[str, str], folder: Path) -> None:
    """Let in who has one of `keys`, with the container's variables in each session.

    Args:
        keys: public keys, one a line.
        environment: the container's.
        folder: `.ssh` of the user's home.

    Raises:
        ValueError: they are no public keys.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    authorized = folder / "authorized_keys"
    present = authorized.read_text().splitlines() if authorized.exists() else []
    wanted = [key.strip() for key in keys.splitlines() if key.strip()]
    _write(authorized, [*present, *(key for key in wanted if key not in present)])
    try:
        _run("ssh-keygen", "-l", "-f", str(authorized))
    except ValueError as error:
        _write(authorized, present)
        raise ValueError(
            "its value is no public key; allowed: the line in a file such as ~/.ssh/id_ed25519.pub"
        ) from error
    _write(folder / "environment", _lines(environment))


def _lines(environment: Mapping[str, str]) -> list[str]:
    """What the server hands to each session; a value of several lines has no form there."""
    return [
        f"{name}={value}"
        for name, value in sorted(environment.items())
        if name not in NOT_HANDED_ON and "\n" not in value and not name.startswith("_")
    ]


def _write(file: Path, lines: list[str]) -> None:
    """Write a file that is for its owner alone: it may hold tokens."""
    file.touch(mode=0o600)
    file.chmod(0o600)
    file.write_text("".join(f"{line}\n" for line in lines))


def _run(*command: str) -> None:
    """Run a command.

    Raises:
        ValueError: it failed, with what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise ValueError(f"{Path(command[0]).name} failed: {done.stderr.strip()[-500:]}")
