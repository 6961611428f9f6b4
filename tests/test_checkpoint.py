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


def test_a_folder_tells_its_config_and_the_shapes_of_its_tensors(tmp_path: Path) -> None:
    one = {"fc.weight": np.zeros(1)}
    name = write(tmp_path, {"model_type": "llama"}, one)
    save_file({"model.norm.weight": np.zeros(1)}, tmp_path / "model-2.safetensors")
    assert checkpoint.read("X", name) == Checkpoint(
        name, {"model_type": "llama"}, {"fc.weight": (1,), "model.norm.weight": (1,)}
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
    assert checkpoint.read("X", name).tensors == {"fc.weight": (1,)}


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


def test_the_language_model_of_a_model_of_several_parts_is_what_counts() -> None:
    inner = {"hidden_size": 64, "vocab_size": 33, "max_position_embeddings": 128}
    thinker = {"thinker_config": {"text_config": inner, "hidden_size": 1}}
    for config in (inner, {"text_config": inner, "hidden_size": 1}, thinker):
        found = Checkpoint("model", config)
        assert (found.hidden_size, found.vocabulary_size, found.context) == (64, 33, 128)


def test_a_model_without_a_config_tells_no_sizes() -> None:
    found = Checkpoint("model")
    assert (found.hidden_size, found.vocabulary_size, found.context) == (None, None, None)
    assert found.parameters is None


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({}, None),
        ({"max_position_embeddings": None}, None),
        ({"n_positions": 1024}, 1024),
        ({"max_position_embeddings": 4096, "max_seq_len": 2048}, 2048),
        (
            {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}},
            16384,
        ),
        (
            {"max_position_embeddings": 4096, "rope_scaling": {"type": "yarn", "factor": 4.0}},
            4096,
        ),
        (
            {
                "max_position_embeddings": 512,
                "rope_parameters": {"rope_type": "dynamic", "factor": 2},
            },
            1024,
        ),
        ({"max_position_embeddings": 512, "rope_parameters": {"rope_theta": 1e4}}, 512),
    ],
)
def test_the_longest_sequence_is_read_as_vllm_reads_it(
    config: Mapping[str, Any], context: int | None
) -> None:
    assert Checkpoint("model", config).context == context


def test_a_size_is_estimated_by_the_weights_where_the_config_does_not_tell() -> None:
    assert Checkpoint("model", {}, weight_bytes=2_000_000).parameters == 1_000_000
    assert Checkpoint("model", {}).parameters is None


def test_a_folder_is_completed_by_its_tokenizer_and_the_size_of_its_weights(
    tmp_path: Path,
) -> None:
    name = write(tmp_path, {"model_type": "llama"}, {"fc.weight": np.zeros(1)})
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    found = checkpoint.complete(checkpoint.read("X", name))
    assert found.tokenizer == tmp_path
    assert found.weight_bytes == (tmp_path / "model.safetensors").stat().st_size


def test_an_index_tells_the_size_of_weights_that_are_not_here(tmp_path: Path) -> None:
    name = write(tmp_path, {})
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 7}}')
    assert checkpoint.complete(checkpoint.read("X", name)).weight_bytes == 7


@pytest.mark.parametrize("text", ["{bad", "[]", "{}", '{"metadata": {}}', '{"metadata": 1}'])
def test_an_index_that_tells_nothing_is_passed_over(tmp_path: Path, text: str) -> None:
    name = write(tmp_path, {})
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert checkpoint.complete(checkpoint.read("X", name)).weight_bytes is None
    (tmp_path / "pytorch_model.bin").write_bytes(b"weights")
    assert checkpoint.complete(checkpoint.read("X", name)).weight_bytes == 7


def test_a_model_of_which_nothing_is_known_is_not_completed() -> None:
    assert checkpoint.complete(Checkpoint("org/elsewhere")) == Checkpoint("org/elsewhere")


def downloads(
    monkeypatch: pytest.MonkeyPatch, cached: Path, contents: Mapping[str, str]
) -> list[str]:
    """Have a hub that holds `contents`; what it is asked for lies in `cached`, and is listed."""
    asked: list[str] = []

    def download(repository: str, file: str, **_: Any) -> str:
        asked.append(file)
        (cached / file).write_text(contents[file])
        return str(cached / file)

    cached.mkdir(exist_ok=True)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda *_, **__: list(contents))
    return asked


INDEX = "model.safetensors.index.json"
SMALL = {"config.json": "{}", INDEX: '{"metadata": {"total_size": 5}}', "vocab.json": '{"a": 0}'}
LARGE = {"model-00001-of-00001.safetensors": "weights", "merges.txt": ""}


@pytest.mark.parametrize(
    ("present", "needed"),
    [
        (SMALL | LARGE, [INDEX, "vocab.json"]),
        (SMALL | LARGE | {"tokenizer.json": "{}"}, [INDEX, "tokenizer.json"]),
        ({"config.json": "{}", "tokenizer.model": "model"}, ["tokenizer.model"]),
        ({"config.json": "{}"}, []),
    ],
)
def test_of_a_hub_repository_only_small_files_are_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, present: Mapping[str, str], needed: list[str]
) -> None:
    asked = downloads(monkeypatch, tmp_path / "snapshot", present)
    found = checkpoint.complete(checkpoint.read("X", "org/draft"))
    assert asked == ["config.json", *needed]
    assert found.weight_bytes == (5 if INDEX in needed else None)
    assert (found.tokenizer is not None) == bool(set(needed) - {INDEX})


def test_of_a_snapshot_with_weights_nothing_is_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = downloads(monkeypatch, tmp_path / "hub", SMALL)
    place = write(tmp_path / "snapshot", {}, {"fc.weight": np.zeros(1)})
    found = checkpoint.complete(checkpoint.read("X", "org/draft", place=place))
    assert asked == []
    assert found.tokenizer is None


def test_a_hub_that_is_out_of_reach_is_no_error(hub: Path) -> None:
    cache(hub, "org/draft", "main", "a" * 40, {"model_type": "llama"})
    found = checkpoint.complete(checkpoint.read("X", "org/draft"))
    assert found == Checkpoint("org/draft", {"model_type": "llama"})
