"""What vLLM is told to load and to serve. No engine starts."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import vllm

from specworker import engine, hub_cache, main, start_failure
from specworker.errors import ConfigurationError
from specworker.hub_cache import Found, Models
from specworker.inside_vllm import observer
from tests import hubs

NAME = "Org/Model-7B"
CACHED = Found(NAME, "/cache/models--org--model-7b/snapshots/c0ffee", "v2")
NAMED = {"MODEL_NAME": NAME, "MODEL_REVISION": "v2"}


def arguments(environment: Mapping[str, str], target: Found = CACHED) -> Namespace:
    args, _ = engine.arguments({**NAMED, **environment}, None, {})
    hub_cache.serve_from(Models(target), args)
    return args


def test_a_cached_model_is_loaded_from_its_folder_and_served_under_its_name() -> None:
    args = arguments({})
    assert args.model == CACHED.place
    assert args.served_model_name == [NAME]
    assert args.revision is None
    assert args.tokenizer is None


@pytest.mark.parametrize("variable", ["SERVED_MODEL_NAME", "OPENAI_SERVED_MODEL_NAME_OVERRIDE"])
def test_a_served_name_of_the_users_wins(variable: str) -> None:
    args = arguments({variable: "mine"})
    assert args.model == CACHED.place
    assert args.served_model_name == ["mine"]


def test_extra_arguments_that_name_another_revision_win() -> None:
    args = arguments({"VLLM_EXTRA_ARGS": "--revision v3"})
    assert (args.model, args.revision, args.served_model_name) == (NAME, "v3", None)


def test_a_model_that_is_not_cached_is_left_to_vllm() -> None:
    args = arguments({}, Found(NAME, NAME, "v2"))
    assert (args.model, args.revision, args.served_model_name) == (NAME, "v2", None)


def test_a_worker_loads_a_cached_target_and_draft_from_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Namespace] = []

    def load(args: Namespace, **_: Any) -> SimpleNamespace:
        loaded.append(args)
        return SimpleNamespace()

    monkeypatch.setattr(engine, "Engine", load)
    monkeypatch.setattr(start_failure, "ErrorLog", lambda *_, **__: None)
    target = hubs.snapshot(tmp_path, NAME.lower())
    draft = hubs.snapshot(tmp_path, "org/my-eagle-draft", architectures=["LlamaForCausalLM"])
    environment = {
        "MODEL_NAME": NAME,
        "MODEL_REVISION": "main",
        "SPECULATIVE_MODEL": "Org/My-Eagle-Draft",
        "SPECULATIVE_MODEL_REVISION": "main",
        "HF_HUB_CACHE": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
    }
    main.load(environment, *main.configure(environment))
    (args,) = loaded
    assert (args.model, args.revision, args.served_model_name) == (str(target), None, [NAME])
    alias = Path(args.speculative_config.pop("model"))
    assert args.speculative_config == {"method": "draft_model", "num_speculative_tokens": 3}
    assert alias.resolve() == draft
    assert "eagle" not in str(alias)


@pytest.mark.parametrize(
    ("environment", "size"),
    [
        ({}, 8),
        ({"PIPELINE_PARALLEL_SIZE": "2"}, 4),
        ({"DATA_PARALLEL_SIZE": "4"}, 2),
        ({"TENSOR_PARALLEL_SIZE": "1"}, 1),
        ({"TENSOR_PARALLEL_SIZE": "0"}, 8),
    ],
)
def test_every_visible_gpu_is_used_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], size: int
) -> None:
    gpus = SimpleNamespace(is_cpu=lambda: False, device_count=lambda: 8)
    monkeypatch.setattr(engine, "current_platform", gpus)
    assert arguments(environment).tensor_parallel_size == size


def test_a_key_of_vllms_own_does_not_lock_the_platforms_jobs_out() -> None:
    args, notes = engine.arguments({**NAMED, "VLLM_EXTRA_ARGS": "--api-key secret"}, None, {})
    assert args.api_key is None
    assert any(note.startswith("--api-key: no effect") for note in notes)
    assert not any("secret" in note for note in notes)


MLP = {"method": "mlp_speculator", "model": "org/mlp", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("environment", "speculates", "scheduler"),
    [
        ({}, True, observer.SCHEDULER),
        ({}, False, None),
        ({"SCHEDULER_CLS": "mine.Scheduler"}, True, "mine.Scheduler"),
        ({"VLLM_EXTRA_ARGS": "--scheduler-cls mine.Scheduler"}, True, "mine.Scheduler"),
    ],
)
def test_the_scheduler_is_the_workers_own_where_there_is_a_k_and_no_other_is_named(
    environment: Mapping[str, str], speculates: bool, scheduler: str | None
) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3} if speculates else None
    args, _ = engine.arguments({**NAMED, **environment}, config, {})
    assert args.scheduler_cls == scheduler


def test_the_scheduler_is_vllms_own_on_a_version_that_is_not_the_corrected_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.33.0")
    args, _ = engine.arguments(NAMED, {"method": "ngram", "num_speculative_tokens": 3}, {})
    assert args.scheduler_cls is None


def test_an_mlp_speculator_is_left_to_the_workers_own_class() -> None:
    args, _ = engine.arguments(NAMED, MLP, {})
    assert args.worker_cls == engine.WORKER
    assert args.speculative_config == MLP


@pytest.mark.parametrize(
    ("extra", "version"), [("--worker-cls some.other.Worker", "0.32.0"), ("", "0.33.0")]
)
def test_an_mlp_speculator_is_refused_where_nothing_would_draft_with_it(
    monkeypatch: pytest.MonkeyPatch, extra: str, version: str
) -> None:
    monkeypatch.setattr(vllm, "__version__", version)
    environment = {**NAMED, "VLLM_EXTRA_ARGS": extra}
    engine.arguments(environment, {**MLP, "method": "medusa"}, {})
    with pytest.raises(ConfigurationError) as caught:
        engine.arguments(environment, MLP, {})
    (problem,) = caught.value.problems
    assert problem.startswith("SPECULATIVE_METHOD=mlp_speculator: ")
    assert version in problem
