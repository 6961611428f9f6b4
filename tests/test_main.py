import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from specworker import baked, download
from specworker.errors import ConfigurationError
from specworker.hub_cache import Found, Models
from specworker.main import V2_RUNNER, configure, load
from tests import hubs

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
    settings, decided, _ = configure({})
    assert settings.serves_demo
    assert settings.where == "local"
    assert decided.config is not None
    assert decided.config["method"] == "ngram"
    assert (decided.notes, decided.problems) == ((), ())


def test_the_demo_speculates_as_the_user_says_where_the_user_says_anything() -> None:
    _, decided, _ = configure({"SPECULATIVE_METHOD": "suffix", "NUM_SPECULATIVE_TOKENS": "8"})
    assert decided.config == {"method": "suffix", "num_speculative_tokens": 8}
    assert decided.notes == ()


def test_a_model_of_the_users_decodes_plainly_unless_told_to_speculate() -> None:
    settings, decided, _ = configure({"MODEL_NAME": "org/model"})
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
    settings, *_ = configure(QUEUE | named)
    assert settings.where == "serverless"


def test_a_draft_decides_by_what_its_folder_holds(tmp_path: Path) -> None:
    draft = folder(tmp_path / "my-eagle-draft", model_type="medusa", num_heads=4)
    _, decided, _ = configure({"MODEL_NAME": "org/model", "SPECULATIVE_MODEL": draft})
    assert decided.config == {"method": "medusa", "model": draft, "num_speculative_tokens": 4}


def test_a_draft_that_is_named_by_json_is_read_too(tmp_path: Path) -> None:
    draft = folder(tmp_path / "draft", model_type="medusa", num_heads=4)
    _, decided, _ = configure({"SPECULATIVE_CONFIG": json.dumps({"model": draft})})
    assert decided.config == {"method": "medusa", "model": draft, "num_speculative_tokens": 4}


def test_a_draft_that_is_not_used_is_not_looked_for() -> None:
    _, decided, models = configure(
        {"SPECULATIVE_METHOD": "ngram", "SPECULATIVE_MODEL": "/does/not/exist"}
    )
    assert models.draft is None
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


TARGET, DRAFT = "Org/Target-7B", "Org/My-Eagle-Draft"


@pytest.mark.parametrize("name_of_folder", [str, str.lower])
def test_a_cached_target_and_draft_start_without_a_network(
    tmp_path: Path, name_of_folder: Callable[[str], str]
) -> None:
    target = hubs.snapshot(tmp_path, name_of_folder(TARGET))
    draft = hubs.snapshot(tmp_path, name_of_folder(DRAFT), model_type="medusa", num_heads=4)
    settings, decided, models = configure(
        {
            "MODEL_NAME": TARGET,
            "SPECULATIVE_MODEL": DRAFT,
            "HF_HUB_CACHE": str(tmp_path),
            "HF_HUB_OFFLINE": "1",
        }
    )
    assert settings.model_name == TARGET
    assert decided.config == {"method": "medusa", "model": DRAFT, "num_speculative_tokens": 4}
    assert models == (Found(TARGET, str(target)), Found(DRAFT, str(draft)))


def test_target_and_draft_are_found_at_their_revisions(tmp_path: Path) -> None:
    for name in (TARGET, DRAFT):
        hubs.snapshot(tmp_path, name)
        hubs.snapshot(tmp_path, name, "b0b", refs=("v2",))
    named = {"HF_HUB_CACHE": str(tmp_path), "MODEL_NAME": TARGET, "MODEL_REVISION": "v2"}
    by_variables = {"SPECULATIVE_MODEL": DRAFT, "SPECULATIVE_MODEL_REVISION": "v2"}
    by_json = {"SPECULATIVE_CONFIG": json.dumps({"model": DRAFT, "revision": "v2"})}
    for drafted in (by_variables, by_json):
        *_, models = configure(named | drafted)
        assert [Path(found.place).name for found in models if found] == ["b0b", "b0b"]


def test_a_cache_on_a_volume_is_read_though_others_are_placed_elsewhere(tmp_path: Path) -> None:
    on_volume = tmp_path / "volume" / "huggingface-cache" / "hub"
    target = hubs.snapshot(on_volume, TARGET.lower())
    *_, models = configure(
        {
            "MODEL_NAME": TARGET,
            "BASE_PATH": str(tmp_path / "volume"),
            "HF_HUB_CACHE": str(tmp_path / "mine"),
        }
    )
    assert models.target == Found(TARGET, str(target))


