"""What is looked at before a start. No engine starts."""

import json
import logging
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from builder import tiny
from specworker import engine, inspection
from specworker.decision import Speculation
from specworker.errors import ConfigurationError
from specworker.findings import Finding
from specworker.hub_cache import Found, Models
from specworker.main import configure
from specworker.settings import Settings
from tests import hubs


@pytest.fixture(scope="module")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, a small draft of its family, that draft padded, and another family's."""
    folder = tmp_path_factory.mktemp("models")
    tiny.write(folder / "target", layers=24)
    tiny.write(folder / "draft", layers=1)
    tiny.write(folder / "padded", layers=1, padding=8)
    other = tiny.write(folder / "other", layers=1)
    text = (other / "tokenizer.json").read_text()
    # The words change places, so that the same ids mean other words.
    (other / "tokenizer.json").write_text(text.replace('"w1"', '"x"').replace('"w2"', '"w1"'))
    return folder


def looked(
    environment: dict[str, str],
) -> tuple[Namespace, Speculation, list[str]]:
    settings, decided, models = configure(environment)
    args, _ = engine.arguments(environment, decided.config, {})
    decided, findings = inspection.look(args, settings, decided, models)
    return args, decided, [finding.text for finding in findings]


def named(folder: Path, draft: str, **variables: str) -> dict[str, str]:
    pair = {"MODEL_NAME": str(folder / "target"), "SPECULATIVE_MODEL": str(folder / draft)}
    return pair | {"MAX_NUM_SEQS": "8"} | variables


def test_a_small_draft_of_the_targets_family_stays_as_it_was_decided(tiny_models: Path) -> None:
    args, decided, findings = looked(named(tiny_models, "draft"))
    assert findings == []
    assert args.speculative_config == decided.config
    assert "use_heterogeneous_vocab" not in decided.line


def test_a_draft_with_a_padded_embedding_is_mapped_and_the_log_says_why(tiny_models: Path) -> None:
    args, decided, findings = looked(named(tiny_models, "padded"))
    assert findings == []
    assert args.speculative_config == decided.config
    assert args.speculative_config["use_heterogeneous_vocab"] is True
    assert "use_heterogeneous_vocab=True" in decided.line
    assert "the draft has the target's tokenizer, and 41 embeddings for 33" in decided.line


def test_a_draft_of_another_family_is_found_though_its_size_is_the_targets(
    tiny_models: Path,
) -> None:
    args, decided, (finding,) = looked(named(tiny_models, "other"))
    assert "2 of 33 token ids mean another token than the target's, such as 1: 'x'" in finding
    assert args.speculative_config == decided.config


def test_another_tokenizer_of_the_targets_is_the_one_that_counts(tiny_models: Path) -> None:
    environment = named(tiny_models, "other", TOKENIZER_NAME=str(tiny_models / "other"))
    assert looked(environment)[2] == []
    # Of one on the hub nothing is known.
    assert looked(environment | {"TOKENIZER_NAME": "org/elsewhere"})[2] == []


def test_options_of_vllm_count_wherever_they_come_from(tiny_models: Path, tmp_path: Path) -> None:
    options = tmp_path / "options.yaml"
    options.write_text(f"model: {tiny_models / 'target'}\nmax-num-seqs: 4096\n")
    environment = named(tiny_models, "draft", VLLM_CONFIG_FILE=str(options))
    del environment["MODEL_NAME"], environment["MAX_NUM_SEQS"]
    (finding,) = looked(environment)[2]
    assert finding.startswith("MAX_NUM_BATCHED_TOKENS=2048: 4096 running requests with K=3 need")
    (finding,) = looked(environment | {"VLLM_EXTRA_ARGS": "--max-num-seqs 1024"})[2]
    assert "1024 running requests" in finding


