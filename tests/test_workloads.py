"""The workloads that come with the package."""

import json
from importlib import resources

import pytest

from specworker import workloads
from specworker.workloads import BUILT_IN, Prompt, Workload


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_workload_is_there_and_whole(name: str) -> None:
    found = workloads.built_in(name)
    assert (found.name, found.notes) == (name, ())
    assert 8 <= len(found.prompts) <= 16
    assert all(prompt.messages and prompt.max_tokens for prompt in found.prompts)
    assert all(prompt.name.startswith(f"{name}-") for prompt in found.prompts)


@pytest.mark.parametrize("name", BUILT_IN)
def test_no_prompt_begins_like_another_so_that_a_prefix_cache_tells_nothing(name: str) -> None:
    texts = [str(prompt.messages[-1]["content"]) for prompt in workloads.built_in(name).prompts]
    beginnings = {text[:240] for text in texts}
    assert len(beginnings) == len(texts)


def test_the_texts_are_requests_that_openai_takes_but_for_the_model() -> None:
    for name in BUILT_IN:
        file = resources.files("specworker") / "texts" / f"{name}.jsonl"
        for line in file.read_text(encoding="utf-8").splitlines():
            request = json.loads(line)
            assert (request["method"], request["url"]) == ("POST", "/v1/chat/completions")
            assert request["body"].keys() == {"messages", "max_tokens"}


def test_a_name_to_be_changed_stands_in_the_file() -> None:
    for prompt in workloads.built_in("copy").prompts:
        text = str(prompt.messages[0]["content"])
        file, _, asked = text.rpartition("```")
        old, _, new = asked.removeprefix("\n\nRepeat this file with ").partition(" changed to ")
        assert old in file, prompt.name
        assert new.removesuffix(", and nothing else.") not in file, prompt.name


def test_a_sample_is_the_same_for_a_seed_and_smaller_by_a_limit() -> None:
    whole = workloads.built_in("chat")
    drawn = whole.sample(4, seed=1)
    assert drawn == whole.sample(4, seed=1)
    assert drawn.prompts == whole.sample(None, seed=1).prompts[:4]
    assert drawn.prompts != whole.sample(4, seed=2).prompts
    assert sorted(whole.sample(None).prompts, key=lambda one: one.name) == sorted(
        whole.prompts, key=lambda one: one.name
    )


def test_the_checksum_tells_what_is_asked_and_in_which_order() -> None:
    first, second = Prompt("a", text="One"), Prompt("b", text="Two", max_tokens=3)
    found = Workload("mine", "mine", (first, second))
    assert found.sha256 == Workload("other", "other", (first, second)).sha256
    assert found.sha256 != Workload("mine", "mine", (second, first)).sha256
    longer = Prompt("b", text="Two", max_tokens=4)
    assert found.sha256 != Workload("mine", "mine", (first, longer)).sha256


def test_what_is_asked_is_a_chat_or_a_text() -> None:
    messages = ({"role": "user", "content": "Hi"},)
    chat = Prompt("a", messages, extra={"stop": ["x"]})
    assert chat.asked == {"messages": list(messages), "stop": ["x"]}
    assert Prompt("b", text="Hi").asked == {"prompt": "Hi"}
