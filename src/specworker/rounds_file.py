"""The rounds of a run in a file, as they are measured, so that a run that broke off goes on.

The first line says what is measured and with what; each other line is a round.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from io import BufferedRandom
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from specworker import provenance
from specworker.errors import ConfigurationError
from specworker.measured import Round
from specworker.values import shown

NAME = "rounds.jsonl"
ROUND = TypeAdapter(Round)
#: Of the file; another one is not read.
FORMAT = 1


@contextlib.contextmanager
def opened(
    folder: Path, plan: Mapping[str, Any], *, resumes: bool, say: Callable[[str], None]
) -> Iterator["RoundsFile"]:
    """The file of a run that begins, or goes on; of one that measures nothing none is left.

    Args:
        folder: where it is.
        plan: what is measured, as JSON.
        resumes: whether a run goes on.
        say: told of what is not used of it.

    Raises:
        ConfigurationError: the run does not go on, or there is one already.
    """
    if resumes:
        file = RoundsFile.resume(folder, plan)
        file.provenance |= {"resumed": provenance.now()}
    else:
        file = RoundsFile.begin(folder, plan, {"date": provenance.now()})
    for note in file.notes:
        say(note)
    try:
        yield file
    finally:
        file.close()
        if not (resumes or file.rounds):
            file.path.unlink()


class RoundsFile:
    """The rounds of a run.

    Attributes:
        path: where the file is.
        provenance: what the run was begun with.
        notes: what is not used of what was in it.
    """

    def __init__(
        self, path: Path, file: BufferedRandom, made_with: Mapping[str, Any], rounds: list[Round]
    ) -> None:
        self.path = path
        self._rounds = {_place(one): one for one in rounds}
        self.provenance = dict(made_with)
        self.notes: list[str] = []
        self._file = file

    @classmethod
    def begin(
        cls, folder: Path, plan: Mapping[str, Any], made_with: Mapping[str, Any]
    ) -> "RoundsFile":
        """Begin a run in a folder, which is made.

        Args:
            folder: where the file goes.
            plan: what is measured, as JSON; a run goes on with the same alone.
            made_with: what it is measured with, as JSON.

        Raises:
            ConfigurationError: there is a run in it.
        """
        path = folder / NAME
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("x+b")
        except FileExistsError:
            raise ConfigurationError(
                [f"--out {folder}: there is a run in it; allowed: another folder, or --resume"]
            ) from None
        begun = cls(path, file, made_with, [])
        head = {"format": FORMAT, "plan": plan, "provenance": made_with}
        begun._write(json.dumps(head, ensure_ascii=False).encode())
        return begun

    @classmethod
    def resume(cls, folder: Path, plan: Mapping[str, Any]) -> "RoundsFile":
        """Go on with the run in a folder. A line that was cut off is dropped.

        Raises:
            ConfigurationError: there is no run in it, or one with another plan.
        """
        path = folder / NAME
        try:
            file = path.open("r+b")
        except OSError as error:
            raise ConfigurationError(
                [
                    f"--resume {folder}: {NAME} cannot be read ({error.strerror}); allowed: the "
                    "folder of an earlier run"
                ]
            ) from None
        content = file.read()
        whole, _, cut = content.rpartition(b"\n")
        lines = whole.splitlines()
        try:
            head = json.loads(lines[0])
            rounds = [ROUND.validate_json(line) for line in lines[1:]]
            begun, made_with = dict(head["plan"]), head["provenance"]
            is_ours = head["format"] == FORMAT
        except (ValueError, LookupError, TypeError) as error:
            file.close()
            raise ConfigurationError(
                [
                    f"--resume {folder}: {NAME} is no file of rounds ({shown(str(error))}); "
                    "allowed: the folder of an earlier run"
                ]
            ) from None
        if not is_ours:
            begun = {"format": head["format"]}
        if differences := _differences(begun, json.loads(json.dumps(plan))):
            file.close()
            raise ConfigurationError(
                [f"--resume {folder}: that run has another {text}" for text in differences]
            )
        found = cls(path, file, made_with, rounds)
        if cut:
            found.notes.append(f"{path}: its last line was cut off and is not used")
            file.seek(len(content) - len(cut))
            file.truncate()
        return found

    @property
    def rounds(self) -> list[Round]:
        """The rounds in it; of one that was measured again, the last."""
        return list(self._rounds.values())

    def add(self, measured: Round) -> None:
        """Write a round, so that it is there even if the machine fails."""
        self._rounds[_place(measured)] = measured
        self._write(ROUND.dump_json(measured))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: bytes) -> None:
        self._file.write(line + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def has_rounds(folder: Path) -> bool:
    """Whether a run in a folder has measured anything that it can go on with."""
    try:
        return (folder / NAME).read_bytes().count(b"\n") > 1
    except OSError:
        return False


def _place(one: Round) -> tuple[str, str, int, int]:
    return one.trial, one.variant, one.concurrency, one.number


def _differences(begun: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """What tells two plans apart, a line each."""
    names = dict.fromkeys((*wanted, *begun))
    return [
        f"{name.replace('_', ' ')}: {_value(begun, name)}; allowed: the same, not "
        f"{_value(wanted, name)}"
        for name in names
        if begun.get(name) != wanted.get(name)
    ]


def _value(plan: Mapping[str, Any], name: str) -> str:
    return shown(json.dumps(plan[name], ensure_ascii=False), 200) if name in plan else "none"