def test_models_that_no_cache_holds_whole_are_refused_at_once_without_a_network(
    tmp_path: Path,
) -> None:
    draft = hubs.snapshot(tmp_path, DRAFT)
    hubs.vanish(draft)
    target, speculative = problems(
        MODEL_NAME=TARGET,
        SPECULATIVE_MODEL=DRAFT,
        HF_HUB_CACHE=str(tmp_path),
        HF_HUB_OFFLINE="1",
    )
    assert target.startswith(f"MODEL_NAME={TARGET}: HF_HUB_OFFLINE is set and no cache holds")
    assert speculative.startswith(f"SPECULATIVE_MODEL={DRAFT}: HF_HUB_OFFLINE is set and no cache")
    assert str(draft) in speculative


def test_a_target_in_a_folder_or_a_cache_drafts_for_itself(tmp_path: Path) -> None:
    local = folder(tmp_path / "target", num_hidden_layers=10)
    hubs.snapshot(tmp_path, TARGET.lower(), num_hidden_layers=20)
    for name, last in ((local, 9), (TARGET, 19)):
        _, decided, models = configure(
            {
                "MODEL_NAME": name,
                "SPECULATIVE_METHOD": "self",
                "SPECULATIVE_SELF_LAYERS": "2",
                "HF_HUB_CACHE": str(tmp_path),
                "HF_HUB_OFFLINE": "1",
            }
        )
        assert decided.layers == (0, last)
        assert models.draft is None


def test_the_demo_drafts_for_itself(demo_folder: Path) -> None:
    _, decided, models = configure({"SPECULATIVE_METHOD": "self"})
    assert decided.config == {"method": "draft_model", "num_speculative_tokens": 1}
    assert decided.layers is not None
    assert len(decided.layers) == 24
    assert models == (None, None)


def test_a_target_that_only_a_file_of_options_names_cannot_draft_for_itself() -> None:
    assert problems(VLLM_CONFIG_FILE="/options.yaml", SPECULATIVE_METHOD="self") == (
        "SPECULATIVE_METHOD=self: needs MODEL_NAME, a hub id or a folder",
    )


def test_a_target_that_cannot_draft_for_itself_stops_the_start_or_decodes_plainly(
    tmp_path: Path,
) -> None:
    environment = {
        "MODEL_NAME": folder(tmp_path / "target", model_type="gpt2", n_layer=12),
        "SPECULATIVE_METHOD": "self",
    }
    (problem,) = problems(**environment)
    assert "num_hidden_layers=None" in problem
    _, decided, _ = configure({**environment, "SPECULATIVE_FALLBACK": "on"})
    assert (decided.config, decided.layers) == (None, None)
    assert problem in decided.line


@pytest.fixture
def undownloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A target and a draft on the hub of which no more than the small files are here."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(download, "fetch_all", lambda *_: pytest.fail("something was downloaded"))
    for name, words in ((TARGET, ("a", "b", "c")), (DRAFT, ("a", "c", "b"))):
        vocabulary = json.dumps({word: index for index, word in enumerate(words)})
        files = {"vocab.json": vocabulary}
        hubs.snapshot(tmp_path, name, files=files, vocab_size=3, max_position_embeddings=64)
    return {
        "MODEL_NAME": TARGET,
        "SPECULATIVE_MODEL": DRAFT,
        "SPECULATIVE_METHOD": "draft_model",
        "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE": "2",
        "SPECULATIVE_MAX_MODEL_LEN": "65",
        "MAX_NUM_SEQS": "1024",
        "HF_HUB_CACHE": str(tmp_path),
    }


FOUND = [
    f"SPECULATIVE_MODEL={DRAFT}: 2 of 3 token ids mean another token than the target's, such as "
    "1: 'c' for 'b'",
    "SPECULATIVE_MAX_MODEL_LEN=65: is above the target's; allowed: 1 to 64",
    "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE=2: vLLM's draft models are spread as the target is",
]


