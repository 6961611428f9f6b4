"""What the image must do, each a function that fails where it does not."""

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.image.buildah import Buildah
from tests.image.running import SOON, ask, container, ssh

#: Bytes of the layers above the base, models apart.
LIMIT = 150 * 10**6
#: Prints the size of the demo model's weights.
WEIGHTS = """
from importlib.util import find_spec
from pathlib import Path
from specworker.demo_model import FILE, PACKAGE
print((Path(find_spec(PACKAGE).origin).parent / FILE).stat().st_size)
"""


def size(buildah: Buildah, image: str, base: str) -> str:
    """Its layers above the base, without the demo model's weights, are small: no compiler."""
    whole = buildah.bytes_above(image, base)
    with buildah.container(image) as name:
        found = buildah("run", name, "--", "python3", "-c", WEIGHTS)
        compiler = buildah("run", name, "--", "sh", "-c", "command -v g++ || true")
    assert not compiler, compiler
    own = whole - int(found)
    assert own <= LIMIT, f"{own} bytes above the base"
    return f"{own / 1e6:.0f} MB above its base, and {int(found) / 1e6:.0f} MB of the demo model"


def runs_the_file(
    buildah: Buildah,
    image: str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    user: int | None = None,
) -> str:
    """Without variables it answers test_input.json and ends."""
    started = time.monotonic()
    with container(buildah, image, folder, environment, user) as running:
        status = running.ends()
        assert status == 0, f"status {status}: {running.log}"
        assert running.answer.strip(), running.log
        figures = [line for line in running.log.splitlines() if "mean acceptance" in line]
        assert figures, running.log
    return f"{len(running.answer)} characters after {time.monotonic() - started:.0f} s"


def serves_a_pod(buildah: Buildah, image: str, folder: Path) -> str:
    """A pod serves HTTP to who has its key, and SSH; it is well, and ends when told to."""
    started = time.monotonic()
    is_well = buildah.config(image)["Healthcheck"]["Test"][1:]
    pod = {"MODE": "pod", "RUNPOD_POD_ID": "pod-1", "PUBLIC_KEY": _key(folder.parent / "id")}
    with container(buildah, image, folder, pod) as running:
        line = running.says("Requests must bring this key", SOON)
        key = next(word.strip('",}') for word in line.split() if word.startswith("sk-"))
        assert ask("/ping")[0] == 204, running.log
        _answers_ssh(folder.parent / "id")
        assert ssh(folder.parent / "id", *is_well).returncode == 1
        running.says("ready after")
        assert ask("/ping")[0] == 200
        session = ssh(folder.parent / "id", *is_well)
        assert session.returncode == 0, session.stdout + session.stderr
        body = {"messages": [{"role": "user", "content": "Say: one two three"}], "max_tokens": 8}
        assert ask("/v1/chat/completions", body=body)[0] == 401
        status, answer = ask("/v1/chat/completions", key=key, body=body)
        assert status == 200, answer
        assert answer["choices"][0]["message"]["content"].strip(), answer
        assert "speculative_decoding" in answer["metrics"], answer
        assert running.terminate() == 0, running.log
    return f"{time.monotonic() - started:.0f} s, SSH among it"


def _key(file: Path) -> str:
    """A new key for SSH in `file`. Returns its public half."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)]
    subprocess.run(command, check=True)
    return file.with_suffix(".pub").read_text().strip()


def _answers_ssh(key: Path) -> None:
    deadline = time.monotonic() + SOON
    while (session := ssh(key, "env")).returncode:
        assert time.monotonic() < deadline, session.stderr
        time.sleep(0.5)
    variables = session.stdout.splitlines()
    for wanted in ("RUNPOD_POD_ID=pod-1", "BAKED_MODELS=/models", "HOME=/root"):
        assert wanted in variables, session.stdout
    other = key.with_name("other")
    _key(other)
    assert ssh(other, "true").returncode == 255, "another key was let in"


def serves_its_own(buildah: Buildah, image: str, folder: Path) -> str:
    """An image with models serves them without being told, and drafts with its own draft."""
    with container(buildah, image, folder) as running:
        status = running.ends()
        assert status == 0, f"status {status}: {running.log}"
        assert running.answer.strip(), running.log
        assert "org/target" in running.log, running.log
        assert "org/draft" in running.log, running.log
    return "both are used"