def test_a_speculative_config_of_vllms_own_option_is_looked_at_in_its_name(
    tiny_models: Path,
) -> None:
    own = {"method": "draft_model", "model": str(tiny_models / "other"), "depth": 3}
    extra = f"--speculative-config '{json.dumps({**own, 'num_speculative_tokens': 2})}'"
    _, decided, findings = looked(named(tiny_models, "draft", VLLM_EXTRA_ARGS=extra))
    assert [finding.split("=")[0] for finding in findings] == [
        "--speculative-config: depth: vLLM has no such key",
        "--speculative-config: model",
    ]
    assert decided.config is not None
    assert decided.config["num_speculative_tokens"] == 2


def test_plain_decoding_is_not_looked_at(tiny_models: Path) -> None:
    args, decided, findings = looked({"MODEL_NAME": str(tiny_models / "target")})
    assert (args.speculative_config, decided.config, findings) == (None, None, [])
    environment = named(tiny_models, "other", VLLM_EXTRA_ARGS="--speculative-config null")
    args, decided, findings = looked(environment)
    assert (args.speculative_config, decided.config, findings) == (None, None, [])


def test_a_broken_target_is_named_by_what_named_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{bad")
    for environment, variable in (
        ({"MODEL_NAME": str(tmp_path)}, "MODEL_NAME"),
        ({"MODEL_NAME": "org/x", "VLLM_EXTRA_ARGS": f"--model {tmp_path}"}, "--model"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            looked({**environment, "SPECULATIVE_METHOD": "mtp"})
        assert refused.value.problems[0].startswith(f"{variable}={tmp_path}: its config.json is")


def test_models_on_the_hub_are_looked_at_by_their_small_files(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for model in ("target", "other"):
        folder = hubs.place(tmp_path, f"org/{model}", tiny_models / model)
        (folder / "model.safetensors").unlink()
    environment = {"MODEL_NAME": "org/target", "SPECULATIVE_MODEL": "org/other"}
    _, decided, (finding,) = looked({**environment, "HF_HUB_CACHE": str(tmp_path)})
    assert finding.startswith("SPECULATIVE_MODEL=org/other: 2 of 33 token ids")
    assert decided.config is not None
    assert decided.config["model"] == "org/other"


def test_a_hub_that_is_out_of_reach_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def download(repository: str, *_: Any, **__: Any) -> str:
        asked.append(repository)
        raise ConnectionError

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    _, _, findings = looked({"MODEL_NAME": "org/target", "SPECULATIVE_MODEL": "org/draft"})
    assert findings == []
    assert asked == ["org/draft"]
    looked({"MODEL_NAME": "org/target", "NGRAM_PROMPT_LOOKUP_MAX": "4"})
    assert asked == ["org/draft"]


def test_a_cached_model_is_looked_at_where_it_is(
    tiny_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    settings, decided, _ = configure({"MODEL_NAME": "Org/T", "SPECULATIVE_MODEL": "Org/D"})
    args, _ = engine.arguments({"MODEL_NAME": "Org/T"}, decided.config, {})
    models = Models(
        Found("Org/T", str(tiny_models / "target")), Found("Org/D", str(tiny_models / "padded"))
    )
    decided, _ = inspection.look(args, settings, decided, models)
    assert decided.config is not None
    assert decided.config["use_heterogeneous_vocab"] is True


ERRORS = [Finding("error", "one"), Finding("error", "two", unfit=False)]
WARNING = Finding("warning", "three")


def reported(caplog: pytest.LogCaptureFixture, **settings: Any) -> list[str]:
    with caplog.at_level(logging.INFO, "specworker"):
        inspection.report([*ERRORS, WARNING], Settings(**settings))
    return [record.message for record in caplog.records if record.levelname == "WARNING"]


def test_errors_stop_the_start_together_and_warnings_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        reported(caplog)
    assert refused.value.problems == ("one", "two")
    assert [record.message for record in caplog.records] == ["three"]


def test_errors_are_warnings_where_the_user_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert reported(caplog, preflight="warn") == ["one", "two", "three"]


def test_the_decision_before_is_left_as_it_is(tiny_models: Path) -> None:
    environment = named(tiny_models, "padded")
    settings, decided, models = configure(environment)
    before = replace(decided, config=dict(decided.config or {}))
    args, _ = engine.arguments(environment, decided.config, {})
    inspection.look(args, settings, decided, models)
    assert decided == before
