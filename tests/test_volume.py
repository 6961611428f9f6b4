import logging
from pathlib import Path

import pytest

from specworker import volume

ENDPOINT = {"RUNPOD_ENDPOINT_ID": "x"}
HUB = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")


def roomy(folder: Path) -> int:
    return volume.ROOM


def full(folder: Path) -> int:
    return volume.ROOM - 1


def read_only(folder: Path) -> int:
    raise OSError(30, "Read-only file system", str(folder))


def placed(root: Path) -> dict[str, str]:
    home = root / "huggingface-cache"
    return {
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HUGGINGFACE_HUB_CACHE": str(home / "hub"),
        "VLLM_CACHE_ROOT": str(root / "vllm-cache"),
    }


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"RUNPOD_POD_ID": "x"}, "/workspace"),
        (ENDPOINT, "/runpod-volume"),
        ({"RUNPOD_WEBHOOK_GET_JOB": "x", "RUNPOD_POD_ID": "x"}, "/runpod-volume"),
        (ENDPOINT | {"BASE_PATH": " /data "}, "/data"),
        (ENDPOINT | {"BASE_PATH": "none"}, "/runpod-volume"),
    ],
)
def test_the_volume_is_where_the_platform_mounts_it(
    environment: dict[str, str], expected: str | None
) -> None:
    assert volume.of(environment) == (expected and Path(expected))


def test_off_the_platform_nothing_is_placed_or_said() -> None:
    assert volume.placement({}, None, roomy) == ({}, [])


def test_a_volume_with_room_takes_every_cache(tmp_path: Path) -> None:
    assert volume.placement({}, tmp_path, roomy) == (placed(tmp_path), [])


def test_an_absent_volume_is_no_error_and_is_not_made(tmp_path: Path) -> None:
    absent = tmp_path / "volume"
    variables, (note,) = volume.placement({}, absent, volume.free_after_writing)
    assert variables == {}
    assert note.startswith(f"no volume at {absent} (No such file or directory): ")
    assert not absent.exists()


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        (read_only, "cannot be written to (Read-only file system)"),
        (full, "has 1.0 GiB free of the 1 GiB that it needs"),
    ],
)
def test_a_volume_that_is_read_only_or_full_takes_none(
    tmp_path: Path, probe: volume.Probe, reason: str
) -> None:
    variables, (models, compiled) = volume.placement({}, tmp_path, probe)
    assert variables == {}
    hub = tmp_path / "huggingface-cache" / "hub"
    assert models == f"{', '.join(HUB)}: not placed on the volume, {hub} {reason}"
    assert compiled.startswith("VLLM_CACHE_ROOT: not placed on the volume, ")


def test_a_cache_of_models_that_is_read_only_keeps_no_other_from_the_volume(
    tmp_path: Path,
) -> None:
    def probe(folder: Path) -> int:
        return read_only(folder) if folder.name == "hub" else volume.ROOM

    variables, (note,) = volume.placement({}, tmp_path, probe)
    assert variables == {"VLLM_CACHE_ROOT": str(tmp_path / "vllm-cache")}
    assert note.startswith("HF_HOME, ")


@pytest.mark.parametrize("name", HUB)
def test_a_user_who_placed_the_cache_of_models_is_left_alone(tmp_path: Path, name: str) -> None:
    variables, notes = volume.placement({name: "/mine"}, tmp_path, roomy)
    assert variables == {"VLLM_CACHE_ROOT": str(tmp_path / "vllm-cache")}
    assert notes == []


def test_a_user_who_placed_vllms_cache_is_left_alone(tmp_path: Path) -> None:
    variables, _ = volume.placement({"VLLM_CACHE_ROOT": "/mine"}, tmp_path, read_only)
    assert variables == {}


def test_a_folder_is_made_written_to_and_left_empty(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert volume.free_after_writing(folder) > 0
    assert list(folder.iterdir()) == []


def test_what_cannot_be_written_to_is_found_out_by_writing(tmp_path: Path) -> None:
    (tmp_path / "vllm-cache").touch()
    with pytest.raises(OSError, match="File exists"):
        volume.free_after_writing(tmp_path / "vllm-cache")


def test_a_place_that_takes_no_folder_cannot_be_written_to() -> None:
    with pytest.raises(OSError, match="/proc"):
        volume.free_after_writing(Path("/proc/hub"))


def test_placing_sets_the_variables_and_forgets_those_that_nobody_filled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume, "ROOM", 0)
    environment = {"BASE_PATH": str(tmp_path), "HF_HOME": "", "VLLM_CACHE_ROOT": "none"}
    volume.place(environment)
    assert environment == {"BASE_PATH": str(tmp_path)} | placed(tmp_path)


def test_placing_on_an_absent_volume_says_why_it_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("specworker"), "propagate", True)
    environment = {"BASE_PATH": str(tmp_path / "absent"), "HF_HOME": " "}
    with caplog.at_level(logging.INFO, "specworker"):
        volume.place(environment)
    assert environment == {"BASE_PATH": str(tmp_path / "absent")}
    assert f"no volume at {tmp_path / 'absent'}" in caplog.text
