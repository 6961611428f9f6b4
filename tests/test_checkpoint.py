import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save_file

from specworker import checkpoint
from specworker.checkpoint import Checkpoint
from specworker.errors import ConfigurationError


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Any] | None = None) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        save_file(dict(tensors), folder / "model.safetensors")
    return str(folder)


def problem(variable: str, name: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        checkpoint.read(variable, name)
    (line,) = caught.value.problems
    return line


@pytest.mark.parametrize("name", ["/models/a", "./a", "../a"])
def test_a_name_that_starts_like_a_path_is_one(name: str) -> None:
    assert checkpoint.is_path(name)


@pytest.mark.parametrize("name", ["org/model", "model", "org/.model", "a/../b", "[ngram]"])
def test_every_other_name_may_be_a_hub_id(name: str) -> None:
    assert not checkpoint.is_path(name)


@pytest.mark.parametrize("name", ["/does/not/exist", "./nowhere"])
def test_a_path_without_a_folder_is_refused_with_the_variable_that_gave_it(name: str) -> None:
    expected = f"X={name}: there is no such folder; allowed: a hub id or an existing folder"
    assert problem("X", name) == expected
    with pytest.raises(ConfigurationError):
        checkpoint.check("X", name)


def test_a_hub_id_or_an_existing_folder_passes_the_check(tmp_path: Path) -> None:
    checkpoint.check("X", "org/model")
    checkpoint.check("X", str(tmp_path))


def test_a_folder_tells_its_config_and_the_names_of_its_tensors(tmp_path: Path) -> None:
    one = {"fc.weight": np.zeros(1)}
    name = write(tmp_path, {"model_type": "llama"}, one)
    save_file({"model.norm.weight": np.zeros(1)}, tmp_path / "model-2.safetensors")
    assert checkpoint.read("X", name) == Checkpoint(
        name, {"model_type": "llama"}, frozenset({"fc.weight", "model.norm.weight"})
    )


@pytest.mark.parametrize("name", ["~/draft", "~nobody-here/a", "~"])
def test_a_home_directory_that_nothing_expands_is_refused(name: str) -> None:
    expected = f"X={name}: nothing expands ~ here; allowed: a hub id or a whole path"
    assert problem("X", name) == expected


def test_a_folder_in_the_working_directory_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "draft", {"model_type": "llama"})
    assert checkpoint.read("X", "draft").config == {"model_type": "llama"}


def test_a_folder_without_a_config_tells_nothing(tmp_path: Path) -> None:
    assert checkpoint.read("X", str(tmp_path)) == Checkpoint(str(tmp_path))


def test_weights_that_cannot_be_read_are_left_to_vllm(tmp_path: Path) -> None:
    name = write(tmp_path, {"model_type": "llama"}, {"fc.weight": np.zeros(1)})
    (tmp_path / "broken.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    (tmp_path / "empty.safetensors").touch()
    assert checkpoint.read("X", name).tensors == {"fc.weight"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{bad", "is not valid JSON ("), ("", "is not valid JSON ("), ("[]", "is JSON, but not an")],
)
def test_a_broken_config_is_refused_with_the_variable_that_gave_it(
    tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "config.json").write_text(text)
    assert problem("X", str(tmp_path)).startswith(f"X={tmp_path}: its config.json {reason}")


def test_a_config_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe")
    assert problem("X", str(tmp_path)).startswith(f"X={tmp_path}: its config.json ")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of a hub that cannot be reached."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def cache(hub: Path, repository: str, revision: str, commit: str, config: Any) -> None:
    folder = hub / f"models--{repository.replace('/', '--')}"
    write(folder / "snapshots" / commit, config)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / revision).write_text(commit)


def test_a_hub_repository_is_read_at_its_revision(hub: Path) -> None:
    cache(hub, "org/draft", "main", "a" * 40, {"model_type": "llama"})
    cache(hub, "org/draft", "v2", "b" * 40, {"model_type": "medusa"})
    assert checkpoint.read("X", "org/draft").config == {"model_type": "llama"}
    assert checkpoint.read("X", "org/draft", "v2").config == {"model_type": "medusa"}
    assert checkpoint.read("X", "org/draft", "b" * 40).config == {"model_type": "medusa"}


def test_a_hub_repository_whose_place_is_known_is_read_there(hub: Path, tmp_path: Path) -> None:
    place = write(tmp_path / "snapshot", {"model_type": "medusa"})
    found = checkpoint.read("X", "org/draft", "v2", place=place)
    assert found == Checkpoint("org/draft", {"model_type": "medusa"})


def test_a_hub_repository_out_of_reach_tells_nothing_but_its_name(hub: Path) -> None:
    assert checkpoint.read("X", "org/elsewhere") == Checkpoint("org/elsewhere")


def test_a_name_that_no_hub_has_tells_nothing_but_its_name(hub: Path) -> None:
    assert checkpoint.read("X", "not/a/hub/id") == Checkpoint("not/a/hub/id")


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        (None, None),
        ({}, None),
        ({"model_type": "llama", "num_heads": 9}, None),
        ({"speculators_config": {"proposal_methods": [{"speculative_tokens": 5}]}}, 5),
        ({"speculators_config": {"proposal_methods": []}, "n_predict": 2}, 2),
        ({"speculators_config": None}, None),
        ({"n_predict": 4}, 4),
        ({"n_predict": 0}, None),
        ({"medusa_num_heads": 3}, 3),
        ({"model_type": "medusa", "num_heads": 6}, 6),
    ],
)
def test_the_number_of_tokens_that_a_draft_was_made_for(
    config: Mapping[str, Any] | None, tokens: int | None
) -> None:
    assert Checkpoint("draft", config).drafted_tokens == tokens


def test_the_token_is_used_for_a_gated_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def download(repository: str, file: str, **options: Any) -> str:
        asked.append({"repository": repository, "file": file, **options})
        raise FileNotFoundError

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    found = checkpoint.read("X", "org/gated", "v2", "hf_secret")
    assert found == Checkpoint("org/gated")
    assert asked == [
        {
            "repository": "org/gated",
            "file": "config.json",
            "revision": "v2",
            "token": "hf_secret",
        }
    ]