def downloads(monkeypatch: pytest.MonkeyPatch) -> list[Models]:
    """Have a download fail, and keep what was to be downloaded."""
    fetched: list[Models] = []

    def fetch_all(models: Models, _: str | None) -> Models:
        fetched.append(models)
        raise ConfigurationError(["the download began"])

    monkeypatch.setattr(download, "fetch_all", fetch_all)
    return fetched


def test_a_start_stops_with_all_findings_before_anything_is_downloaded(
    undownloaded: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigurationError) as stopped:
        load(undownloaded, *configure(undownloaded))
    for problem, expected in zip(stopped.value.problems, FOUND, strict=True):
        assert problem.startswith(expected)
    assert any("MAX_NUM_BATCHED_TOKENS=2048: 1024 running" in line for line in caplog.messages)


def test_a_user_may_start_in_spite_of_findings(
    undownloaded: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fetched = downloads(monkeypatch)
    environment = undownloaded | {"PREFLIGHT": "warn"}
    with pytest.raises(ConfigurationError, match="the download began"):
        load(environment, *configure(environment))
    assert [model.name for model in fetched[0] if model] == [TARGET, DRAFT]
    for expected in FOUND:
        assert any(line.startswith(expected) for line in caplog.messages)


@pytest.mark.parametrize(
    ("changed", "runner"),
    [
        ({}, "0"),
        ({"SPECULATIVE_METHOD": "prediction"}, "0"),
        ({"SPECULATIVE_PREDICTION": "false"}, None),
        ({"SPEC_DECODING_ACCEPTANCE_METHOD": "block"}, None),
        ({V2_RUNNER: "1"}, "1"),
        ({"SPECULATIVE_METHOD": "suffix"}, None),
    ],
    ids=str,
)
def test_lookups_run_where_predictions_are_taken_unless_the_user_says_otherwise(
    undownloaded: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str],
    runner: str | None,
) -> None:
    environment = {
        "MODEL_NAME": TARGET,
        "SPECULATIVE_METHOD": "ngram",
        "HF_HUB_CACHE": undownloaded["HF_HUB_CACHE"],
        "MAX_NUM_SEQS": "4",
    } | changed
    told: list[str | None] = []

    def fetch_all(*_: Any) -> Models:
        told.append(environment.get(V2_RUNNER))
        raise ConfigurationError(["the download began"])

    monkeypatch.setattr(download, "fetch_all", fetch_all)
    with pytest.raises(ConfigurationError, match="the download began"):
        load(environment, *configure(environment))
    assert told == [runner]
    assert environment.get(V2_RUNNER) == changed.get(V2_RUNNER)  # a start that failed


