"""Models for an image, downloaded by the hub's real client from a hub on this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder import download_model
from specworker import baked, snapshot
from tests import hub_server
from tests.hub_server import Hub, Repository, commit, serving

SCRIPT = Path(download_model.__file__)
MANIFEST = baked.MANIFEST


def repository(folder: Path, *files: str) -> Path:
    for name in ("config.json", "tokenizer.json", *files):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"content of": name}))
    return folder


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    target = repository(
        tmp_path / "target", "model.safetensors", "pytorch_model.bin", "original/model.pth"
    )
    draft = repository(tmp_path / "draft", "pytorch_model.bin")
    repositories = {
        "org/target": Repository(target, {"main": commit(1), "v2": commit(2)}),
        "org/draft": Repository(draft, {"main": commit(3)}),
        "org/gated": Repository(target, {"main": commit(4)}, is_gated=True),
    }
    with serving(repositories) as hub:
        yield hub


def bake(hub: Hub, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    own = {name: text for name, text in os.environ.items() if not name.startswith("HF_")}
    return subprocess.run(
        [sys.executable, SCRIPT, folder],
        env=own | {"HF_ENDPOINT": hub.url} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_target_and_draft_are_downloaded_and_their_commits_recorded(
    hub: Hub, tmp_path: Path
) -> None:
    cache = tmp_path / "models"
    done = bake(hub, cache, MODEL_NAME="org/target", SPECULATIVE_MODEL="org/draft")
    assert done.returncode == 0, done.stderr
    assert json.loads((cache / MANIFEST).read_text()) == {
        "MODEL_NAME": {"name": "org/target", "revision": None, "commit": commit(1)},
        "SPECULATIVE_MODEL": {"name": "org/draft", "revision": None, "commit": commit(3)},
    }
    assert baked.read(cache)["MODEL_NAME"] == ("org/target", None, commit(1))
    for name, number in (("target", 1), ("draft", 3)):
        found = snapshot.of(cache / f"models--org--{name}", None)
        assert found is not None
        assert found.name == commit(number)
        assert not snapshot.lacks(found, with_tokenizer=True)
    assert "100%" in done.stderr  # progress is shown


def test_only_one_format_of_the_weights_is_downloaded(hub: Hub, tmp_path: Path) -> None:
    bake(hub, tmp_path / "models", MODEL_NAME="org/target", SPECULATIVE_MODEL="org/draft")
    assert sorted(hub.fetched) == [
        "org/draft/config.json",
        "org/draft/pytorch_model.bin",
        "org/draft/tokenizer.json",
        "org/target/config.json",
        "org/target/model.safetensors",
        "org/target/tokenizer.json",
    ]


def test_a_revision_is_recorded_with_the_commit_that_it_meant(hub: Hub, tmp_path: Path) -> None:
    cache = tmp_path / "models"
    done = bake(hub, cache, MODEL_NAME="org/target", MODEL_REVISION="v2")
    assert done.returncode == 0, done.stderr
    assert baked.read(cache) == {"MODEL_NAME": ("org/target", "v2", commit(2))}
    found = snapshot.of(cache / "models--org--target", "v2")
    assert found is not None
    assert found.name == commit(2)


@pytest.mark.parametrize("unset", ["", "None"])
def test_nothing_is_done_where_nothing_is_named(hub: Hub, tmp_path: Path, unset: str) -> None:
    cache = tmp_path / "models"
    done = bake(hub, cache, MODEL_NAME=unset, SPECULATIVE_MODEL="[ngram]", MODEL_REVISION="v2")
    assert done.returncode == 0, done.stderr
    assert not cache.exists()
    assert not hub.fetched


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"MODEL_NAME": "org/gated"}, "MODEL_NAME=org/gated: is gated; accept its licence"),
        ({"MODEL_NAME": "org/absent"}, "MODEL_NAME=org/absent: is not on the hub"),
        ({"MODEL_NAME": "org/target", "MODEL_REVISION": "v9"}, "has no revision v9"),
        ({"SPECULATIVE_MODEL": "/models/x"}, "SPECULATIVE_MODEL=/models/x: cannot be downloaded"),
    ],
)
def test_what_cannot_be_had_ends_the_build_with_the_reason(
    hub: Hub, tmp_path: Path, environment: dict[str, str], says: str
) -> None:
    cache = tmp_path / "models"
    done = bake(hub, cache, **environment)
    assert done.returncode == 2
    assert says in done.stderr
    assert not (cache / MANIFEST).exists()


def test_a_gated_model_is_downloaded_with_the_secret_which_shows_nowhere(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "models"
    secret = tmp_path / "secret"
    secret.write_text(f"{hub_server.TOKEN}\n")
    code = (
        "import os, sys, pathlib; from builder import download_model as it; "
        f"it.SECRET = pathlib.Path({str(secret)!r}); "
        f"sys.exit(it.main(os.environ, pathlib.Path({str(cache)!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"HF_ENDPOINT": hub.url, "MODEL_NAME": "org/gated"},
        cwd=SCRIPT.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "org/gated/model.safetensors" in hub.fetched
    assert hub_server.TOKEN not in done.stdout + done.stderr
    written = [file for file in cache.rglob("*") if file.is_file()]
    assert written
    assert not [file for file in written if hub_server.TOKEN.encode() in file.read_bytes()]
