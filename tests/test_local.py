import json
from pathlib import Path
from typing import Any

import pytest

from specworker import local
from specworker.errors import ConfigurationError

JOB = {"input": {"prompt": "Hi — é"}}


def problem(text: str | None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        local.job(text)
    (line,) = caught.value.problems
    return line


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_job_on_the_command_line_wins_over_the_file(here: Path) -> None:
    (here / "test_input.json").write_text('{"input": "other"}')
    assert local.job(json.dumps(JOB)) == JOB


def test_the_job_in_the_file_is_found_in_the_working_directory(here: Path) -> None:
    (here / "test_input.json").write_text(json.dumps(JOB, ensure_ascii=False))
    assert local.job(None) == JOB


def test_a_missing_file_is_a_problem_with_a_way_out(here: Path) -> None:
    line = problem(None)
    assert line.startswith("test_input.json: not found")
    assert "--test_input" in line


@pytest.mark.parametrize("text", ["{bad", ""])
def test_a_job_that_is_not_json_is_a_problem_of_its_source(here: Path, text: str) -> None:
    assert problem(text).startswith("--test_input: is not valid JSON (")
    (here / "test_input.json").write_text(text)
    assert problem(None).startswith("test_input.json: is not valid JSON (")


@pytest.mark.parametrize("text", ["[]", "7", '"input"', "null", "{}", '{"prompt": "Hi"}'])
def test_json_that_is_no_job_is_a_problem_of_its_source(here: Path, text: str) -> None:
    assert problem(text) == '--test_input: is no job; allowed: {"input": {…}}'


def event(**choice: Any) -> str:
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (event(delta={"role": "assistant", "content": ""}), ""),
        (event(delta={"content": "He"}) + event(delta={"content": "llo é"}), "Hello é"),
        (event(text="He") + event(text="llo"), "Hello"),
        (event(delta={"content": "Hi"}) + 'data: {"choices": []}\n\ndata: [DONE]\n\n', "Hi"),
        (event(delta={}) + event(delta={"content": None}), ""),
        ("data: [DONE]\n\n", ""),
        ("event: ping\n" + event(delta={"content": "Hi"}), "Hi"),
        ({"choices": [{"text": "Hello"}]}, "Hello"),
        ({"choices": [{"message": {"content": "Hello"}}]}, "Hello"),
        ({"choices": [{"text": "a"}, {"text": "b"}]}, "ab"),
    ],
)
def test_a_completion_reads_as_its_text(output: Any, text: str) -> None:
    assert local.readable(output) == text


@pytest.mark.parametrize(
    "output",
    [
        {"data": [{"id": "é"}]},
        {"choices": [{"message": {"content": None, "tool_calls": [{"id": "1"}]}}]},
        {"choices": []},
        [1, 2],
        7,
        None,
    ],
)
def test_any_other_output_reads_as_json(output: Any) -> None:
    text = local.readable(output)
    assert json.loads(text) == output
    assert "\\u" not in text
