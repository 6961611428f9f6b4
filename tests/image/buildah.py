"""Container images without a container engine: Debian's buildah, as root."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

#: Packages of Debian that this needs, by a program of theirs.
PACKAGES = {
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "ssh": "openssh-client",
}


class Buildah:
    """Images and containers that lie in a folder of their own.

    Layers are laid over each other by the kernel; STORAGE_DRIVER=vfs copies them instead,
    where the kernel does not allow that.
    """

    def __init__(self, folder: Path) -> None:
        self.driver = os.environ.get("STORAGE_DRIVER", "overlay")
        self._storage = folder / "root"
        self._options = ["--root", str(self._storage), "--runroot", str(folder / "run")]
        temporary = folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        self._environment = os.environ | {
            "BUILDAH_ISOLATION": "chroot",
            "STORAGE_DRIVER": self.driver,
            "TMPDIR": str(temporary),
        }

    def command(self, *arguments: str | Path) -> list[str]:
        """What to run for `buildah ARGUMENTS`."""
        name, *others = map(str, arguments)
        return ["buildah", *self._options, name, *others]

    def __call__(self, *arguments: str | Path) -> str:
        """Run it. Returns what it prints; its messages go to stderr.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        done = subprocess.run(
            self.command(*arguments),
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def show(self, *arguments: str | Path) -> None:
        """Run it, with all that it prints on stderr, for a person who waits.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        command = self.command(*arguments)
        subprocess.run(command, env=self._environment, stdout=sys.stderr, check=True)

    def start(
        self,
        before: Sequence[str],
        *arguments: str | Path,
        stdout: IO[bytes],
        stderr: IO[bytes],
    ) -> "subprocess.Popen[bytes]":
        """Start it under the command `before`, in a session of its own."""
        return subprocess.Popen(
            [*before, *self.command(*arguments)],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )

    def has(self, image: str) -> bool:
        """Whether there is an image of that name."""
        return bool(self("images", "--quiet", "--filter", f"reference={image}"))

    @contextmanager
    def container(self, image: str) -> Iterator[str]:
        """A container of `image`, which is removed afterwards."""
        name = self("from", "--pull-never", image)
        try:
            yield name
        finally:
            self("rm", name)

    def config(self, image: str) -> dict[str, Any]:
        """What the image says of how it is run, in Docker's keys."""
        inspected = json.loads(self("inspect", "--type", "image", image))
        config: dict[str, Any] = inspected["Docker"]["config"]
        return config

    def unmount(self) -> None:
        """Let go of the folder, so that it can be removed."""
        place = self._storage / self.driver
        if place.is_mount():
            subprocess.run(["umount", str(place)], check=True)

    def bytes_above(self, image: str, base: str) -> int:
        """The size of the layers that `image` has and `base` has not, uncompressed."""
        layers = {layer["id"]: layer for layer in self._records("layers")}
        below, layer, size = self._top(base), self._top(image), 0
        while layer and layer != below:
            size += layers[layer].get("diff-size", 0)
            layer = layers[layer].get("parent", "")
        return size

    def _top(self, name: str) -> str:
        """The topmost layer of an image."""
        for image in self._records("images"):
            if f"localhost/{name}:latest" in image.get("names", ()):
                return str(image["layer"])
        raise LookupError(f"{name}: no such image")

    def _records(self, kind: str) -> list[dict[str, Any]]:
        file = self._storage / f"{self.driver}-{kind}" / f"{kind}.json"
        records: list[dict[str, Any]] = json.loads(file.read_text())
        return records


def lacking() -> list[str]:
    """The packages that this machine lacks."""
    return [package for program, package in PACKAGES.items() if not shutil.which(program)]
