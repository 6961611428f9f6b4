"""Lines to be set, and that a worker takes them for what was found."""

import json
from typing import Any

import pytest

from specworker import environment_block, main, speculation
from specworker.candidates import Candidate
from specworker.checkpoint import Checkpoint
from specworker.drafting import ANY_BATCH_SIZE
from specworker.settings import Settings
from specworker.tuning import Setting
from specworker.variants import Variant

NGRAM = {
    "SPECULATIVE_METHOD": "ngram",
    "NGRAM_PROMPT_LOOKUP_MIN": "2",
    "NGRAM_PROMPT_LOOKUP_MAX": "4",
}
SELF = {"SPECULATIVE_METHOD": "self", "SPECULATIVE_SELF_LAYERS": "4"}


def candidate(own: dict[str, str]) -> Candidate:
    decided = resolved(own)
    assert decided.config
    variant = Variant(decided.config["method"], own, decided.config, own)
    return Candidate("it", own, variant, (1, 3, 5))


def resolved(own: dict[str, str]) -> Any:
    target = Checkpoint("m", {"model_type": "llama", "num_hidden_layers": 6})
    return speculation.resolve(Settings.from_env(own), None, target)


def test_a_fixed_k_is_the_variables_and_k() -> None:
    found = environment_block.variables(candidate(NGRAM), Setting("it", {1: 3, 4: 3}))
    assert found == {**NGRAM, "NUM_SPECULATIVE_TOKENS": "3"}


def test_drafts_that_end_at_a_batch_size_are_one_variable_more() -> None:
    found = environment_block.variables(candidate(NGRAM), Setting("it", {1: 3, 4: 3, 16: 0}))
    assert found["SPECULATIVE_DISABLE_BY_BATCH_SIZE"] == "4"
    assert resolved(found).config["num_speculative_tokens_per_batch_size"] == [
        [1, 4, 3],
        [5, ANY_BATCH_SIZE, 0],
    ]


@pytest.mark.parametrize(
    "own", [NGRAM, SELF, {"SPECULATIVE_CONFIG": json.dumps({"method": "suffix"})}]
)
def test_any_other_schedule_is_vllms_config(own: dict[str, str]) -> None:
    kept = {"SPEC_DECODING_ACCEPTANCE_METHOD": "typical_acceptance_sampler"}
    found = environment_block.variables(candidate(own | kept), Setting("it", {1: 5, 4: 3, 16: 0}))
    assert found.keys() == {"SPECULATIVE_CONFIG", *kept}
    before, after = resolved(own), resolved(found)
    schedule = [[1, 1, 5], [2, 4, 3], [5, ANY_BATCH_SIZE, 0]]
    assert not after.problems
    assert after.layers == before.layers
    assert after.config == {
        **before.config,
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": schedule,
    }


def test_a_config_that_was_set_gets_k_in_place_of_its_own() -> None:
    given = {"method": "ngram", "num_speculative_tokens": 9, "disable_by_batch_size": 2}
    own = {"SPECULATIVE_CONFIG": json.dumps(given)}
    found = environment_block.variables(candidate(own), Setting("it", {1: 3}))
    assert json.loads(found["SPECULATIVE_CONFIG"]) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
    }


def test_lines_have_comments_above_and_empty_what_was_set_else() -> None:
    environment = {"MODEL_NAME": "acme/model", "SPECULATIVE_MODEL": "acme/draft", "HF_TOKEN": "x"}
    text = environment_block.block(environment, NGRAM, ["one\ntwo"])
    assert text.splitlines() == [
        "# one",
        "# two",
        *(f"{name}={value}" for name, value in NGRAM.items()),
        "SPECULATIVE_MODEL=",
    ]


def test_lines_for_no_speculation_turn_it_off() -> None:
    environment = {"MODEL_NAME": "/", "SPECULATIVE_METHOD": "ngram", "NUM_SPECULATIVE_TOKENS": "4"}
    lines = environment_block.block(environment, {}, ["why"]).splitlines()
    assert lines == ["# why", "SPECULATIVE_METHOD=", "NUM_SPECULATIVE_TOKENS="]
    emptied = dict(line.split("=", 1) for line in lines[1:])
    _, decided, _ = main.configure(environment | emptied)
    assert decided.config is None


def test_where_nothing_has_to_be_set_that_is_said() -> None:
    (line,) = environment_block.block({"MODEL_NAME": "acme/model"}, {}, []).splitlines()
    assert line == "# Nothing to set: speculation is off."
    assert "MODEL_NAME" in environment_block.block({}, {}, [])