def test_a_draft_that_does_not_fit_ends_in_plain_decoding_where_the_user_says_so(
    undownloaded: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fetched = downloads(monkeypatch)
    environment = undownloaded | FALLBACK
    with pytest.raises(ConfigurationError, match="the download began"):
        load(environment, *configure(environment))
    assert [model.name for model in fetched[0] if model] == [TARGET]
    (line,) = (line for line in caplog.messages if line.startswith("speculation off"))
    assert all(expected in line for expected in FOUND)


def test_an_unknown_key_of_vllms_config_stops_the_start_with_the_nearest_one(
    undownloaded: dict[str, str],
) -> None:
    config = {"method": "ngram", "prompt_lookup_maxi": 4, "num_speculative_tokens": 2}
    environment = {"SPECULATIVE_CONFIG": json.dumps(config), **undownloaded}
    with pytest.raises(ConfigurationError) as stopped:
        load(environment, *configure(environment))
    assert stopped.value.problems == (
        "SPECULATIVE_CONFIG: prompt_lookup_maxi: vLLM has no such key; "
        "did you mean prompt_lookup_max?",
    )


def test_the_hubs_client_is_not_imported_before_the_caches_are_placed() -> None:
    said = "import sys, specworker.main; print('huggingface_hub' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"


def test_a_variable_that_would_have_vllm_patched_has_no_effect(tmp_path: Path) -> None:
    own = {"MODE": "local", "ARCTIC_INFERENCE_ENABLED": "1", "SPECULATIVE_METHOD": "suffix"}
    ended = subprocess.run(
        [sys.executable, HANDLER, "--test_input", "{bad"],
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ARCTIC_INFERENCE_ENABLED: no effect; " in ended.stderr


def test_a_start_finds_a_home_and_the_images_own_models(tmp_path: Path) -> None:
    for name in (TARGET, DRAFT):
        hubs.snapshot(tmp_path, name)
    models = {"MODEL_NAME": TARGET, "SPECULATIVE_MODEL": DRAFT}
    baked.write(tmp_path, {key: baked.Baked(name, None, "c0ffee") for key, name in models.items()})
    own = {"HOME": "/no/such/folder", "BAKED_MODELS": str(tmp_path), "SPECULATIVE_METHOD": "ngram"}
    ended = subprocess.run(
        [sys.executable, HANDLER, "--test_input", "{bad"],
        env=os.environ | {"MODE": "local", "TMPDIR": str(tmp_path)} | own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "HOME is " + str(tmp_path) in ended.stderr
    assert f"the image's own {DRAFT} is not used" in ended.stderr
    assert "MODEL_NAME" not in ended.stderr  # it is set, to the image's own
    assert "--test_input: is not valid JSON" in ended.stderr


def test_every_source_of_problems_is_reported_at_once() -> None:
    found = problems(
        **QUEUE,
        MAX_CONCURRENCY="0",
        SPECULATIVE_MODEL="/does/not/exist",
        NGRAM_PROMPT_LOOKUP_MIN="4",
        NGRAM_PROMPT_LOOKUP_MAX="2",
    )
    assert [problem.replace("=", ":").split(":")[0] for problem in found] == [
        "MAX_CONCURRENCY",
        "MODEL_NAME",
        "SPECULATIVE_MODEL",
        "NGRAM_PROMPT_LOOKUP_MIN",
    ]


FALLBACK = {"SPECULATIVE_FALLBACK": "on"}


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"SPECULATIVE_MODEL": "/does/not/exist"}, "SPECULATIVE_MODEL=/does/not/exist: there is"),
        ({"SPECULATIVE_CONFIG": '{"model": "/does/not/exist"}'}, "SPECULATIVE_CONFIG="),
        ({"SPECULATIVE_METHOD": "eagle3"}, "SPECULATIVE_METHOD=eagle3: needs SPECULATIVE_MODEL"),
        (
            {"NGRAM_PROMPT_LOOKUP_MIN": "4", "NGRAM_PROMPT_LOOKUP_MAX": "2"},
            "NGRAM_PROMPT_LOOKUP_MIN=4: is above",
        ),
    ],
)
def test_speculation_that_cannot_be_set_up_gives_plain_decoding_where_that_is_wanted(
    environment: dict[str, str], reason: str
) -> None:
    settings, decided, models = configure({"MODEL_NAME": "org/model"} | environment | FALLBACK)
    assert settings.model_name == "org/model"
    assert (decided.config, models.draft) == (None, None)
    assert decided.fallback is not None
    assert decided.fallback.startswith(reason)
    with pytest.raises(ConfigurationError):
        configure({"MODEL_NAME": "org/model"} | environment)


def test_a_draft_with_a_broken_config_gives_plain_decoding_where_that_is_wanted(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text("{bad")
    _, decided, models = configure({"SPECULATIVE_MODEL": str(tmp_path)} | FALLBACK)
    assert (decided.config, models.draft) == (None, None)
    assert "its config.json is not valid JSON" in (decided.fallback or "")


def test_speculation_that_works_is_kept_where_plain_decoding_is_wanted_instead() -> None:
    _, decided, _ = configure({"SPECULATIVE_METHOD": "suffix"} | FALLBACK)
    assert decided.config is not None
    assert decided.fallback is None


def test_what_else_is_wrong_stops_the_start_in_any_case() -> None:
    assert problems(
        **FALLBACK,
        MODEL_NAME="/does/not/exist",
        SPECULATIVE_MODEL="/does/not/exist",
        MAX_CONCURRENCY="0",
    ) == (
        "MAX_CONCURRENCY=0: is not allowed; allowed: an integer at least 1",
        "MODEL_NAME=/does/not/exist: there is no such folder; "
        "allowed: a hub id or an existing folder",
    )
    (problem,) = problems(**FALLBACK, NUM_SPECULATIVE_TOKENS="-1")
    assert problem.startswith("NUM_SPECULATIVE_TOKENS=-1")


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
