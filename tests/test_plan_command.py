"""The plan of real models' files. No engine starts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from builder import tiny
from specworker import __main__, plan_command
from specworker.errors import ConfigurationError
from specworker.planning import Planned
from tests import hubs
from tests.published import CONFIGS

EACH = 2 * 64 * 2  # bytes of keys and values of a token in a layer of a tiny model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny.write(folder / "target", layers=24)
    tiny.write(folder / "draft", layers=1)
    tiny.write(folder / "other", layers=1, words=40)
    return folder


def plan(folder: Path, draft: str = "draft", **variables: str) -> Planned:
    models = {"MODEL_NAME": str(folder / "target"), "SPECULATIVE_MODEL": str(folder / draft)}
    return plan_command.plan({**models, **variables})


def published(folder: Path, name: str) -> str:
    place = folder / name
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps(CONFIGS[name]))
    return str(place)


def test_target_and_draft_are_told_by_their_headers(folder: Path) -> None:
    found = plan(folder)
    assert found.draft
    assert (found.target.source, found.draft.source) == ("headers", "headers")
    assert found.target.kv_bytes_per_token == 24 * EACH
    assert found.draft.kv_bytes_per_token == EACH
    files = (folder / "target" / "model.safetensors").stat().st_size
    assert found.target.parameters
    # Written in 32 bits, loaded in 16.
    assert found.target.parameters * 4 == pytest.approx(files, rel=0.05)
    assert found.target.weight_bytes == found.target.parameters * 2
    assert (found.context, found.gpus, found.findings) == (4096, 1, ())
    assert all(row.draft_costs_sequences > 0 for row in found.rows)


@pytest.mark.parametrize(
    ("name", "parameters", "kept"),
    [
        ("llama-3.1-8b", 8_030_261_248, 32 * 2 * 8 * 128 * 2),
        ("qwen2.5-72b", 72_706_203_648, 80 * 2 * 8 * 128 * 2),
        ("deepseek-v3", 671_026_419_200, 61 * (512 + 64) * 2),
    ],
)
def test_a_published_config_gives_what_was_computed_by_hand(
    name: str, parameters: int, kept: int, tmp_path: Path
) -> None:
    found = plan_command.plan({"MODEL_NAME": published(tmp_path, name)})
    assert found.target.parameters == pytest.approx(parameters, rel=0.01)
    assert found.target.kv_bytes_per_token == pytest.approx(kept, rel=0.01)
    assert (found.target.source, found.draft) == ("config", None)
    assert found.speculation.startswith("speculation off")


def test_a_draft_above_a_tenth_of_the_target_is_a_warning(tmp_path: Path) -> None:
    models = {
        "MODEL_NAME": published(tmp_path, "qwen2.5-72b"),
        "SPECULATIVE_MODEL": published(tmp_path, "llama-3.1-8b"),
    }
    own = CONFIGS["llama-3.1-8b"] | {"vocab_size": 152_064}
    draft = Path(models["SPECULATIVE_MODEL"]) / "config.json"
    draft.write_text(json.dumps(own))
    ((severity, text),) = plan_command.plan(models).findings
    assert severity == "warning"
    assert "11% of the target's 73B; drafts above 10%" in text
    draft.write_text(json.dumps(own | {"num_hidden_layers": 24}))
    assert plan_command.plan(models).findings == ()


def test_options_of_vllm_count(folder: Path) -> None:
    found = plan(
        folder,
        GPU_MEMORY_UTILIZATION="0.5",
        KV_CACHE_DTYPE="fp8",
        MAX_MODEL_LEN="512",
        TENSOR_PARALLEL_SIZE="2",
    )
    assert (found.context, found.gpus, found.gpu_memory_utilization) == (512, 2, 0.5)
    assert found.target.kv_bytes_per_token == 24 * EACH / 2
    rows = {row.gpu: row for row in plan(folder, MAX_NUM_BATCHED_TOKENS="16384").rows}
    assert all(row.room_bytes < rows[row.gpu].room_bytes for row in plan(folder).rows[:3])


def test_what_a_cpu_has_set_here_does_not_count(folder: Path) -> None:
    """Here the engine runs without graphs."""
    graphs = plan(folder).rows[0].room_bytes - plan(folder, ENFORCE_EAGER="true").rows[0].room_bytes
    assert graphs == 1024**3


def test_a_method_that_needs_a_gpu_is_planned_without_one(folder: Path) -> None:
    own = {"method": "ngram_gpu", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    target = {"MODEL_NAME": str(folder / "target")}
    found = plan_command.plan({**target, "SPECULATIVE_CONFIG": json.dumps(own)})
    assert (found.works, found.draft) == (True, None)


def test_gpus_may_be_named_wherever_options_of_vllm_are(folder: Path, tmp_path: Path) -> None:
    options = tmp_path / "options.yaml"
    options.write_text("tensor-parallel-size: 2\n")
    assert plan(folder, VLLM_CONFIG_FILE=str(options)).gpus == 2
    assert plan(folder, PIPELINE_PARALLEL_SIZE="2").gpus == 2


def test_layers_of_the_target_that_draft_are_counted(folder: Path) -> None:
    environment = {"MODEL_NAME": str(folder / "target"), "SPECULATIVE_METHOD": "self"}
    found = plan_command.plan({**environment, "SPECULATIVE_SELF_LAYERS": "6"})
    assert found.draft
    assert found.draft.kv_bytes_per_token == 6 * EACH


def test_the_draft_is_checked_as_at_a_start(folder: Path) -> None:
    found = plan(folder, "other")
    assert not found.works
    assert found.findings[0][1].startswith(f"SPECULATIVE_MODEL={folder / 'other'}: ")
    fallen = plan(folder, "missing", SPECULATIVE_FALLBACK="on")
    assert not fallen.works
    assert fallen.draft is None


def test_variables_without_effect_are_named(folder: Path) -> None:
    found = plan(folder, NUM_LOOKAHEAD_SLOTS="4")
    assert found.works
    assert any("NUM_LOOKAHEAD_SLOTS: no effect" in text for _, text in found.findings)


def test_a_model_of_the_hub_is_read_from_its_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hubs.place(tmp_path, "org/target", folder / "target")
    environment = {"MODEL_NAME": "org/target", "HF_HUB_CACHE": str(tmp_path)}
    found = plan_command.plan({**environment, "HF_HUB_OFFLINE": "1"})
    assert (found.target.name, found.target.source) == ("org/target", "headers")


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"TENSOR_PARALLEL_SIZE": "3"}, "TENSOR_PARALLEL_SIZE=3: .* has 2 attention heads"),
        ({"SPECULATIVE_MODEL": "/does/not/exist"}, "there is no such folder"),
        ({"MODEL_NAME": "/does/not/exist"}, "MODEL_NAME=/does/not/exist: there is no such folder"),
        ({"MAX_MODEL_LEN": "many"}, "MAX_MODEL_LEN=many"),
    ],
)
def test_what_cannot_be_planned_is_said_in_a_line(
    variables: dict[str, str], problem: str, folder: Path
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        plan(folder, **variables)


@pytest.mark.parametrize("lacks", ["num_attention_heads", "max_position_embeddings", "vocab_size"])
def test_a_config_that_does_not_say_enough_is_refused(lacks: str, tmp_path: Path) -> None:
    config = {key: value for key, value in CONFIGS["llama-3.1-8b"].items() if key != lacks}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigurationError, match=f"MODEL_NAME={tmp_path}: its "):
        plan_command.plan({"MODEL_NAME": str(tmp_path)})


# The command.


def command(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specworker", "plan", *options],
        env=dict(os.environ) | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_figures_go_to_stdout_and_messages_to_stderr(folder: Path) -> None:
    done = command(
        *("--model", str(folder / "target"), "--context", "512", "--gpus", "2", "--json"),
        SPECULATIVE_MODEL=str(folder / "other"),
        MODEL_NAME="org/another",
    )
    assert done.returncode == 1, done.stderr
    found: Any = json.loads(done.stdout)
    assert (found["context"], found["gpus"]) == (512, 2)
    assert found["target"]["name"] == str(folder / "target")
    assert f"error: SPECULATIVE_MODEL={folder / 'other'}" in done.stderr


def test_what_is_set_wrong_has_a_status_of_its_own() -> None:
    done = command("--model", "/does/not/exist")
    assert (done.returncode, done.stdout) == (2, "")
    assert "MODEL_NAME=/does/not/exist: there is no such folder" in done.stderr


def test_each_option_sets_a_variable() -> None:
    options = __main__._parser().parse_args(
        ["plan", "--model", "m", "--draft", "d", "--context", "1", "--gpus", "2"]
    )
    given = {name: getattr(options, option) for option, name in __main__.OF_PLAN.items()}
    assert given == {
        "MODEL_NAME": "m",
        "SPECULATIVE_MODEL": "d",
        "MAX_MODEL_LEN": 1,
        "TENSOR_PARALLEL_SIZE": 2,
    }
