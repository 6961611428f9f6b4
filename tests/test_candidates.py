"""What is tried for a model on this machine, and what is refused with a reason."""

import json
from pathlib import Path

import pytest

from builder import heads, tiny
from specworker import candidates
from specworker.candidates import Candidate, Refused
from specworker.errors import ConfigurationError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, a small draft of its family, another family's, and heads."""
    here = tmp_path_factory.mktemp("candidates")
    target = tiny.write(here / "target", layers=4)
    tiny.write(here / "draft", layers=1, seed=1)
    tiny.write(here / "padded", padding=8, layers=1, seed=1)
    heads.medusa(target, 3, here / "medusa")
    heads.eagle(target, here / "eagle")
    return here


def tried(
    folder: Path, *drafts: str, largest: int | None = None, **variables: str
) -> tuple[dict[str, Candidate], dict[str, str]]:
    environment = {"MODEL_NAME": str(folder / "target"), "HF_HUB_OFFLINE": "1", **variables}
    target = candidates.target_of(environment)
    named = [str(folder / draft) for draft in drafts]
    proposed = candidates.proposals(environment, target, named)
    found, refused = candidates.check(environment, proposed, largest)
    return {one.name: one for one in found}, {one.name: one.reason for one in refused}


def test_every_method_that_can_work_is_tried_and_the_rest_named_with_the_reason(
    folder: Path,
) -> None:
    found, refused = tried(folder, "draft", "medusa", "eagle", "missing")
    assert list(found) == [
        "ngram 2-4",
        "ngram 1-3",
        "ngram 4-8",
        "suffix",
        "draft draft",
        "draft medusa",
        "draft eagle",
        "self 3 of 4 layers",
        "self 2 of 4 layers",
    ]
    methods = [one.variant.name for one in found.values()]
    assert methods == [*["ngram"] * 3, "suffix", "draft_model", "medusa", "eagle", "self", "self"]
    assert refused.keys() == {"draft missing", "mtp"}
    assert "there is no such folder" in refused["draft missing"]
    assert "no layers of multi-token prediction" in refused["mtp"]


def test_values_of_k_go_up_to_what_makes_sense_or_is_asked_for(folder: Path) -> None:
    found, _ = tried(folder, "draft", "medusa")
    tokens = {name: one.tokens for name, one in found.items()}
    assert tokens["ngram 2-4"] == (2, 4, 8)
    assert tokens["suffix"] == (2, 4, 8, 24)
    assert tokens["draft draft"] == (1, 2, 3, 5)
    assert tokens["draft medusa"] == (1, 2, 3)  # it has three heads
    found, _ = tried(folder, "medusa", largest=2)
    assert {one.tokens for one in found.values()} == {(2,), (1, 2)}


def test_the_worker_of_a_candidate_drafts_the_largest_k(folder: Path) -> None:
    found, _ = tried(folder, "draft")
    draft = found["draft draft"]
    assert draft.own == {"SPECULATIVE_MODEL": str(folder / "draft")}
    assert draft.variant.environment["NUM_SPECULATIVE_TOKENS"] == "5"
    assert draft.variant.config["num_speculative_tokens"] == 5
    assert draft.drafts_left_to_right
    assert not found["ngram 2-4"].drafts_left_to_right
    suffix = json.loads(found["suffix"].variant.environment["SPECULATIVE_CONFIG"])
    assert suffix["suffix_decoding_max_cached_requests"] == 0


def test_what_is_configured_is_tried_first_and_the_same_is_not_tried_twice(folder: Path) -> None:
    found, refused = tried(
        folder, SPECULATIVE_METHOD="ngram", NUM_SPECULATIVE_TOKENS="4", NGRAM_PROMPT_LOOKUP_MAX="3"
    )
    configured = found["configured"]
    assert next(iter(found)) == "configured"
    assert configured.own == {"SPECULATIVE_METHOD": "ngram", "NGRAM_PROMPT_LOOKUP_MAX": "3"}
    assert "SPECULATIVE_MODEL" not in found["suffix"].variant.environment
    _, refused = tried(folder, SPECULATIVE_METHOD="ngram")
    assert refused["ngram 2-4"] == "is the same as configured"


def test_a_schedule_that_is_configured_does_not_get_in_the_way(folder: Path) -> None:
    found, _ = tried(folder, SPECULATIVE_METHOD="ngram", SPECULATIVE_DISABLE_BY_BATCH_SIZE="2")
    config = found["configured"].variant.config
    assert "num_speculative_tokens_per_batch_size" not in config


def test_a_draft_whose_embedding_is_padded_is_tried_as_a_start_would_take_it(folder: Path) -> None:
    found, _ = tried(folder, "padded")
    assert "draft padded" in found


def test_a_model_that_nobody_names_cannot_be_tuned_for(tmp_path: Path) -> None:
    missing = {"MODEL_NAME": str(tmp_path / "none")}
    with pytest.raises(ConfigurationError, match="there is no such folder"):
        candidates.target_of(missing)


def test_a_refusal_says_why(folder: Path) -> None:
    proposed = [candidates.Proposal("draft", "draft x", {"SPECULATIVE_METHOD": "eagle"})]
    environment = {"MODEL_NAME": str(folder / "target")}
    _, (refused,) = candidates.check(environment, proposed)
    assert refused == Refused(
        "draft x", "SPECULATIVE_METHOD=eagle: needs SPECULATIVE_MODEL, a hub id or a folder"
    )
