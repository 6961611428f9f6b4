"""Files in one piece."""

from pathlib import Path
from typing import NoReturn

import pytest

from specworker import atomic


def test_what_was_there_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")
    assert atomic.write(path, "über") == path
    assert path.read_text() == "über"
    atomic.write(path, b"\x00\x01")
    assert path.read_bytes() == b"\x00\x01"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_finished_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> NoReturn:
        raise OSError("the disk is full")

    path = tmp_path / "a.txt"
    path.write_text("before")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="full"):
        atomic.write(path, "after")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_others_may_read_what_they_may_read_of_any_file(tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    usual.touch()
    assert atomic.write(tmp_path / "a", "").stat().st_mode == usual.stat().st_mode
