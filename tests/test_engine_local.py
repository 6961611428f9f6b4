"""A local run: the completion to stdout as it is generated, figures to stderr."""

import asyncio
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specworker import local
from specworker.engine import Engine
from tests.engines import Rack, outputs

ROOT = Path(__file__).parent.parent


@pytest.mark.engine("ngram")
@pytest.mark.parametrize(
    ("job_input", "status", "prints"),
    [
        (
            {"prompt": "One, two,", "stream": True, "sampling_params": {"temperature": 0}},
            0,
            " three",
        ),
        ({"prompt": "One, two,", "sampling_params": {"n": 2, "temperature": 1}}, 0, "\n"),
        ({"route": "/v1/models"}, 0, '"object": "list"'),
        ({"prompt": "x", "sampling_params": {"max_tokens": -1}}, 1, "\n"),
    ],
)
async def test_a_job_is_printed_and_its_figures_shown(
    engine: Engine,
    capsys: pytest.CaptureFixture[str],
    job_input: Any,
    status: int,
    prints: str,
) -> None:
    messages = io.StringIO()
    ended = await local.answer(engine, {"input": job_input}, 0.05, Console(file=messages))
    assert ended == status
    assert prints in capsys.readouterr().out
    assert "mean acceptance length" in messages.getvalue()
    assert ("max_tokens" in messages.getvalue()) == (status == 1)


@pytest.mark.engine("self")
async def test_a_model_is_served_under_the_name_the_user_wrote_wherever_it_lies(
    engine: Engine,
) -> None:
    (models,) = await outputs(engine, {"route": "/v1/models"})
    assert [model["id"] for model in models["data"]] == ["Acme/Target-1B"]
    asked = {"model": "Acme/Target-1B", "prompt": "One,", "max_tokens": 2}
    (answer,) = await outputs(engine, {"route": "/v1/completions", "body": asked})
    assert answer["model"] == "Acme/Target-1B"


@pytest.mark.engine("of its own")
async def test_the_container_entry_runs_the_demo_with_ngram_speculation(rack: Rack) -> None:
    await rack.close()
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "handler.py"],
        cwd=ROOT,
        env={name: text for name, text in os.environ.items() if not name.startswith("VLLM_")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "token by token; only the waiting is shorter" in done.stdout
    assert "method=ngram" in done.stderr
    assert "acceptance by position" in done.stderr
    assert "Traceback" not in done.stderr
    assert "leaked" not in done.stderr
    job = json.loads((ROOT / "test_input.json").read_text())
    assert job["input"]["openai_input"]["stream"]
