import json
from collections.abc import Mapping
from typing import Any

import pytest

from specworker import self_layers, speculation
from specworker.checkpoint import Checkpoint
from specworker.decision import Speculation
from specworker.settings import Settings

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 30}
TARGET = Checkpoint("org/target", LLAMA)


def resolve(target: Checkpoint | None = TARGET, /, **environment: str) -> Speculation:
    settings = Settings.from_env(environment)
    assert speculation.drafts_itself(settings)
    assert speculation.draft(settings) is None
    return speculation.resolve(settings, None, target)


def problem(target: Checkpoint | None = TARGET, /, **environment: str) -> str:
    (line,) = resolve(target, **environment).problems
    return line


# Which layers.


@pytest.mark.parametrize(
    ("count", "depth", "layers"),
    [
        (24, 30, "0-11, 18-29"),
        (12, 30, "0-5, 24-29"),
        (15, 30, "0-7, 23-29"),
        (29, 30, "0-14, 16-29"),
        (2, 30, "0, 29"),
        (1, 30, "0"),
        (1, 2, "0"),
        (64, 80, "0-31, 48-79"),
    ],
)
def test_a_number_leaves_a_block_out_around_the_middle(count: int, depth: int, layers: str) -> None:
    kept = self_layers.chosen(f"{count}", depth)
    assert len(kept) == count
    assert self_layers.shown(kept) == layers
    dropped = sorted(set(range(depth)) - set(kept))
    assert dropped == list(range(dropped[0], dropped[0] + depth - count))


@pytest.mark.parametrize(("depth", "count"), [(2, 1), (3, 2), (4, 3), (30, 24), (32, 26), (80, 64)])
def test_four_fifths_of_the_layers_draft_by_default_and_never_all(depth: int, count: int) -> None:
    assert self_layers.chosen(None, depth) == self_layers.around_the_middle(count, depth)


@pytest.mark.parametrize(
    ("given", "layers"),
    [
        ("0-3,8", [0, 1, 2, 3, 8]),
        (" 0 - 1 , 9 ", [0, 1, 9]),
        ("4-4", [4]),
        ("1,3,5", [1, 3, 5]),
        ([2, 7], [2, 7]),
    ],
)
def test_a_list_is_taken_as_it_is(given: Any, layers: list[int]) -> None:
    assert list(self_layers.chosen(given, 10)) == layers


@pytest.mark.parametrize("depth", [2, 3, 30])
def test_the_example_of_what_is_allowed_is_the_default(depth: int) -> None:
    example = self_layers.allowed(depth).removeprefix(
        f"how many, 1 to {depth - 1}, or which, such as "
    )
    assert self_layers.chosen(example, depth) == self_layers.chosen(None, depth)


def test_a_number_from_json_is_a_number_of_layers() -> None:
    assert self_layers.chosen(4, 10) == self_layers.chosen("4", 10)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("0", "the target has 10 layers, of which some draft, and not all"),
        ("10", "the target has 10 layers, of which some draft, and not all"),
        ("some", "is neither a number of layers nor a list of them"),
        ("-3", "is neither a number of layers nor a list of them"),
        ("1,,3", "is neither a number of layers nor a list of them"),
        ("0-3-5", "is neither a number of layers nor a list of them"),
        ("0.8", "is neither a number of layers nor a list of them"),
        (True, "is neither a number of layers nor a list of them"),
        ([0, True], "is neither a number of layers nor a list of them"),
        ([], "is no list of layers in rising order"),
        ("3,1", "is no list of layers in rising order"),
        ("0-3,3", "is no list of layers in rising order"),
        ("5-2,9", "5-2 is no range of layers in rising order"),
        ("2-10", "the target's layers are 0 to 9"),
        ("12-13", "the target's layers are 0 to 9"),
        ("0-99999999999", "the target's layers are 0 to 9"),
        ([-1, 3], "the target's layers are 0 to 9"),
        ("0-9", "these are all layers of the target, which would draft at its own cost"),
    ],
)
def test_what_chooses_no_draft_is_refused(given: Any, reason: str) -> None:
    with pytest.raises(ValueError, match="layers") as refused:
        self_layers.chosen(given, 10)
    assert str(refused.value) == reason


def test_layers_are_shown_as_they_are_written() -> None:
    assert self_layers.shown([0]) == "0"
    assert self_layers.shown([0, 1, 2, 7, 9, 10]) == "0-2, 7, 9-10"


# What is decided.


def test_layers_of_the_target_become_a_draft_model() -> None:
    decided = resolve(SPECULATIVE_METHOD="self", SPECULATIVE_SELF_LAYERS="12")
    assert decided.config == {"method": "draft_model", "num_speculative_tokens": 1}
    assert decided.layers == (*range(6), *range(24, 30))
    assert decided.problems == ()
    assert decided.line == (
        "speculation method=draft_model, num_speculative_tokens=1 (method self as set; K=1 by "
        "default of method self; method self: the target drafts with 12 of its 30 layers "
        "(0-5, 24-29))"
    )


def test_a_start_says_above_which_acceptance_a_draft_pays() -> None:
    (note,) = resolve(SPECULATIVE_METHOD="self", SPECULATIVE_SELF_LAYERS="20").notes
    assert note == (
        "method self drafts with 20 of 30 layers: a draft step costs at least 0.67 of a target "
        "step, so it pays only where more than 67% of the drafted tokens are accepted"
    )


