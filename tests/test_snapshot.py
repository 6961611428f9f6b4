import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from specworker import snapshot
from tests import hubs

NAME = "Org/Model"
SHARDS = {f"model-0000{n}-of-00002.safetensors": "weights" for n in (1, 2)}


def index(*files: str) -> str:
    return json.dumps({"weight_map": dict(enumerate(files))})


def test_the_main_branch_is_meant_and_not_the_last_in_order(tmp_path: Path) -> None:
    main = hubs.snapshot(tmp_path, NAME, "aaa")
    hubs.snapshot(tmp_path, NAME, "fff", refs=("v2",))
    assert snapshot.of(hubs.repository(tmp_path, NAME), None) == main


@pytest.mark.parametrize("revision", ["v2", "refs/pr/1", "fff"])
def test_a_revision_is_a_branch_a_tag_or_a_commit(tmp_path: Path, revision: str) -> None:
    hubs.snapshot(tmp_path, NAME, "aaa")
    meant = hubs.snapshot(tmp_path, NAME, "fff", refs=("v2", "refs/pr/1"))
    assert snapshot.of(hubs.repository(tmp_path, NAME), revision) == meant


def test_a_revision_that_is_not_there_is_not_replaced_by_another(tmp_path: Path) -> None:
    hubs.snapshot(tmp_path, NAME)
    assert snapshot.of(hubs.repository(tmp_path, NAME), "v2") is None


def test_without_a_reference_the_newest_snapshot_with_a_config_serves(tmp_path: Path) -> None:
    newest = hubs.snapshot(tmp_path, NAME, "aaa", refs=())
    older = hubs.snapshot(tmp_path, NAME, "bbb", refs=())
    bare = hubs.snapshot(tmp_path, NAME, "ccc", refs=())
    (bare / "config.json").unlink()
    for seconds, folder in enumerate((older, newest, bare)):
        os.utime(folder, (seconds, seconds))
    assert snapshot.of(hubs.repository(tmp_path, NAME), None) == newest


@pytest.mark.parametrize("reference", ["gone", ""])
def test_a_reference_to_no_snapshot_is_passed_over(tmp_path: Path, reference: str) -> None:
    only = hubs.snapshot(tmp_path, NAME)
    (hubs.repository(tmp_path, NAME) / "refs" / "main").write_text(reference)
    assert snapshot.of(hubs.repository(tmp_path, NAME), None) == only


def test_a_repository_that_is_not_there_has_no_snapshot(tmp_path: Path) -> None:
    assert snapshot.of(tmp_path / "models--a--b", None) is None
    assert snapshot.of(tmp_path / "models--a--b", "v2") is None


@pytest.mark.parametrize(
    "files",
    [
        hubs.WHOLE,
        SHARDS,
        SHARDS | {"model.safetensors.index.json": index(*SHARDS)},
        {"pytorch_model.bin": "weights"},
        {"medusa_lm_head.pt": "weights", "optimizer.bin": ""},
        {"model.safetensors": "weights", "pytorch_model.bin": ""},
        {"model-1-of-1.safetensors": "weights"},
        {"model-00000-of-00001.safetensors": "weights"},
        {"model.safetensors": "weights", "model.safetensors.index.json": "{}"},
    ],
)
def test_a_whole_snapshot_lacks_nothing(tmp_path: Path, files: Mapping[str, str]) -> None:
    assert snapshot.lacks(hubs.snapshot(tmp_path, NAME, files=files)) == ""


@pytest.mark.parametrize(
    ("files", "lacks"),
    [
        ({}, "no weights"),
        ({"training_args.bin": "1"}, "no weights"),
        ({"model.safetensors": ""}, "no weights in model.safetensors"),
        (
            {"model-00002-of-00003.safetensors": "weights"},
            "1 of 00003 files of weights model",
        ),
        (
            {"model.safetensors.index.json": index(*SHARDS)},
            "no weights in model-00001-of-00002.safetensors",
        ),
        (
            {**hubs.WHOLE, "model.safetensors.index.json": index("other.safetensors")},
            "no weights in other.safetensors",
        ),
    ],
)
def test_what_a_snapshot_lacks_is_named(
    tmp_path: Path, files: Mapping[str, str], lacks: str
) -> None:
    assert snapshot.lacks(hubs.snapshot(tmp_path, NAME, files=files)) == lacks


def test_a_link_whose_end_is_gone_holds_nothing(tmp_path: Path) -> None:
    folder = hubs.snapshot(tmp_path, NAME)
    hubs.vanish(folder)
    assert snapshot.lacks(folder) == "no weights in model.safetensors"
    hubs.vanish(folder, "config.json")
    assert snapshot.lacks(folder) == "no config.json"


def test_a_tokenizer_is_missed_only_where_one_is_needed(tmp_path: Path) -> None:
    folder = hubs.snapshot(tmp_path, NAME, files={"model.safetensors": "weights"})
    assert snapshot.lacks(folder) == ""
    assert snapshot.lacks(folder, with_tokenizer=True) == "no tokenizer"


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "tekken.json", "spiece.model"])
def test_tokenizers_have_many_names(tmp_path: Path, name: str) -> None:
    files = {"model.safetensors": "weights", name: "1"}
    folder = hubs.snapshot(tmp_path, NAME, files=files)
    assert snapshot.lacks(folder, with_tokenizer=True) == ""


def test_an_index_that_is_none_is_an_error(tmp_path: Path) -> None:
    files = {**hubs.WHOLE, "model.safetensors.index.json": "{bad"}
    with pytest.raises(ValueError, match="is not valid JSON"):
        snapshot.lacks(hubs.snapshot(tmp_path, NAME, files=files))
