"""A stand-in for vLLM's own image, for machines without a GPU or a registry of images.

It offers what the Dockerfile takes from its base: Debian or Ubuntu with apt, `python3` with
pip, and vLLM, here its CPU build. It has no compiler.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.image.buildah import Buildah

NAME = "specworker-base"
#: Its Python is 3.11.
SUITE = "bookworm"
INCLUDED = "ca-certificates,libnuma1,python3,python3-pip"
ROOT = Path(__file__).parents[2]


def build(buildah: Buildah, mounts: "Mounts") -> None:
    """Build the image `NAME` (some minutes)."""
    container = buildah("from", "scratch")
    root = Path(buildah("mount", container))
    _run("debootstrap", "--variant=minbase", f"--include={INCLUDED}", SUITE, str(root))
    mounts.prepare(root)
    requirements = root / "requirements.txt"
    requirements.write_text((ROOT / "builder/requirements-cpu.txt").read_text())
    _pip(buildah, container, mounts, "install", "--no-cache-dir", "-r", "/requirements.txt")
    # Built against another torch: importing them fails.
    unused = ("torchvision", "torchaudio", "torchcodec")
    _pip(buildah, container, mounts, "uninstall", "--yes", *unused)
    requirements.unlink()
    entry = '["vllm", "serve"]'
    buildah("config", "--entrypoint", entry, "--workingdir", "/vllm-workspace", container)
    buildah("commit", "--quiet", "--rm", container, NAME)


class Mounts:
    """How pip is set up on this machine, for builds; nothing of it is left in an image."""

    def __init__(self, work: Path) -> None:
        asked = [sys.executable, "-m", "pip", "config", "list"]
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        options = {
            key.rpartition(".")[2]: value.strip("'")
            for key, _, value in (line.partition("=") for line in found.splitlines())
        }
        for key in ("no-input", "require-virtualenv"):
            options.pop(key, None)
        self._file = work / "pip.conf"
        lines = [f"{key} = {value}\n" for key, value in options.items()]
        self._file.write_text("".join(["[global]\n", *lines]))
        self._folders = sorted(set(_local(" ".join(options.values()))))

    def __iter__(self) -> Iterator[str]:
        """The options of buildah's that mount it."""
        yield f"--volume={self._file}:/etc/pip.conf:ro"
        for place in self._folders:
            yield f"--volume={place}:{place}:ro"

    def prepare(self, root: Path) -> None:
        """Make the places to mount at, which would otherwise count as changes of an image."""
        for place in [Path("/etc/pip.conf"), *self._folders]:
            target = root / place.relative_to("/")
            if place.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()


def _local(text: str) -> Iterator[Path]:
    """The places on this machine that pip's options name."""
    for scheme, path in re.findall(r"(?<!\S)(file://)?(/[^\s',]*)", text):
        place = Path(path)
        if place.exists():
            yield place.parent if scheme else place  # an index links to files beside it


def _pip(buildah: Buildah, container: str, mounts: Mounts, *arguments: str) -> None:
    command = ("python3", "-m", "pip", *arguments, "--break-system-packages")
    buildah.show("run", *mounts, container, "--", *command)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)
