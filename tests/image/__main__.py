"""`make image-test`: build the Dockerfile on a stand-in base, and run the image as users do.

As root, on Debian or Ubuntu; about a quarter of an hour and ten gigabytes, which are
removed at the end. With --keep the base stays for the next time.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from builder import tiny
from specworker.baked import MANIFEST
from tests import hub_server
from tests.hub_server import Repository, commit
from tests.image import buildah, checks, running, stand_in
from tests.image.buildah import Buildah

IMAGE = "specworker-image"
BAKED = "specworker-baked"
ROOT = Path(__file__).parents[2]
#: Where images lie.
HOME = Path("/var/tmp/specworker-image")  # noqa: S108 - for root alone, who runs this
STARTED = time.monotonic()


def main() -> int:
    """Run every check. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.image", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the base for the next time")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.stderr.write("This builds file systems, which takes root.\n")
        return 2
    if packages := buildah.lacking():
        _say(f"installing {', '.join(packages)} …")
        command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
        subprocess.run(["apt-get", "update"], check=True, stdout=sys.stderr)
        subprocess.run(command, check=True, stdout=sys.stderr)
    HOME.mkdir(mode=0o700, exist_ok=True)
    images = Buildah(HOME)
    work = Path(tempfile.mkdtemp())
    try:
        with running.network():
            _check(images, work)
    finally:
        _clean(images, work, keep=options.keep)
    _say("passed")
    return 0


def _check(images: Buildah, work: Path) -> None:
    mounts = stand_in.Mounts(work)
    if not images.has(stand_in.NAME):
        _step("the stand-in base", lambda: stand_in.build(images, mounts))
    _step("the Dockerfile", lambda: build(images, mounts, IMAGE))
    _step("its size", lambda: checks.size(images, IMAGE, stand_in.NAME))
    _step("test_input.json", lambda: checks.runs_the_file(images, IMAGE, work / "local"))
    _step(
        "test_input.json as a user whom nobody knows, with suffix decoding",
        lambda: checks.runs_the_file(
            images, IMAGE, work / "user", {"SPECULATIVE_METHOD": "suffix"}, user=1000
        ),
    )
    _step("a pod", lambda: checks.serves_a_pod(images, IMAGE, work / "pod"))
    _step("the Dockerfile with two models", lambda: bake(images, mounts, work))
    _step(
        "test_input.json with them, without a network",
        lambda: checks.serves_its_own(images, BAKED, work / "baked"),
    )


def build(images: Buildah, mounts: stand_in.Mounts, name: str, *options: str | Path) -> None:
    """Build the Dockerfile, unchanged, on the stand-in."""
    layers = ["--layers"] if images.driver == "overlay" else []
    base = f"BASE_IMAGE=localhost/{stand_in.NAME}"
    given = ["--pull-never", "--format", "docker", *layers, "--build-arg", base, *options]
    images.show("bud", *given, *mounts, "--tag", name, ROOT)


def bake(images: Buildah, mounts: stand_in.Mounts, work: Path) -> None:
    """Build it with a target and a draft from a hub on this machine, the target gated."""
    token = work / "token"
    token.write_text(hub_server.TOKEN)
    repositories = {
        "org/target": Repository(tiny.write(work / "target"), {"v2": commit(1)}, is_gated=True),
        "org/draft": Repository(tiny.write(work / "draft"), {"main": commit(2)}),
    }
    with hub_server.serving(repositories) as hub:
        arguments = {
            "HF_ENDPOINT": hub.url,
            "MODEL_NAME": "org/target",
            "MODEL_REVISION": "v2",
            "SPECULATIVE_MODEL": "org/draft",
        }
        given = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        build(images, mounts, BAKED, *given, "--secret", f"id=HF_TOKEN,src={token}")
    with images.container(BAKED) as name:
        manifest = images("run", name, "--", "cat", f"/models/{MANIFEST}")
        assert commit(1) in manifest, manifest
        assert commit(2) in manifest, manifest
        root = Path(images("mount", name))
        command = ["grep", "-rl", hub_server.TOKEN, "models", "app", "run", "tmp", "root"]
        found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        assert not found.stdout, f"the token was left in {found.stdout}"
    assert hub_server.TOKEN not in images("inspect", "--type", "image", BAKED)


def _step(name: str, check: Callable[[], str | None]) -> None:
    _say(f"{name} …")
    started = time.monotonic()
    said = check() or f"{time.monotonic() - started:.0f} s"
    _say(f"{name}: {said}")


def _say(text: str) -> None:
    sys.stderr.write(f"\033[1m[{time.monotonic() - STARTED:4.0f} s] {text}\033[0m\n")


def _clean(images: Buildah, work: Path, *, keep: bool) -> None:
    shutil.rmtree(work, ignore_errors=True)
    images("rm", "--all")
    if keep:
        for name in (BAKED, IMAGE):
            if images.has(name):
                images("rmi", "--force", name)
        return
    images("rmi", "--all", "--force")
    images.unmount()
    shutil.rmtree(HOME)


if __name__ == "__main__":
    sys.exit(main())
