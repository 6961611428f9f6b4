import logging
from pathlib import Path
from typing import Any

import pytest

from specworker import baked
from specworker.baked import Baked
from specworker.main import configure
from tests import hubs

TARGET = Baked("org/target", None, "c0ffee")
DRAFT = Baked("org/draft", None, "c0ffee")
BOTH = {"MODEL_NAME": TARGET, "SPECULATIVE_MODEL": DRAFT}
OWN = {"MODEL_NAME": "org/target", "SPECULATIVE_MODEL": "org/draft"}


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The folder of an image's models: two, and a manifest of them."""
    hubs.snapshot(tmp_path, "org/target")
    hubs.snapshot(tmp_path, "org/draft")
    baked.write(tmp_path, BOTH)
    return tmp_path


def placed(image: Path, **environment: str) -> dict[str, str]:
    """The variables that are set beside those given."""
    given = {"BAKED_MODELS": str(image), **environment}
    whole = dict(given)
    baked.place(whole)
    return {name: text for name, text in whole.items() if given.get(name) != text}


def test_an_image_without_models_changes_nothing(tmp_path: Path) -> None:
    assert placed(tmp_path) == {}
    assert placed(tmp_path / "absent") == {}
    environment: dict[str, str] = {}
    baked.place(environment)
    assert environment == {}


def test_the_images_own_models_are_served_without_a_network(image: Path) -> None:
    assert placed(image) == OWN | {"HF_HUB_OFFLINE": "1"}
    consoles = dict.fromkeys((*OWN, "MODEL_REVISION", "HF_HUB_OFFLINE"), "")
    assert placed(image, **consoles) == OWN | {"HF_HUB_OFFLINE": "1"}


def test_they_are_loaded_from_the_image(image: Path) -> None:
    environment = {"BAKED_MODELS": str(image), "DOWNLOAD_DIR": "/elsewhere"}
    baked.place(environment)
    _, _, models = configure(environment)
    assert models.target is not None
    assert models.draft is not None
    assert Path(models.target.place).is_relative_to(image)
    assert Path(models.draft.place).is_relative_to(image)


def test_a_revision_that_was_baked_is_the_one_that_is_served(tmp_path: Path) -> None:
    hubs.snapshot(tmp_path, "org/target", refs=("v2",))
    baked.write(tmp_path, {"MODEL_NAME": Baked("org/target", "v2", "c0ffee")})
    expected = {"MODEL_NAME": "org/target", "MODEL_REVISION": "v2", "HF_HUB_OFFLINE": "1"}
    assert placed(tmp_path) == expected


@pytest.mark.parametrize(
    "environment",
    [
        {"NUM_SPECULATIVE_TOKENS": "5"},
        {"SPECULATIVE_METHOD": "draft_model"},
        {"SPECULATIVE_DISABLE_BY_BATCH_SIZE": "8"},
    ],
)
def test_how_to_draft_may_be_said_without_the_draft(
    image: Path, environment: dict[str, str]
) -> None:
    assert placed(image, **environment) == OWN | {"HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize(
    "environment",
    [
        {"SPECULATIVE_METHOD": "ngram"},
        {"SPECULATIVE_METHOD": "suffix"},
        {"SPECULATIVE_METHOD": "mtp"},
        {"SPECULATIVE_METHOD": "self"},
        {"SPECULATIVE_MODEL": "[ngram]"},
        {"NGRAM_PROMPT_LOOKUP_MAX": "4"},
        {"SPECULATIVE_CONFIG": '{"method": "ngram", "num_speculative_tokens": 2}'},
    ],
)
def test_who_drafts_otherwise_is_told_that_the_images_draft_is_not_used(
    image: Path, environment: dict[str, str], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(logging.getLogger("specworker"), "propagate", True)
    assert placed(image, **environment) == {"MODEL_NAME": "org/target", "HF_HUB_OFFLINE": "1"}
    assert "the image's own org/draft is not used" in caplog.text


def test_who_names_another_draft_needs_the_network_for_it(image: Path) -> None:
    assert placed(image, SPECULATIVE_MODEL="org/other") == {"MODEL_NAME": "org/target"}


def test_who_names_another_model_is_told_that_the_images_are_not_used(image: Path) -> None:
    environment = {"BAKED_MODELS": str(image), "MODEL_NAME": "org/other"}
    assert placed(image, MODEL_NAME="org/other") == {}
    assert baked.unused(environment, BOTH) == [
        "MODEL_NAME=org/other: the image's own org/target is not used",
        "SPECULATIVE_MODEL: is not set: the image's own org/draft is not used",
    ]


def test_who_names_the_images_own_models_gets_them(image: Path) -> None:
    for named in ({"MODEL_NAME": "org/target"}, OWN):
        placed_beside = placed(image, **named)
        assert named | placed_beside == OWN | {"HF_HUB_OFFLINE": "1"}
    assert baked.unused(OWN, BOTH) == []


@pytest.mark.parametrize("variable", ["MODEL_REVISION", "REVISION"])
def test_another_revision_than_the_images_comes_from_the_hub(image: Path, variable: str) -> None:
    assert placed(image, **{variable: "v9"}) == OWN
    (note,) = baked.unused(OWN | {variable: "v9"}, BOTH)
    assert note == "MODEL_NAME=org/target at v9: the image's own org/target is not used"


@pytest.mark.parametrize("variable", baked.MORE_FROM_HUB)
def test_options_that_may_need_the_hub_keep_the_network(image: Path, variable: str) -> None:
    assert "HF_HUB_OFFLINE" not in placed(image, **{variable: "org/lora"})


def test_a_config_file_may_name_the_model(image: Path) -> None:
    assert placed(image, VLLM_CONFIG_FILE="/config.yaml") == {}


def test_who_decides_about_the_network_is_left_alone(image: Path) -> None:
    assert placed(image, HF_HUB_OFFLINE="0") == OWN


def test_a_model_that_is_not_whole_keeps_the_network(image: Path) -> None:
    hubs.vanish(image / "models--org--draft/snapshots/c0ffee")
    assert placed(image) == OWN


def test_what_is_written_is_read(tmp_path: Path) -> None:
    models: dict[str, Any] = {"MODEL_NAME": Baked("org/target", "v2", "abc")}
    baked.write(tmp_path, models)
    assert baked.read(tmp_path) == models
