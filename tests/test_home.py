import os
import subprocess
import sys
from pathlib import Path

import pytest

from specworker import home


def test_who_has_a_home_keeps_it(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "USER": "someone"}
    home.place(environment)
    assert environment == {"HOME": str(tmp_path), "USER": "someone"}


@pytest.mark.parametrize("own", ["/dev/null", "/no/such/folder"])
def test_who_cannot_write_at_home_gets_one_for_themselves_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environment = {"HOME": own}
    home.place(environment)
    made = Path(environment["HOME"])
    assert made.parent == tmp_path
    assert made.stat().st_mode & 0o777 == 0o700
    again = {"HOME": own}
    home.place(again)
    assert again["HOME"] == str(made)  # a restart finds its caches


def test_a_link_that_somebody_put_there_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"specworker-{os.geteuid()}").symlink_to(elsewhere)
    environment = {"HOME": "/no/such/folder"}
    home.place(environment)
    assert Path(environment["HOME"]).resolve() != elsewhere


def test_a_user_whom_nobody_knows_has_home_and_name() -> None:
    code = (
        "import getpass, os, pathlib; os.setuid(54321); os.environ['HOME'] = '/';"
        "[os.environ.pop(name, None) for name in ('USER', 'LOGNAME', 'LNAME', 'USERNAME')];"
        "from specworker import home; home.place(os.environ);"
        "(pathlib.Path.home() / 'cache').touch(); print(getpass.getuser(), pathlib.Path.home())"
    )
    # Root's interpreter may lie where nobody else can read it, so the import comes first.
    code = "from specworker import home;" + code.replace("from specworker import home; ", "")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    name, folder = done.stdout.split()
    assert name == "54321"
    assert Path(folder).name == "specworker-54321"
