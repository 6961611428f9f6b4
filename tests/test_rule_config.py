"""Acceptance rules on their way into vLLM. No engine starts."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import vllm
from vllm.v1.engine.async_llm import AsyncLLM

from builder import tiny
from specworker import engine, main
from specworker.acceptance_rule import AcceptanceRule
from specworker.errors import ConfigurationError
from specworker.inside_vllm import rule_config

TYPICAL = AcceptanceRule("typical_acceptance_sampler", 0.2, 0.5, "sample")
BLOCK = AcceptanceRule("block")
LOOKUP = {"method": "ngram", "num_speculative_tokens": 3}


def arguments(rule: AcceptanceRule, **environment: str) -> Any:
    args, _ = engine.arguments({"MODEL_NAME": "org/model", **environment}, LOOKUP, {}, rule=rule)
    return args


def problem(rule: AcceptanceRule, **environment: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        arguments(rule, **environment)
    (line,) = caught.value.problems
    return line


# To the processes of the engine.


@pytest.mark.parametrize("rule", [TYPICAL, BLOCK])
def test_a_rule_reaches_the_engines_processes_beside_what_the_user_sends(
    rule: AcceptanceRule,
) -> None:
    additional = arguments(rule, ADDITIONAL_CONFIG='{"mine": 1}').additional_config
    assert additional["mine"] == 1
    sent = SimpleNamespace(additional_config=json.loads(json.dumps(additional)))
    assert rule_config.handed_over(sent) == rule


def test_the_default_rule_leaves_vllms_config_alone() -> None:
    assert arguments(AcceptanceRule()).additional_config == {}
    given = arguments(AcceptanceRule(), ADDITIONAL_CONFIG='{"mine": 1}').additional_config
    assert given == {"mine": 1}
    assert rule_config.handed_over(SimpleNamespace(additional_config=given)) == AcceptanceRule()


def test_one_start_leaves_nothing_to_the_next() -> None:
    arguments(TYPICAL)
    assert arguments(AcceptanceRule()).additional_config == {}


@pytest.mark.parametrize("rule", [AcceptanceRule(), TYPICAL])
def test_the_workers_own_key_is_refused(rule: AcceptanceRule) -> None:
    assert problem(rule, ADDITIONAL_CONFIG='{"specworker": {}}') == (
        "ADDITIONAL_CONFIG: specworker is a key of the worker's own; allowed: any other key"
    )


def test_an_additional_config_that_is_no_object_is_refused() -> None:
    assert problem(TYPICAL, ADDITIONAL_CONFIG="[1]").startswith("ADDITIONAL_CONFIG: is not an ob")


@pytest.mark.parametrize(
    "given",
    [
        {"WORKER_CLS": "vllm.v1.worker.cpu_worker.CPUWorker"},
        {"VLLM_EXTRA_ARGS": "--worker-cls vllm.v1.worker.cpu_worker.CPUWorker"},
    ],
)
def test_typical_acceptance_without_the_workers_class_is_refused(given: dict[str, str]) -> None:
    line = problem(TYPICAL, **given)
    assert line.startswith("SPEC_DECODING_ACCEPTANCE_METHOD=typical_acceptance_sampler: ")
    assert "WORKER_CLS=vllm.v1.worker.cpu_worker.CPUWorker" in line
    assert line.endswith("; allowed: WORKER_CLS unset, or rejection_sampler")
    arguments(BLOCK, **given)


def test_typical_acceptance_in_another_vllm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.33.0")
    line = problem(TYPICAL)
    assert "is made for vLLM 0.32.0, and this is vLLM 0.33.0; allowed: rejection_sampler" in line


# What the engine cannot do.


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("model"))


def refusal(model: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    """Why the engine does not start, which is said before anything loads."""

    def load(*_: Any, **__: Any) -> None:
        pytest.fail("the engine starts")

    monkeypatch.setattr(AsyncLLM, "from_vllm_config", load)
    variables = {"MODEL_NAME": str(model), "MAX_MODEL_LEN": "256", **environment}
    with pytest.raises(ConfigurationError) as caught:
        main.load(variables, *main.configure(variables))
    (line,) = caught.value.problems
    return line


V1 = "only vLLM's V2 model runner verifies by block, and here its V1 runner serves; allowed: "


def test_block_verification_where_v1_serves_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = {"SPECULATIVE_METHOD": "ngram"}
    assert refusal(model, monkeypatch, SPEC_DECODING_ACCEPTANCE_METHOD="block", **lookup) == (
        f"SPEC_DECODING_ACCEPTANCE_METHOD=block: {V1}rejection_sampler"
    )


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"rejection_sample_method": "block"}, f"block: {V1}standard"),
        (
            {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5] * 3},
            "synthetic: vLLM's CPU backend cannot, and would end at the first request; "
            "allowed: standard",
        ),
    ],
)
def test_what_this_engine_cannot_verify_by_is_refused_however_it_comes_in(
    model: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], expected: str
) -> None:
    config = json.dumps(LOOKUP | keys)
    line = f"SPECULATIVE_CONFIG: rejection_sample_method={expected}"
    assert refusal(model, monkeypatch, SPECULATIVE_CONFIG=config) == line
    assert refusal(model, monkeypatch, VLLM_EXTRA_ARGS=f"--speculative-config '{config}'") == line


def test_a_rule_that_extra_arguments_contradict_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.dumps(LOOKUP | {"rejection_sample_method": "block"})
    line = refusal(
        model,
        monkeypatch,
        SPECULATIVE_METHOD="ngram",
        SPEC_DECODING_ACCEPTANCE_METHOD="typical_acceptance_sampler",
        VLLM_EXTRA_ARGS=f"--speculative-config '{config}'",
    )
    assert line == (
        "SPEC_DECODING_ACCEPTANCE_METHOD=typical_acceptance_sampler: the speculative config sets "
        "rejection_sample_method=block; allowed: rejection_sampler"
    )


@pytest.mark.parametrize(
    ("method", "v2", "on_cpu"),
    [("block", True, False), ("synthetic", False, False), ("standard", False, True)],
)
def test_what_the_engine_can_is_let_through(
    monkeypatch: pytest.MonkeyPatch, method: str, *, v2: bool, on_cpu: bool
) -> None:
    platform = SimpleNamespace(is_cpu=lambda: on_cpu)
    monkeypatch.setattr(rule_config, "current_platform", platform)
    rule_config.check(
        SimpleNamespace(
            speculative_config=SimpleNamespace(rejection_sample_method=method),
            use_v2_model_runner=v2,
            additional_config={},
        )
    )
    rule_config.check(SimpleNamespace(speculative_config=None))
