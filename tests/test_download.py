from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from specworker import download
from specworker.errors import ConfigurationError
from specworker.hub_cache import Found

BOTH = ["config.json", "model.safetensors", "pytorch_model.bin", "original/consolidated.00.pth"]


def test_of_weights_in_several_formats_only_safetensors_are_needed() -> None:
    files = [*BOTH, "consolidated.safetensors", "onnx/model.onnx", "model.gguf", "tokenizer.json"]
    needed = sorted(set(files) - set(download.unneeded(files)))
    assert needed == ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize(
    "files",
    [
        ["config.json", "pytorch_model.bin"],
        ["config.json", "consolidated.safetensors", "params.json"],
        ["model-q4.gguf"],
    ],
)
def test_weights_in_a_single_format_are_all_needed(files: list[str]) -> None:
    assert download.unneeded(files) == []


@pytest.mark.parametrize(
    "model",
    [Found("org/model", "/cache/snapshot"), Found("/models/here", "/models/here")],
)
def test_what_is_here_already_is_not_downloaded(model: Found) -> None:
    assert download.fetch("MODEL_NAME", model, None) == model


def test_a_model_is_downloaded_at_its_revision_without_what_is_not_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {}

    def download_snapshot(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda *_, **__: BOTH)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download_snapshot)
    found = download.fetch("MODEL_NAME", Found("org/model", "org/model", "v2"), "hf_secret")
    assert found == Found("org/model", str(tmp_path), "v2")
    assert asked == {
        "name": "org/model",
        "revision": "v2",
        "token": "hf_secret",
        "ignore_patterns": ["pytorch_model.bin", "original/consolidated.00.pth"],
    }


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (GatedRepoError, "is gated; accept its licence"),
        (RepositoryNotFoundError, "is not on the hub, or is private"),
        (RevisionNotFoundError, "has no revision v2"),
        (ConnectionError, "is the hub in reach?"),
    ],
)
def test_what_the_hub_does_not_give_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, error: Any, says: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        if issubclass(error, ConnectionError):
            raise error("no route to host")
        raise error("no", response=httpx.Response(404, request=httpx.Request("GET", "http://hub")))

    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", fail)
    with pytest.raises(ConfigurationError) as refused:
        download.fetch("SPECULATIVE_MODEL", Found("org/model", "org/model", "v2"), None)
    (line,) = refused.value.problems
    assert line.startswith("SPECULATIVE_MODEL=org/model: ")
    assert says in line
