from pathlib import Path

import pytest

from specworker import draft_alias


def test_a_folder_that_names_another_method_gets_a_neutral_name(tmp_path: Path) -> None:
    folder = tmp_path / "My-EAGLE-draft"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    config = {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 3}
    renamed = draft_alias.apply(config)
    assert not any(word in renamed["model"].lower() for word in draft_alias.MISLEADING)
    assert (Path(renamed["model"]) / "config.json").read_text() == "{}"
    assert {**renamed, "model": str(folder)} == config


@pytest.mark.parametrize(
    "config",
    [
        {"method": "eagle3", "model": "/models/eagle3-head"},
        {"method": "ngram"},
        {"method": "draft_model", "model": "/models/small"},
        {"method": "custom_class", "model": "eagle3.Proposer"},
    ],
)
def test_what_does_not_mislead_is_left_alone(config: dict[str, str]) -> None:
    assert draft_alias.apply(config) == config


def test_a_hub_id_that_misleads_is_left_and_the_user_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_alias.logger.parent, "propagate", True)
    config = {"method": "draft_model", "model": "org/my-eagle-draft"}
    assert draft_alias.apply(config) == config
    assert "org/my-eagle-draft" in caplog.text
