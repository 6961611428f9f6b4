from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from specworker import hub_cache, outgoing
from specworker.errors import ConfigurationError
from specworker.hub_cache import Found, Models
from tests import hubs

NAME = "Org/Model-7B"
ON_SERVERLESS = Path("/runpod-volume/huggingface-cache/hub")


def find(*caches: Path, name: str = NAME, revision: str | None = None, **options: Any) -> Found:
    return hub_cache.find("MODEL_NAME", name, revision, caches, **options)


def problem(*caches: Path, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        find(*caches, offline=True, **options)
    (line,) = caught.value.problems
    return line


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({"HF_HUB_CACHE": "/a", "HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c"}, "/a"),
        ({"HF_HUB_CACHE": "", "HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c"}, "/b"),
        ({"HF_HOME": "/c", "XDG_CACHE_HOME": "/d"}, "/c/hub"),
        ({"XDG_CACHE_HOME": "/d"}, "/d/huggingface/hub"),
        ({}, str(Path.home() / ".cache/huggingface/hub")),
        ({"HF_HOME": "~/e"}, str(Path.home() / "e/hub")),
    ],
)
def test_the_cache_of_the_hubs_client_comes_first_and_the_volumes_last(
    environment: dict[str, str], first: str
) -> None:
    assert hub_cache.folders(environment) == [Path(first), ON_SERVERLESS]


def test_every_cache_is_looked_in_once() -> None:
    at_volume = {"RUNPOD_ENDPOINT_ID": "x", "HF_HUB_CACHE": str(ON_SERVERLESS)}
    assert hub_cache.folders(at_volume) == [ON_SERVERLESS]
    elsewhere = {"BASE_PATH": "/data", "HF_HUB_CACHE": "/a"}
    on_data = Path("/data/huggingface-cache/hub")
    assert hub_cache.folders(elsewhere) == [Path("/a"), on_data, ON_SERVERLESS]


@pytest.mark.parametrize("elsewhere", [{"DOWNLOAD_DIR": "/a"}, {"VLLM_USE_MODELSCOPE": "True"}])
def test_no_cache_is_looked_in_where_models_are_kept_elsewhere(elsewhere: dict[str, str]) -> None:
    assert hub_cache.folders(elsewhere) == []
    assert hub_cache.folders({"VLLM_USE_MODELSCOPE": "0"}) != []


