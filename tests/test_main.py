import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specworker.errors import ConfigurationError
from specworker.hub_cache import Found
from specworker.main import configure
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


def test_the_hubs_client_is_not_imported_before_the_caches_are_placed() -> None:
    said = "import sys, specworker.main; print('huggingface_hub' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"


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
