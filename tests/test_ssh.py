import logging
import os
import subprocess
from pathlib import Path

import pytest

from specworker import ssh
from specworker.settings import Settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / ".ssh"


@pytest.fixture
def key(tmp_path: Path) -> str:
    return made(tmp_path / "id")


def made(file: Path) -> str:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)]
    subprocess.run(command, check=True)
    return file.with_suffix(".pub").read_text().strip()


def test_the_users_key_is_let_in_and_those_that_were_there_stay(
    folder: Path, key: str, tmp_path: Path
) -> None:
    other = made(tmp_path / "other")
    folder.mkdir()
    (folder / "authorized_keys").write_text(f"{other}\n")
    for _ in range(2):  # a restart adds nothing
        ssh.admit(f" {key}\n\n", {}, folder)
    assert (folder / "authorized_keys").read_text() == f"{other}\n{key}\n"


def test_a_session_gets_the_containers_variables_and_has_its_own(folder: Path, key: str) -> None:
    environment = {
        "HF_TOKEN": "hf_x y=z",
        "HOME": "/",
        "PATH": "/opt/bin",
        "PUBLIC_KEY": key,
        "SEVERAL": "a\nb",
        "_": "/bin/env",
    }
    ssh.admit(key, environment, folder)
    assert (folder / "environment").read_text() == "HF_TOKEN=hf_x y=z\nPATH=/opt/bin\n"


def test_what_may_hold_tokens_is_for_its_owner_alone(folder: Path, key: str) -> None:
    ssh.admit(key, {}, folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    for file in folder.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600


def test_what_is_no_public_key_is_refused_and_lets_nobody_in(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"no public key; allowed: the line in a file"):
        ssh.admit("-----BEGIN OPENSSH PRIVATE KEY-----", {}, folder)
    assert (folder / "authorized_keys").read_text() == ""
    assert not (folder / "environment").exists()


@pytest.mark.parametrize(
    "environment",
    [
        {"MODE": "pod"},
        {"MODE": "pod", "PUBLIC_KEY": "none"},
        {"MODE": "local", "PUBLIC_KEY": "ssh-ed25519 AAAA"},
        {"RUNPOD_ENDPOINT_ID": "x", "PUBLIC_KEY": "ssh-ed25519 AAAA"},
    ],
)
def test_only_a_pod_with_a_key_answers_ssh(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ssh, "SERVER", Path("/must/not/be/looked/for"))
    monkeypatch.setattr(logging.getLogger("specworker"), "propagate", True)
    ssh.start(Settings.from_env(environment), environment)
    assert not caplog.text


@pytest.mark.parametrize(
    ("user", "says"), [(1000, "only root can start its server"), (0, "there is no /no/sshd")]
)
def test_what_keeps_a_pod_from_answering_ssh_is_logged_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, user: int, says: str
) -> None:
    monkeypatch.setattr(logging.getLogger("specworker"), "propagate", True)
    monkeypatch.setattr(ssh, "SERVER", Path("/no/sshd"))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    environment = {"MODE": "pod", "PUBLIC_KEY": "ssh-ed25519 AAAA"}
    ssh.start(Settings.from_env(environment), environment)
    assert says in caplog.text


def test_a_server_that_does_not_start_stops_nothing(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = tmp_path / "sshd"
    server.write_text("#!/bin/sh\necho no luck >&2\nexit 1\n")
    server.chmod(0o755)
    monkeypatch.setattr(logging.getLogger("specworker"), "propagate", True)
    monkeypatch.setattr(ssh, "SERVER", server)
    monkeypatch.setattr(ssh, "RUN", tmp_path / "run")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(ssh, "HOST_KEYS", ("true",))
    monkeypatch.setenv("HOME", str(tmp_path))
    environment = {"MODE": "pod", "PUBLIC_KEY": key}
    ssh.start(Settings.from_env(environment), environment)
    assert "PUBLIC_KEY: no SSH, sshd failed: no luck" in caplog.text