def test_layers_that_attend_in_several_ways_are_named() -> None:
    kinds = ["full_attention", *["sliding_attention"] * 5] * 5
    target = Checkpoint("org/mixed", LLAMA | {"layer_types": kinds})
    *_, note = resolve(target, SPECULATIVE_METHOD="self").notes
    assert "full_attention, sliding_attention" in note
    assert "DISABLE_HYBRID_KV_CACHE_MANAGER=true" in note
    one_way = resolve(target, SPECULATIVE_METHOD="self", SPECULATIVE_SELF_LAYERS="0,6,12,18")
    assert not any("full_attention" in line for line in one_way.notes)


def test_layers_alone_mean_method_self() -> None:
    decided = resolve(SPECULATIVE_SELF_LAYERS="0-9,25-29", NGRAM_PROMPT_LOOKUP_MAX="4")
    assert decided.layers == (*range(10), *range(25, 30))
    assert decided.reasons[0] == "method self, only SPECULATIVE_SELF_LAYERS is set"
    assert decided.notes[0] == "NGRAM_PROMPT_LOOKUP_MAX: no effect, with method self"


@pytest.mark.parametrize(
    "environment",
    [{"SPECULATIVE_METHOD": "ngram"}, {"SPECULATIVE_MODEL": "[ngram]"}],
)
def test_layers_beside_another_method_are_noted(environment: Mapping[str, str]) -> None:
    settings = Settings.from_env({**environment, "SPECULATIVE_SELF_LAYERS": "12"})
    assert not speculation.drafts_itself(settings)
    decided = speculation.resolve(settings, None)
    assert decided.layers is None
    assert "SPECULATIVE_SELF_LAYERS: no effect, with method ngram" in decided.notes


def test_what_a_draft_model_takes_is_handed_on() -> None:
    decided = resolve(
        SPECULATIVE_METHOD="self",
        NUM_SPECULATIVE_TOKENS="4",
        SPECULATIVE_DRAFT_SAMPLE_METHOD="probabilistic",
        SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE="2",
        SPECULATIVE_MAX_MODEL_LEN="512",
        SPECULATIVE_QUANTIZATION="fp8",
        SPECULATIVE_ENFORCE_EAGER="true",
        SPECULATIVE_DISABLE_BY_BATCH_SIZE="8",
        SPECULATIVE_MODEL_REVISION="v2",
    )
    assert decided.config == {
        "method": "draft_model",
        "num_speculative_tokens": 4,
        "draft_sample_method": "probabilistic",
        "draft_tensor_parallel_size": 2,
        "max_model_len": 512,
        "quantization": "fp8",
        "enforce_eager": True,
        "num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 2**31 - 1, 0]],
    }
    assert decided.notes[0] == "SPECULATIVE_MODEL_REVISION: no effect, with method self"


@pytest.mark.parametrize("draft", ["org/draft", "[ngram]"])
def test_another_draft_beside_method_self_is_refused(draft: str) -> None:
    assert problem(SPECULATIVE_METHOD="self", SPECULATIVE_MODEL=draft) == (
        f"SPECULATIVE_MODEL={draft}: is another draft than SPECULATIVE_METHOD=self, which takes "
        "the target's own layers; allowed: one of the two"
    )


def test_layers_that_the_target_does_not_have_are_refused_with_what_it_has() -> None:
    assert problem(SPECULATIVE_SELF_LAYERS="20-40") == (
        "SPECULATIVE_SELF_LAYERS=20-40: the target's layers are 0 to 29; allowed: how many, "
        "1 to 29, or which, such as 0-11, 18-29"
    )


def test_a_model_that_no_variable_names_cannot_draft_for_itself() -> None:
    assert problem(None, SPECULATIVE_METHOD="self") == (
        "SPECULATIVE_METHOD=self: needs MODEL_NAME, a hub id or a folder"
    )


def test_a_model_of_unknown_depth_is_refused() -> None:
    line = problem(Checkpoint("org/target"), SPECULATIVE_METHOD="self")
    assert line.startswith("SPECULATIVE_METHOD=self: the config.json of org/target, which says")


def test_a_model_with_another_layout_is_refused_by_name() -> None:
    vision = Checkpoint("org/vision", {"text_config": LLAMA})
    assert problem(vision, SPECULATIVE_METHOD="self") == (
        "SPECULATIVE_METHOD=self: org/vision cannot draft with some of its layers: its language "
        "model is one part of several (text_config in its config.json); allowed: a llama-like "
        "model, or another method"
    )


# In SPECULATIVE_CONFIG.


@pytest.mark.parametrize("layers", [12, "12", "0-5,24-29", [*range(6), *range(24, 30)]])
def test_a_whole_config_may_name_the_layers(layers: Any) -> None:
    config = {"method": "self", "layers": layers, "draft_sample_method": "greedy"}
    decided = resolve(SPECULATIVE_CONFIG=json.dumps(config))
    assert decided.config == {
        "method": "draft_model",
        "num_speculative_tokens": 1,
        "draft_sample_method": "greedy",
    }
    assert decided.layers == (*range(6), *range(24, 30))
    assert len(decided.notes) == 1


def test_a_whole_config_without_layers_takes_the_default() -> None:
    decided = resolve(SPECULATIVE_CONFIG='{"method": "self", "disable_by_batch_size": 2}')
    assert decided.layers == self_layers.chosen(None, 30)
    assert decided.config is not None
    assert decided.config["num_speculative_tokens_per_batch_size"][0] == [1, 2, 1]


def test_what_is_wrong_in_a_whole_config_is_named_there() -> None:
    assert problem(SPECULATIVE_CONFIG='{"method": "self", "layers": 30}').startswith(
        "SPECULATIVE_CONFIG: layers=30: the target has 30 layers"
    )
    assert problem(SPECULATIVE_CONFIG='{"method": "self", "model": "org/draft"}') == (
        "SPECULATIVE_CONFIG: method self takes the target's own layers; allowed: no model beside it"
    )
