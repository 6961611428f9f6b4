"""What is compared, by the variables that say so. No engine starts."""

import json
from pathlib import Path

import pytest

from builder import tiny
from specworker import main, variants
from specworker.errors import ConfigurationError
from specworker.variants import SUFFIX_CACHE

DRAFT = {"SPECULATIVE_METHOD": "ngram", "NUM_SPECULATIVE_TOKENS": "5"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"MODEL_NAME": str(tiny.write(tmp_path_factory.mktemp("model") / "target"))}


def test_what_is_set_is_the_variant(model: dict[str, str]) -> None:
    (one,) = variants.of(model | DRAFT, [])
    assert (one.name, one.own) == ("ngram", DRAFT)
    assert one.config["num_speculative_tokens"] == 5
    assert one.environment == model | DRAFT


def test_with_stands_in_place_of_what_is_set(model: dict[str, str]) -> None:
    given = ["SPECULATIVE_METHOD=suffix,NUM_SPECULATIVE_TOKENS=8", "NGRAM_PROMPT_LOOKUP_MAX=3"]
    environment = model | DRAFT | {"SPECULATIVE_DISABLE_BY_BATCH_SIZE": "2", "HOME": "/home"}
    suffix, ngram = variants.of(environment, given)
    assert (suffix.name, ngram.name) == ("suffix", "ngram")
    assert suffix.own == {"SPECULATIVE_METHOD": "suffix", "NUM_SPECULATIVE_TOKENS": "8"}
    assert ngram.environment == model | {"HOME": "/home", "NGRAM_PROMPT_LOOKUP_MAX": "3"}
    assert ngram.config["num_speculative_tokens"] == 3


def test_a_value_may_hold_commas() -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 4}'
    text = f"SPECULATIVE_CONFIG={config},SPECULATIVE_UNSUPPORTED=drop"
    assert variants.read(text) == {
        "SPECULATIVE_CONFIG": config,
        "SPECULATIVE_UNSUPPORTED": "drop",
    }


@pytest.mark.parametrize("text", ["MAX_NUM_SEQS=4", "ngram", "SPECULATIVE_METHOD", ""])
def test_with_takes_variables_of_speculation_alone(text: str, model: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"sets no variable of speculation; allowed: SPEC"):
        variants.of(model, [text])


def test_every_wrong_variant_is_told(model: dict[str, str]) -> None:
    given = ["SPECULATIVE_METHOD=eagle3", "NUM_SPECULATIVE_TOKENS=4", "SPECULATIVE_METHOD=guess"]
    with pytest.raises(ConfigurationError) as refused:
        variants.of(model, given)
    eagle, nothing, wrong = refused.value.problems
    assert eagle.startswith("--with SPECULATIVE_METHOD=eagle3: SPECULATIVE_METHOD=eagle3: needs")
    assert nothing.startswith("--with NUM_SPECULATIVE_TOKENS=4: nothing is set about speculation")
    assert "SPECULATIVE_METHOD=guess" in wrong


def test_nothing_to_compare_says_what_to_set(model: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="allowed: SPECULATIVE_METHOD=ngram, SPEC"):
        variants.of(model, [])


def test_what_cannot_be_set_up_is_no_variant_even_where_a_worker_would_fall_back(
    model: dict[str, str], tmp_path: Path
) -> None:
    draft = {"SPECULATIVE_MODEL": str(tmp_path / "none"), "SPECULATIVE_FALLBACK": "on"}
    with pytest.raises(ConfigurationError, match="none"):
        variants.of(model | draft, [])


def test_the_demo_model_is_named_for_the_engine_without_speculation(demo_folder: Path) -> None:
    (one,) = variants.of({}, [])
    assert one.name == "ngram"
    plain = variants.without({})
    assert plain["MODEL_NAME"] == str(demo_folder)
    _, decided, _ = main.configure(plain)
    assert decided.config is None


def test_suffix_does_not_draft_from_earlier_rounds_unless_told_to(model: dict[str, str]) -> None:
    suffix = {"SPECULATIVE_METHOD": "suffix", "SPECULATIVE_DISABLE_BY_BATCH_SIZE": "4"}
    (one,) = variants.of(model | suffix, [])
    assert one.environment.keys() == {"MODEL_NAME", "SPECULATIVE_CONFIG"}
    _, decided, _ = main.configure(one.environment)
    assert decided.config == {**one.config, SUFFIX_CACHE: 0}
    assert "num_speculative_tokens_per_batch_size" in one.config
    assert "--warm keeps earlier answers" in one.notes[-1]
    (warm,) = variants.of(model | suffix, [], is_warm=True)
    assert warm.environment == model | suffix
    own = {"SPECULATIVE_CONFIG": json.dumps({"method": "suffix", SUFFIX_CACHE: 7})}
    (kept,) = variants.of(model | own, [])
    assert kept.environment == model | own


def test_variants_of_one_method_are_told_apart(model: dict[str, str]) -> None:
    given = [
        "SPECULATIVE_METHOD=ngram,NUM_SPECULATIVE_TOKENS=2",
        "SPECULATIVE_METHOD=ngram,NUM_SPECULATIVE_TOKENS=4",
        "SPECULATIVE_METHOD=ngram,NUM_SPECULATIVE_TOKENS=4,NGRAM_PROMPT_LOOKUP_MAX=6",
        "SPECULATIVE_METHOD=suffix",
    ]
    assert [one.name for one in variants.of(model, given)] == [
        "ngram K=2",
        "ngram K=4 #2",
        "ngram K=4 #3",
        "suffix",
    ]
