"""A draft that does not load, and an engine that serves without it and says so."""

import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from specworker import main
from tests.engines import Rack, complete, events, outputs

REASON = "speculation is off: "


@pytest.mark.engine("of its own")
async def test_a_draft_without_weights_gives_plain_decoding_that_says_so(
    rack: Rack,
    environments: Mapping[str, Mapping[str, str]],
    demo_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await rack.close()
    weights = shutil.ignore_patterns("*.safetensors*")
    draft = shutil.copytree(demo_folder, tmp_path / "draft", ignore=weights)
    own = {
        "SPECULATIVE_MODEL": str(draft),
        "SPECULATIVE_FALLBACK": "on",
        "PREFLIGHT": "warn",  # so that it is vLLM which finds the fault
    }
    # The processes of vLLM find the place of their log in their own environment.
    for name, text in {**environments["plain"], **own}.items():
        monkeypatch.setenv(name, text)
    with caplog.at_level(logging.WARNING, logger="specworker"):
        engine = main.load(os.environ, *main.configure(os.environ))
    try:
        (line,) = [text for text in caplog.messages if text.startswith("speculation off (")]
        assert "Cannot find any model weights" in line
        assert engine.fallback is not None
        assert "Cannot find any model weights" in engine.fallback
        answer = await complete(engine, "One, two,", max_tokens=4)
        (note,) = answer["metrics"]["notes"]
        assert note.startswith(REASON + "RuntimeError: Cannot find any model weights")
        assert str(tmp_path) not in note
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "min_p": 0.1}
        pieces = await outputs(engine, {"openai_input": {**chat, "stream": True}})
        assert events(pieces)[0]["metrics"]["notes"] == [note]
        (models,) = await outputs(engine, {"route": "/v1/models"})
        assert "metrics" not in models
    finally:
        await engine.aclose()
        os.environ.pop("VLLM_LOGGING_CONFIG_PATH")
