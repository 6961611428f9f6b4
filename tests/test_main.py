import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from specworker.errors import ConfigurationError
from specworker.main import configure

HANDLER = Path(__file__).parents[1] / "handler.py"
QUEUE = {"RUNPOD_WEBHOOK_GET_JOB": "https://api.runpod.ai/v2/x/job-take/y?"}


def problems(**environment: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        configure(environment)
    return caught.value.problems


def folder(path: Path, **config: Any) -> str:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def test_an_empty_environment_is_the_demo_with_prompt_lookup() -> None:
    settings, decided = configure({})
    assert settings.serves_demo
    assert settings.where == "local"
    assert decided.config is not None
    assert decided.config["method"] == "ngram"
    assert (decided.notes, decided.problems) == ((), ())


def test_the_demo_speculates_as_the_user_says_where_the_user_says_anything() -> None:
    _, decided = configure({"SPECULATIVE_METHOD": "suffix", "NUM_SPECULATIVE_TOKENS": "8"})
    assert decided.config == {"method": "suffix", "num_speculative_tokens": 8}
    assert decided.notes == ()


def test_a_model_of_the_users_decodes_plainly_unless_told_to_speculate() -> None:
    settings, decided = configure({"MODEL_NAME": "org/model"})
    assert settings.model_name == "org/model"
    assert decided.config is None


def test_a_queue_worker_without_a_model_is_refused() -> None:
    expected = "MODEL_NAME: is not set; allowed: a hub id or a folder"
    assert problems(**QUEUE) == (expected,)
    assert problems(**QUEUE, MODEL_NAME=" ") == (expected,)
    assert problems(MODE="serverless") == (expected,)


@pytest.mark.parametrize(
    "named", [{"MODEL_NAME": "org/model"}, {"VLLM_CONFIG_FILE": "/options.yaml"}]
)
def test_a_queue_worker_with_a_model_is_not(named: dict[str, str]) -> None:
    settings, _ = configure(QUEUE | named)
    assert settings.where == "serverless"


def test_a_draft_decides_by_what_its_folder_holds(tmp_path: Path) -> None:
    draft = folder(tmp_path / "my-eagle-draft", model_type="medusa", num_heads=4)
    _, decided = configure({"MODEL_NAME": "org/model", "SPECULATIVE_MODEL": draft})
    assert decided.config == {"method": "medusa", "model": draft, "num_speculative_tokens": 4}


def test_a_draft_that_is_named_by_json_is_read_too(tmp_path: Path) -> None:
    draft = folder(tmp_path / "draft", model_type="medusa", num_heads=4)
    _, decided = configure({"SPECULATIVE_CONFIG": json.dumps({"model": draft})})
    assert decided.config == {"method": "medusa", "model": draft, "num_speculative_tokens": 4}


def test_a_draft_that_is_not_used_is_not_looked_for() -> None:
    _, decided = configure({"SPECULATIVE_METHOD": "ngram", "SPECULATIVE_MODEL": "/does/not/exist"})
    assert decided.config is not None
    assert len(decided.notes) == 1


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"MODEL_NAME": "/does/not/exist"}, "MODEL_NAME=/does/not/exist"),
        ({"SPECULATIVE_MODEL": "/does/not/exist"}, "SPECULATIVE_MODEL=/does/not/exist"),
        (
            {"SPECULATIVE_CONFIG": '{"model": "/does/not/exist"}'},
            "SPECULATIVE_CONFIG=/does/not/exist",
        ),
    ],
)
def test_a_folder_that_is_not_there_is_refused_by_the_variable_that_named_it(
    environment: dict[str, str], named: str
) -> None:
    assert problems(**environment) == (
        f"{named}: there is no such folder; allowed: a hub id or an existing folder",
    )


def test_a_draft_with_a_broken_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{bad")
    (problem,) = problems(SPECULATIVE_MODEL=str(tmp_path))
    assert problem.startswith(f"SPECULATIVE_MODEL={tmp_path}: its config.json is not valid JSON")


def test_every_source_of_problems_is_reported_at_once() -> None:
    found = problems(
        **QUEUE,
        MAX_CONCURRENCY="0",
        SPECULATIVE_MODEL="/does/not/exist",
        SPEC_DECODING_ACCEPTANCE_METHOD="typical_acceptance_sampler",
    )
    assert [problem.replace("=", ":").split(":")[0] for problem in found] == [
        "MAX_CONCURRENCY",
        "MODEL_NAME",
        "SPECULATIVE_MODEL",
        "SPEC_DECODING_ACCEPTANCE_METHOD",
    ]


def test_a_start_that_cannot_work_ends_at_once_with_one_message(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise AssertionError('vLLM was imported')")
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(tmp_path),
        "SPECULATIVE_MODEL": "/does/not/exist",
        "SPECULATIVE_CONFIG": "{bad",
        "NUM_SPECULATIVE_TOKENS": "-1",
        "NGRAM_PROMPT_LOOKUP_MIN": "4",
        "NGRAM_PROMPT_LOOKUP_MAX": "2",
        "HF_TOKEN": "hf_do_not_show_me",
    }
    started = time.monotonic()
    ended = subprocess.run(
        [sys.executable, str(HANDLER)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert time.monotonic() - started < 5
    assert ended.returncode == 2
    assert ended.stdout == ""
    head, *lines = ended.stderr.splitlines()
    assert head == "ERROR cannot start:"
    assert [line.split("=")[0] for line in lines] == [
        "  SPECULATIVE_CONFIG",
        "  NUM_SPECULATIVE_TOKENS",
        "  SPECULATIVE_MODEL",
        "  NGRAM_PROMPT_LOOKUP_MIN",
    ]
    assert all("; allowed: " in line for line in lines)
    assert "hf_do_not_show_me" not in ended.stderr
