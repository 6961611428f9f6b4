"""vLLM's own refusals, as vLLM makes them. No engine starts."""

import json
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from builder import heads, tiny
from specworker import engine, refusals
from specworker.errors import ConfigurationError


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, a draft model with 8 more rows, a head that ends at 64 tokens."""
    folder = tmp_path_factory.mktemp("refused")
    tiny.write(folder / "target")
    tiny.write(folder / "padded", padding=8)
    heads.eagle(folder / "target", folder / "head")
    config = json.loads((folder / "head" / "config.json").read_text())
    config |= {"max_position_embeddings": 64, "n_predict": 2}
    (folder / "head" / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("config", "options", "line"),
    [
        (
            {"method": "draft_model", "model": "target", "draft_tensor_parallel_size": 2},
            {},
            "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE=2: is neither 1 nor the target's; "
            "allowed: 1 or TENSOR_PARALLEL_SIZE",
        ),
        (
            {"method": "draft_model", "model": "padded"},
            {},
            "SPECULATIVE_MODEL: its vocabulary has 41 entries, the target's 33; allowed: a draft "
            'of the target\'s family, or SPECULATIVE_CONFIG with "use_heterogeneous_vocab": true '
            "(greedy drafts)",
        ),
        (
            {"method": "draft_model", "model": "target", "max_model_len": 257},
            {},
            "SPECULATIVE_MAX_MODEL_LEN=257: is above the target's longest sequence; "
            "allowed: 1 to 256",
        ),
        (
            {"method": "eagle", "model": "head", "num_speculative_tokens": 3},
            {},
            "NUM_SPECULATIVE_TOKENS=3: the draft's layers are run as a whole; allowed: up to 2, "
            "or a multiple of 2",
        ),
        (
            {"method": "mtp"},
            {},
            "SPECULATIVE_METHOD=mtp: the draft, or the target, is not made for it; "
            "allowed: another method, or another draft",
        ),
        (
            {
                "method": "draft_model",
                "model": "padded",
                "use_heterogeneous_vocab": True,
                "draft_sample_method": "probabilistic",
            },
            {},
            "SPECULATIVE_DRAFT_SAMPLE_METHOD=probabilistic: use_heterogeneous_vocab is for greedy "
            "drafts only; allowed: greedy",
        ),
        (
            {"method": "ngram", "use_heterogeneous_vocab": True},
            {},
            "SPECULATIVE_CONFIG: use_heterogeneous_vocab is for method draft_model; allowed: false",
        ),
        (
            {"method": "ngram"},
            {"ENABLE_LORA": "true", "MAX_NUM_SEQS": "64", "MAX_NUM_BATCHED_TOKENS": "128"},
            "MAX_NUM_BATCHED_TOKENS: is too low for LoRA with speculation; allowed: at least "
            "MAX_NUM_SEQS times (1 + NUM_SPECULATIVE_TOKENS)",
        ),
    ],
)
def test_what_vllm_refuses_is_said_in_the_users_names(
    models: Path, config: Mapping[str, Any], options: Mapping[str, str], line: str
) -> None:
    given = {"num_speculative_tokens": 2, **config}
    if "model" in given:
        given["model"] = str(models / given["model"])
    environment = {"MODEL_NAME": str(models / "target"), "MAX_MODEL_LEN": "256", **options}
    args, _ = engine.arguments(environment, given, {})
    assert refusal(args) == line


def refusal(args: Namespace) -> str:
    with pytest.raises(ConfigurationError) as refused:
        engine.Engine(args)
    (line,) = refused.value.problems
    return line


def test_a_length_above_the_drafts_own_is_said_in_the_users_names() -> None:
    """vLLM's text where the draft's own length is what it was told to lengthen."""
    text = "speculative_max_model_len=128 cannot be larger than draft_max_model_len=64"
    assert refusals.translated(f"1 validation error\n Value error, {text} [type=x]") == (
        "SPECULATIVE_MAX_MODEL_LEN=128: is above the draft's longest sequence; allowed: 1 to 64"
    )


def test_what_is_not_about_speculation_stays_as_vllm_says_it(models: Path) -> None:
    environment = {"MODEL_NAME": str(models / "target"), "MAX_MODEL_LEN": "100000"}
    args, _ = engine.arguments(environment, None, {})
    assert refusal(args).startswith("vLLM refuses the configuration: User-specified max_model_len")
