"""What becomes of speculation that cannot be set up."""

import logging
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specworker import download, engine, fallback, main
from specworker.decision import Speculation
from specworker.errors import ConfigurationError, StartError
from specworker.hub_cache import Found
from specworker.settings import Settings
from tests import hubs

DECIDED = Speculation({"method": "eagle3"}, ("method eagle3 as set",), ("A: no effect",))
PROBLEMS = ("SPECULATIVE_MODEL=x: is\n not there", "K=9: is too many")


@pytest.mark.parametrize("environment", [{}, {"SPECULATIVE_FALLBACK": "off"}])
def test_unless_the_user_says_otherwise_the_start_fails(environment: dict[str, str]) -> None:
    assert fallback.instead(Settings.from_env(environment), DECIDED, PROBLEMS) is None


def test_plain_decoding_says_in_one_line_why_it_is_plain() -> None:
    plain = fallback.instead(Settings.from_env({"SPECULATIVE_FALLBACK": "On"}), DECIDED, PROBLEMS)
    assert plain is not None
    assert plain.config is None
    assert plain.fallback == "SPECULATIVE_MODEL=x: is not there; K=9: is too many"
    assert plain.line.startswith("speculation off (")
    assert "SPECULATIVE_FALLBACK" in plain.line
    assert plain.fallback in plain.line
    assert "\n" not in plain.line
    assert plain.notes == DECIDED.notes
    assert plain.problems == ()


WITH, WITHOUT = ConfigurationError(["with speculation"]), ConfigurationError(["without"])


class Starts:
    """Engines that start or fail as they are told to, in that order."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self._outcomes = [*outcomes]
        self.speculated: list[bool] = []

    def __call__(self, args: Namespace, **said: Any) -> SimpleNamespace:
        self.speculated.append(args.speculative_config is not None)
        if (outcome := self._outcomes.pop(0)) is not None:
            raise outcome
        return SimpleNamespace(**said)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        "MODEL_NAME": str(tmp_path),
        "NGRAM_PROMPT_LOOKUP_MAX": "4",
        "SPECULATIVE_FALLBACK": "on",
    }


def load(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], *outcomes: Exception | None
) -> tuple[Any, list[bool]]:
    starts = Starts(*outcomes)
    monkeypatch.setattr(engine, "Engine", starts)
    return main.load(environment, *main.configure(environment)), starts.speculated


def test_an_engine_that_does_not_start_with_speculation_starts_without(
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        loaded, speculated = load(monkeypatch, environment, RuntimeError("no weights"), None)
    assert speculated == [True, False]
    assert loaded.fallback == "RuntimeError: no weights"
    (line,) = [text for text in caplog.messages if "speculation" in text]
    assert line.startswith("speculation off (it could not be set up")
    assert "no weights" in line


def test_a_draft_that_cannot_be_downloaded_is_not_asked_for_again(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hubs.snapshot(tmp_path, "org/draft", architectures=["LlamaForCausalLM"])
    del environment["NGRAM_PROMPT_LOOKUP_MAX"]
    environment |= {"SPECULATIVE_MODEL": "org/draft", "HF_HUB_CACHE": str(tmp_path)}
    asked: list[str] = []

    def fetch(variable: str, model: Found, token: str | None) -> Found:
        asked.append(variable)
        if variable == "SPECULATIVE_MODEL":
            raise ConfigurationError([f"{variable}={model.name}: is gated"])
        return model

    monkeypatch.setattr(download, "fetch", fetch)
    loaded, speculated = load(monkeypatch, environment | {"PREFLIGHT": "warn"}, None)
    assert loaded.fallback == "SPECULATIVE_MODEL=org/draft: is gated"
    assert speculated == [False]
    assert asked == ["MODEL_NAME", "SPECULATIVE_MODEL", "MODEL_NAME"]


def test_the_start_without_speculation_is_the_one_whose_failure_is_told(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(monkeypatch, environment, WITH, WITHOUT)
    assert caught.value is WITHOUT
    with pytest.raises(StartError, match="second"):
        load(monkeypatch, environment, RuntimeError("first"), RuntimeError("second"))


def test_an_engine_is_started_once_where_plain_decoding_is_not_wanted_instead(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(monkeypatch, environment | {"SPECULATIVE_FALLBACK": "off"}, WITH)
    assert caught.value is WITH


def test_an_engine_that_did_not_speculate_is_not_started_again(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del environment["NGRAM_PROMPT_LOOKUP_MAX"]
    with pytest.raises(ConfigurationError) as caught:
        load(monkeypatch, environment, WITHOUT)
    assert caught.value is WITHOUT
