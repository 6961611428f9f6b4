"""The Dockerfile, read by Docker's own parser: what it names is there, and is read."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import dockerfile
import pytest
from huggingface_hub import constants

from builder import download_model
from specworker.__main__ import main
from specworker.engine_flags import ALIASES
from specworker.main import PROCESS_DEFAULTS
from specworker.settings import Settings

ROOT = Path(__file__).parent.parent
COMMANDS = dockerfile.parse_file(str(ROOT / "Dockerfile"))
#: Who reads a variable that the worker does not, and where it says so.
READ_ELSEWHERE = {
    "DEBIAN_FRONTEND": "debconf(7)",
    "HF_ENDPOINT": "huggingface_hub.constants",
    "PIP_BREAK_SYSTEM_PACKAGES": "pip install --break-system-packages",
    "PIP_ROOT_USER_ACTION": "pip install --root-user-action",
    "PYTHONUNBUFFERED": "python(1)",
}
#: What names the models that an image brings along.
BAKING = ("MODEL_NAME", "MODEL_REVISION", "SPECULATIVE_MODEL", "SPECULATIVE_MODEL_REVISION")


def all_of(kind: str) -> Iterator[tuple[str, ...]]:
    return (command.value for command in COMMANDS if command.cmd == kind)


def the(kind: str) -> "dockerfile.Command":
    (command,) = [command for command in COMMANDS if command.cmd == kind]
    return command


def arguments() -> dict[str, str | None]:
    """The build arguments and their defaults."""
    pairs = (argument.partition("=") for (argument,) in all_of("ARG"))
    return {name: default.strip('"') if equals else None for name, equals, default in pairs}


def variables() -> dict[str, str]:
    """What the image sets."""
    return {
        name: value
        for values in all_of("ENV")
        for name, value in zip(values[::2], values[1::2], strict=True)
    }


def ignored(path: str) -> bool:
    """Whether `.dockerignore` keeps a file out of the build."""
    verdict = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!").replace("**/", "")
        if any(part.match(pattern) for part in (Path(path), *Path(path).parents)):
            verdict = not line.startswith("!")
    return verdict


def copied() -> list[str]:
    """The paths in the repository that are copied."""
    copies = (command for command in COMMANDS if command.cmd == "COPY" and not command.flags)
    sources = [command.value[:-1] for command in copies]
    return [path for paths in sources for path in paths]


def test_every_path_that_is_copied_is_there_and_reaches_the_build() -> None:
    assert {"src", "handler.py", "test_input.json"} <= set(copied())
    for path in copied():
        assert (ROOT / path).exists(), path
        assert not ignored(path), path


def test_nothing_else_reaches_the_build() -> None:
    assert ignored("tests")
    assert ignored(".git")
    assert ignored("src/specworker/__pycache__")
    let_in = [
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    found = {str(p.relative_to(ROOT)) for pattern in let_in for p in ROOT.glob(pattern)}
    unused = {path for path in found if path not in copied()}
    # For machines that are set up without the image.
    assert unused == {f"builder/requirements-{kind}.txt" for kind in ("cpu", "dev", "gpu")}


def test_every_file_that_a_step_reads_was_copied_before() -> None:
    here = {Path(path).name for path in copied()}
    for step in all_of("RUN"):
        for word in shlex.split(step[0]):
            if re.fullmatch(r"[\w/.-]+\.(txt|py)", word):
                assert Path(word).name in here, word


def test_every_variable_is_one_that_somebody_reads() -> None:
    own = {name.upper() for name in Settings.model_fields}
    known = own | {*ALIASES, *PROCESS_DEFAULTS, *READ_ELSEWHERE}
    assert {*arguments(), *variables()} - known == {"BASE_IMAGE"}


def test_what_the_image_sets_is_what_the_worker_sets_without_it() -> None:
    for name in {*variables()} & {*PROCESS_DEFAULTS}:
        assert variables()[name] == PROCESS_DEFAULTS[name]


def test_the_hub_of_a_build_is_the_clients() -> None:
    assert "HF_ENDPOINT" in Path(constants.__file__).read_text()
    assert arguments()["HF_ENDPOINT"] is None  # the client takes an empty one for an address


def test_every_argument_is_used_after_it_is_declared() -> None:
    text = (ROOT / "Dockerfile").read_text()
    read = {*BAKING, *READ_ELSEWHERE}
    for name in arguments():
        assert name in read or f"${{{name}}}" in text, name


def test_nothing_is_baked_unless_asked_for() -> None:
    own = {name: text for name, text in arguments().items() if name in BAKING}
    assert own == dict.fromkeys(BAKING, "")


def test_no_secret_is_an_argument_or_a_variable_of_the_image() -> None:
    for name in {*arguments(), *variables()}:
        assert not re.search("TOKEN|KEY|SECRET|PASSWORD", name), name
    (mount,) = [
        flag
        for command in COMMANDS
        for flag in command.flags
        if command.cmd == "RUN" and "type=secret" in flag
    ]
    assert f"id={download_model.SECRET.name}" in mount
    assert download_model.SECRET.parent == Path("/run/secrets")


def test_the_base_is_the_vllm_that_is_pinned() -> None:
    (line,) = [
        line
        for line in (ROOT / "builder/requirements-gpu.txt").read_text().splitlines()
        if line.startswith("vllm==")
    ]
    assert arguments()["BASE_IMAGE"] == f"vllm/vllm-openai:v{line.removeprefix('vllm==')}"
    assert [value[0] for value in all_of("FROM")] == ["${BASE_IMAGE}"] * 2


def test_the_entry_point_is_the_handler_in_exec_form() -> None:
    entry = the("ENTRYPOINT")
    assert entry.json
    assert entry.value[:2] == ("python3", "-u")
    (workdir,) = all_of("WORKDIR")
    assert (ROOT / Path(entry.value[2]).relative_to(workdir[0])).is_file()


def test_the_health_check_is_a_command_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    check = the("HEALTHCHECK")
    assert check.json
    assert check.value[:4] == ("CMD", "python3", "-m", "specworker")
    monkeypatch.setenv("MODE", "serverless")
    assert main(check.value[4:]) == 0


def test_the_port_is_the_one_that_a_pod_opens() -> None:
    assert the("EXPOSE").value == (str(Settings.from_env({"MODE": "pod"}).ports["PORT"]),)


def test_the_labels_are_what_the_package_says_of_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    values = [text.strip('"') for text in the("LABEL").value]
    labels = dict(zip(values[::2], values[1::2], strict=True))
    prefix = "org.opencontainers.image"
    assert labels[f"{prefix}.title"] == project["name"]
    assert labels[f"{prefix}.version"] == project["version"]
    assert labels[f"{prefix}.licenses"] == project["license"]
    assert labels[f"{prefix}.description"] == project["description"]