@pytest.mark.parametrize(
    ("environment", "offline"),
    [
        ({}, False),
        ({"HF_HUB_OFFLINE": "1"}, True),
        ({"HF_HUB_OFFLINE": "True"}, True),
        ({"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": "yes"}, True),
        ({"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "1"}, False),
        ({"HF_HUB_OFFLINE": "none"}, False),
    ],
)
def test_the_network_is_off_where_the_hubs_client_takes_it_for_off(
    environment: dict[str, str], *, offline: bool
) -> None:
    assert hub_cache.is_offline(environment) is offline


def test_the_older_name_of_the_revision_wins() -> None:
    assert hub_cache.target_revision({"MODEL_REVISION": "a", "REVISION": "b"}) == "a"
    assert hub_cache.target_revision({"MODEL_REVISION": " ", "REVISION": "b"}) == "b"
    assert hub_cache.target_revision({}) is None


def test_a_cached_model_is_its_snapshot(tmp_path: Path) -> None:
    folder = hubs.snapshot(tmp_path, NAME)
    found = find(tmp_path)
    assert found == Found(NAME, str(folder))
    assert found.is_cached


def test_a_folder_in_lower_case_is_found_too(tmp_path: Path) -> None:
    folder = hubs.snapshot(tmp_path, NAME.lower())
    assert find(tmp_path) == Found(NAME, str(folder))


def test_a_folder_in_the_users_own_case_is_preferred(tmp_path: Path) -> None:
    hubs.snapshot(tmp_path, NAME.lower())
    folder = hubs.snapshot(tmp_path, NAME)
    assert find(tmp_path).place == str(folder)


def test_the_revision_that_is_asked_for_is_found(tmp_path: Path) -> None:
    hubs.snapshot(tmp_path, NAME)
    folder = hubs.snapshot(tmp_path, NAME, "b0b", refs=("v2",))
    assert find(tmp_path, revision="v2") == Found(NAME, str(folder), "v2")
    assert find(tmp_path, revision="v3") == Found(NAME, NAME, "v3")


def test_the_caches_are_looked_in_by_turns(tmp_path: Path) -> None:
    second = hubs.snapshot(tmp_path / "b", NAME)
    caches = (tmp_path / "a", tmp_path / "b")
    assert find(*caches).place == str(second)
    first = hubs.snapshot(tmp_path / "a", NAME)
    assert find(*caches).place == str(first)


def test_a_model_that_is_not_cached_is_its_name(tmp_path: Path) -> None:
    found = find(tmp_path, tmp_path / "absent")
    assert found == Found(NAME, NAME)
    assert not found.is_cached


@pytest.mark.parametrize(
    "name", ["/models/a", "./a", "../a", "s3://bucket/a", "org/model:Q4_K_M", "a/b/c"]
)
def test_what_is_no_hub_id_is_returned_as_it_is(tmp_path: Path, name: str) -> None:
    assert find(tmp_path, name=name, offline=True) == Found(name, name)


def test_a_folder_in_the_working_directory_is_returned_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir(parents=True)
    hubs.snapshot(tmp_path / "cache", NAME)
    assert find(tmp_path / "cache") == Found(NAME, NAME)


def test_weights_that_vanished_are_left_to_the_hub_and_named(tmp_path: Path) -> None:
    folder = hubs.snapshot(tmp_path, NAME)
    hubs.vanish(folder)
    note = f"MODEL_NAME={NAME}: {folder} is not used, it has no weights in model.safetensors"
    assert find(tmp_path) == Found(NAME, NAME, notes=(note,))


def test_weights_that_vanished_in_one_cache_are_taken_from_another(tmp_path: Path) -> None:
    hubs.vanish(hubs.snapshot(tmp_path / "a", NAME))
    whole = hubs.snapshot(tmp_path / "b", NAME)
    found = find(tmp_path / "a", tmp_path / "b", offline=True)
    assert found.place == str(whole)
    assert len(found.notes) == 1


def test_weights_that_vanished_are_an_error_without_a_network(tmp_path: Path) -> None:
    folder = hubs.snapshot(tmp_path, NAME)
    hubs.vanish(folder)
    line = problem(tmp_path)
    assert line == (
        f"MODEL_NAME={NAME}: HF_HUB_OFFLINE is set and no cache holds this model whole "
        f"({folder} is not used, it has no weights in model.safetensors); "
        "allowed: a cached model or a folder, or unset HF_HUB_OFFLINE"
    )
    told = outgoing.public(line)
    assert NAME in told
    assert str(tmp_path) not in told


def test_a_model_that_no_cache_holds_is_an_error_without_a_network(tmp_path: Path) -> None:
    caches = (tmp_path / "a", tmp_path / "b")
    assert f"holds this model whole (looked in {caches[0]}, {caches[1]});" in problem(*caches)
    assert "whole at revision v2 (looked in" in problem(*caches, revision="v2")


def test_without_a_cache_to_look_in_every_name_is_left_to_the_hubs_client() -> None:
    assert find(offline=True) == Found(NAME, NAME)


def test_a_snapshot_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    files = {**hubs.WHOLE, "model.safetensors.index.json": "{bad"}
    hubs.snapshot(tmp_path, NAME, files=files)
    found = find(tmp_path)
    assert not found.is_cached
    (note,) = found.notes
    home = hubs.repository(tmp_path, NAME)
    assert note.startswith(f"MODEL_NAME={NAME}: {home} cannot be read (is not valid JSON")


def test_a_missing_tokenizer_is_left_to_the_hub_while_there_is_one(tmp_path: Path) -> None:
    folder = hubs.snapshot(tmp_path, NAME, files={"model.safetensors": "weights"})
    assert not find(tmp_path, with_tokenizer=True).is_cached
    assert find(tmp_path).place == str(folder)
    assert find(tmp_path, with_tokenizer=True, offline=True).place == str(folder)


def options(**given: Any) -> Namespace:
    named = {"model": NAME, "revision": None, "served_model_name": None, "speculative_config": None}
    return Namespace(**(named | given))


def test_a_snapshot_is_served_under_the_users_name_without_a_revision() -> None:
    args = options(revision="v2")
    hub_cache.serve_from(Models(Found(NAME, "/snapshot", "v2")), args)
    assert args == options(model="/snapshot", served_model_name=[NAME])


def test_a_served_name_of_the_users_stays() -> None:
    args = options(served_model_name=["mine", "other"])
    hub_cache.serve_from(Models(Found(NAME, "/snapshot")), args)
    assert args == options(model="/snapshot", served_model_name=["mine", "other"])


@pytest.mark.parametrize("other", [{"model": "org/other"}, {"revision": "v2"}])
def test_options_that_ask_for_another_model_or_revision_stay(other: dict[str, str]) -> None:
    args = options(**other)
    hub_cache.serve_from(Models(Found(NAME, "/snapshot")), args)
    assert args == options(**other)


def test_options_stay_where_nothing_is_cached() -> None:
    args = options(revision="v2")
    hub_cache.serve_from(Models(Found(NAME, NAME, "v2")), args)
    assert args == options(revision="v2")


DRAFT = {"method": "draft_model", "model": NAME, "revision": "v2", "quantization": "fp8"}


def test_a_cached_draft_is_loaded_from_its_snapshot_without_a_revision() -> None:
    args = options(speculative_config=DRAFT)
    hub_cache.serve_from(Models(draft=Found(NAME, "/snapshot", "v2")), args)
    assert args.speculative_config == {
        "method": "draft_model",
        "model": "/snapshot",
        "quantization": "fp8",
    }


@pytest.mark.parametrize(
    "found", [Found(NAME, NAME, "v2"), Found(NAME, "/snapshot"), Found("org/x", "/snapshot", "v2")]
)
def test_a_draft_that_is_not_the_cached_one_stays(found: Found) -> None:
    args = options(speculative_config=DRAFT)
    hub_cache.serve_from(Models(draft=found), args)
    assert args.speculative_config == DRAFT
