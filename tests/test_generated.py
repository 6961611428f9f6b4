"""The Hub listing and the reference are made of the declarations, and the repository has them."""

import subprocess
import sys
from pathlib import Path

import pytest

from specworker import generated
from specworker.__main__ import main
from specworker.settings import Settings

ROOT = Path(__file__).parent.parent


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "handler.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_files_of_this_repository_are_current(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["docs", "--check"]) == 0, capsys.readouterr().err


def test_a_look_tells_of_each_file_that_differs_and_writes_nothing(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["docs", "--check"]) == 1
    told = capsys.readouterr().err
    assert [*generated.files()] == [line.split(":")[0] for line in told.splitlines()]
    assert [path.name for path in repository.iterdir()] == ["handler.py"]


def test_files_are_written_and_then_current(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["docs"]) == 0
    assert capsys.readouterr().err.count("written") == len(generated.files())
    assert main(["docs", "--check"]) == 0
    assert main(["docs"]) == 0
    assert capsys.readouterr().err == ""
    (repository / "docs/configuration.md").write_text("by hand")
    assert main(["docs", "--check"]) == 1
    assert capsys.readouterr().err.startswith("docs/configuration.md: differs")


def test_nothing_is_written_outside_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["docs"]) == 2
    assert "is not the worker's repository" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_every_variable_is_in_the_reference_with_what_it_means() -> None:
    page = generated.files()["docs/configuration.md"]
    for name, field in Settings.model_fields.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name.upper()}` |")]
        assert row.endswith(f"{field.description} |")


def test_what_a_new_variable_means_reaches_both_files(monkeypatch: pytest.MonkeyPatch) -> None:
    field = Settings.model_fields["max_concurrency"]
    monkeypatch.setattr(field, "description", "A new meaning.")
    assert all("A new meaning." in text for text in generated.files().values())


def test_the_command_needs_no_engine() -> None:
    said = "import sys; from specworker import generated; generated.files(); "
    said += "print('vllm' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", said], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]
