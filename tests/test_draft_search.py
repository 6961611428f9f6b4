"""Drafts that lie in the hub's cache."""

from pathlib import Path

import pytest

from builder import heads, tiny
from specworker import candidates, draft_search
from tests import hubs

OFFLINE = {"MODEL_NAME": "acme/target", "HF_HUB_OFFLINE": "1"}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A target, a small and a large model of its family, a head, and a model of another family."""
    target = tiny.write(tmp_path / "target", layers=4)
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "gpt2", "n_layer": 1}')
    models = {
        "target": target,
        "draft": tiny.write(tmp_path / "draft", layers=1, seed=1),
        "twin": tiny.write(tmp_path / "twin", layers=4, seed=2),
        "head": heads.eagle(target, tmp_path / "head"),
        "other": other,
    }
    for name, folder in models.items():
        hubs.place(tmp_path / "hub", f"acme/{name}", folder)
    return tmp_path / "hub"


def searched(cache: Path) -> tuple[list[str], list[str]]:
    said: list[str] = []
    environment = {**OFFLINE, "HF_HUB_CACHE": str(cache)}
    target = candidates.target_of(environment)
    return draft_search.cached(environment, target, said.append), said


def test_heads_and_smaller_models_of_the_family_are_found(cache: Path) -> None:
    found, said = searched(cache)
    assert found == ["acme/draft", "acme/head"]
    assert said == ["models in the hub's cache that are no drafts of this family: 3"]


def test_what_is_found_can_be_tried(cache: Path) -> None:
    environment = {**OFFLINE, "HF_HUB_CACHE": str(cache)}
    target = candidates.target_of(environment)
    proposed = candidates.proposals(environment, target, searched(cache)[0])
    tried, _ = candidates.check(environment, proposed)
    assert {"draft draft", "draft head"} <= {one.name for one in tried}


def test_a_model_that_cannot_be_read_is_named(cache: Path) -> None:
    (config,) = cache.glob("models--acme--draft/snapshots/*/config.json")
    config.unlink()
    config.write_text("{")
    found, said = searched(cache)
    assert found == ["acme/head"]
    assert "models--acme--draft: is not looked at as a draft" in said[0]
