import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specworker import layer_cut, self_draft, volume
from specworker.errors import ConfigurationError
from tests import hubs

DEPTH = 4


def target(folder: Path, width: int = 4) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": DEPTH}))
    tensors = {f"model.layers.{layer}.mlp": torch.full((width,), layer) for layer in range(DEPTH)}
    save_file(tensors, folder / "model.safetensors")
    return folder


def made(folder: Path) -> list[float]:
    """The first value of each layer of a draft."""
    tensors = load_file(folder / "model.safetensors")
    return [float(tensors[name][0]) for name in sorted(tensors)]


def problem(*arguments: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        self_draft.build(*arguments)
    (line,) = refused.value.problems
    return line


def test_a_draft_is_made_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    folder = self_draft.build(target(tmp_path / "My-Model"), (0, 3), [home])
    assert folder.parent == home
    assert folder.name.startswith("My-Model-2-layers-")
    assert made(folder) == [0, 3]
    monkeypatch.setattr(layer_cut, "cut", None)
    assert self_draft.build(tmp_path / "My-Model", (0, 3), [home]) == folder
    assert [*home.iterdir()] == [folder]


def test_other_layers_are_another_draft(tmp_path: Path) -> None:
    model, home = target(tmp_path / "model"), tmp_path / "home"
    first = self_draft.build(model, (0, 3), [home])
    second = self_draft.build(model, (0, 2), [home])
    assert (made(first), made(second)) == ([0, 3], [0, 2])


def test_a_folder_whose_weights_were_replaced_gives_another_draft(tmp_path: Path) -> None:
    model, home = target(tmp_path / "model"), tmp_path / "home"
    before = self_draft.build(model, (1,), [home])
    time.sleep(0.01)
    tensors = {name: tensor + 10 for name, tensor in load_file(model / "model.safetensors").items()}
    save_file(tensors, model / "model.safetensors")
    after = self_draft.build(model, (1,), [home])
    assert (made(before), made(after)) == ([1], [11])


def test_a_snapshot_is_known_by_its_commit_wherever_it_lies(tmp_path: Path) -> None:
    model, home = target(tmp_path / "model"), tmp_path / "home"
    placed = [
        hubs.place(tmp_path / "a", "Acme/Model", model, "c0ffee"),
        hubs.place(tmp_path / "b", "acme/model", model, "c0ffee"),
        hubs.place(tmp_path / "c", "acme/model", model, "b0b"),
        hubs.place(tmp_path / "d", "acme/other", model, "c0ffee"),
    ]
    first, again, commit, other = (self_draft.build(folder, (0,), [home]) for folder in placed)
    assert first == again
    assert len({first, commit, other}) == 3
    assert first.name.startswith("acme--model-1-layers-")


def test_the_first_place_with_room_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = target(tmp_path / "model")
    size = sum(part.size for part in layer_cut.parts(model, (0,)))
    assert size == 4 * 8
    monkeypatch.setattr(self_draft, "MARGIN", 5 * self_draft.GIB)
    free = {"small": size + self_draft.MARGIN - 1, "enough": size + self_draft.MARGIN}
    monkeypatch.setattr(volume, "free_after_writing", lambda home: free[home.name])
    (tmp_path / "enough").mkdir()
    homes = [tmp_path / "small", tmp_path / "enough"]
    assert self_draft.build(model, (0,), homes).parent == tmp_path / "enough"
    assert problem(model, (1,), homes[:1]) == (
        "SPECULATIVE_METHOD=self: the draft needs 5.0 GiB of disk "
        f"({tmp_path / 'small'} has 5.0 GiB free); allowed: fewer layers in "
        "SPECULATIVE_SELF_LAYERS, or more room"
    )


def test_a_draft_is_found_in_a_place_that_is_full_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = target(tmp_path / "model")
    folder = self_draft.build(model, (0,), [tmp_path / "b"])
    monkeypatch.setattr(volume, "free_after_writing", lambda _: 0)
    assert self_draft.build(model, (0,), [tmp_path / "a", tmp_path / "b"]) == folder


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    model = target(tmp_path / "model")
    assert f"{tmp_path / 'file' / 'home'} cannot be written to (Not a directory)" in problem(
        model, (0,), [tmp_path / "file" / "home"]
    )


def test_a_model_of_another_layout_is_refused_by_name(tmp_path: Path) -> None:
    model = target(tmp_path / "model")
    (model / "config.json").write_text('{"text_config": {"num_hidden_layers": 4}}')
    line = problem(model, (0,), [tmp_path / "home"])
    assert line == (
        f"SPECULATIVE_METHOD=self: no draft can be made of {model}: its language model is one "
        "part of several (text_config in its config.json); allowed: another method, or a "
        "llama-like model in safetensors"
    )
    assert not (tmp_path / "home").exists()


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    model, home = target(tmp_path / "model"), tmp_path / "home"
    os.truncate(model / "model.safetensors", (model / "model.safetensors").stat().st_size - 1)
    assert "model.safetensors ends too early" in problem(model, (3,), [home])
    assert [*home.iterdir()] == []


def test_a_build_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    model, home = target(tmp_path / "model"), tmp_path / "home"
    program = (
        "import sys, time; from pathlib import Path; from specworker import layer_cut, self_draft\n"
        "layer_cut._copy_bytes = lambda *_: (print('writing', flush=True), time.sleep(60))\n"
        "self_draft.build(Path(sys.argv[1]), (0,), [Path(sys.argv[2])])"
    )
    command = [sys.executable, "-c", program, str(model), str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as building:
        assert building.stdout is not None
        assert building.stdout.readline() == b"writing\n"
        (work,) = home.iterdir()
        assert work.name.startswith(self_draft.UNFINISHED)
        building.send_signal(signal.SIGINT)
        building.communicate()
    assert [*home.iterdir()] == []


def test_what_a_killed_build_left_is_removed_a_day_later(tmp_path: Path) -> None:
    model, home = target(tmp_path / "model"), tmp_path / "home"
    old, new = home / f"{self_draft.UNFINISHED}old", home / f"{self_draft.UNFINISHED}new"
    for folder in (old, new):
        (folder / "draft").mkdir(parents=True)
    day_ago = time.time() - self_draft.ABANDONED - 60
    os.utime(old, (day_ago, day_ago))
    folder = self_draft.build(model, (0,), [home])
    assert {*home.iterdir()} == {new, folder}


def test_a_draft_whose_weights_vanished_is_made_again(tmp_path: Path) -> None:
    model, home = target(tmp_path / "model"), tmp_path / "home"
    folder = self_draft.build(model, (2,), [home])
    (folder / "model.safetensors").unlink()
    assert self_draft.build(model, (2,), [home]) == folder
    assert made(folder) == [2]


def test_another_process_may_be_quicker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, home = target(tmp_path / "model"), tmp_path / "home"
    cut = layer_cut.cut

    def cut_late(*arguments: Any) -> Path:
        written = cut(*arguments)
        shutil.copytree(written, home / written.name)
        return written

    monkeypatch.setattr(layer_cut, "cut", cut_late)
    folder = self_draft.build(model, (0, 1), [home])
    assert [*home.iterdir()] == [folder]
    assert made(folder) == [0, 1]


def test_the_progress_of_a_large_draft_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(layer_cut, "LARGE", 64)
    monkeypatch.setattr(layer_cut.logger.parent, "propagate", True)
    caplog.set_level(logging.INFO, "specworker")
    self_draft.build(target(tmp_path / "model"), (0, 1), [tmp_path / "home"])
    assert "1.0 of 1.0 GiB of the draft written" in caplog.text


def test_drafts_are_kept_on_the_volume_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    beside_the_demo = Path("/cache/specworker")
    assert self_draft.homes({}) == [beside_the_demo]
    assert self_draft.homes({"BASE_PATH": str(tmp_path / "absent")}) == [beside_the_demo]
    assert self_draft.homes({"BASE_PATH": str(tmp_path)}) == [
        tmp_path / "specworker",
        beside_the_demo,
    ]


# In vLLM's options.


def options(
    model: Path | str, config: Mapping[str, str] | None = None, quantization: str | None = None
) -> Namespace:
    whole: dict[str, Any] = {"method": "draft_model", "num_speculative_tokens": 3}
    whole |= config or {}
    return Namespace(
        model=str(model), quantization=quantization, hf_overrides={}, speculative_config=whole
    )


def test_the_draft_of_the_served_model_is_named_in_vllms_options(tmp_path: Path) -> None:
    args = options(target(tmp_path / "model"))
    self_draft.add(args, (0, 2), [tmp_path / "home"])
    (folder,) = (tmp_path / "home").iterdir()
    assert args.speculative_config == {
        "method": "draft_model",
        "num_speculative_tokens": 3,
        "model": str(folder),
    }
    assert made(folder) == [0, 2]


def test_a_draft_is_quantized_as_the_target_is_unless_told_otherwise(tmp_path: Path) -> None:
    model = target(tmp_path / "model")
    cases: list[tuple[dict[str, str], str]]
    cases = [({}, "fp8"), ({"quantization": "bitsandbytes"}, "bitsandbytes")]
    for given, expected in cases:
        args = options(model, given, "fp8")
        self_draft.add(args, (0,), [tmp_path / "home"])
        assert args.speculative_config["quantization"] == expected


@pytest.mark.parametrize("config", [{"model": "/models/draft"}, {"method": "ngram"}])
def test_options_that_say_otherwise_how_to_draft_stay(config: dict[str, str]) -> None:
    args = options("org/model", config)
    before = dict(args.speculative_config)
    self_draft.add(args, (0,), [])
    assert args.speculative_config == before


def test_overrides_that_a_draft_does_not_get_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(self_draft.logger.parent, "propagate", True)
    args = options(target(tmp_path / "model"))
    self_draft.add(args, (0,), [tmp_path / "home"])
    assert "HF_OVERRIDES" not in caplog.text
    args = options(tmp_path / "model")
    args.hf_overrides = {"rope_theta": 1.0}
    self_draft.add(args, (0,), [tmp_path / "home"])
    assert "HF_OVERRIDES: no effect on the draft of method self" in caplog.text


def test_a_target_whose_files_are_not_here_is_refused() -> None:
    with pytest.raises(ConfigurationError) as refused:
        self_draft.add(options("org/model"), (0,), [])
    (line,) = refused.value.problems
    assert line.startswith("SPECULATIVE_METHOD=self: the files of org/model are not here")
