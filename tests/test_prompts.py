"""Prompts from files, in two forms; what is wrong or not used is said."""

import json
from pathlib import Path
from typing import Any

import pytest

from specworker import prompts
from specworker.errors import ConfigurationError
from specworker.workloads import Prompt, Workload

CHAT = {"url": "/v1/chat/completions"}
HELLO = [{"role": "user", "content": "Hello"}]


def of(folder: Path, *lines: Any) -> Workload:
    file = folder / "mine.jsonl"
    file.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    return prompts.read(file)


def batch(body: Any, **rest: Any) -> dict[str, Any]:
    return {"custom_id": "one", "method": "POST", **CHAT, "body": body, **rest}


def conversation(*turns: tuple[str, str], **rest: Any) -> dict[str, Any]:
    return {**rest, "conversations": [{"from": who, "value": said} for who, said in turns]}


def test_lines_of_a_batch_are_requests(tmp_path: Path) -> None:
    found = of(
        tmp_path,
        batch({"model": "m", "messages": HELLO, "max_tokens": 7, "stop": ["x"]}),
        "",
        {"url": "/v1/completions", "body": {"prompt": "Once", "max_completion_tokens": 9}},
    )
    assert (found.name, found.prompts) == (
        "mine.jsonl",
        (
            Prompt("one", tuple(HELLO), max_tokens=7, extra={"stop": ["x"]}),
            Prompt("line 3", text="Once", max_tokens=9),
        ),
    )


def test_fields_that_whoever_measures_decides_are_counted(tmp_path: Path) -> None:
    body = {"model": "m", "messages": HELLO, "temperature": 0.7}
    found = of(tmp_path, batch(body), batch({**body, "n": 2}))
    assert all(not prompt.extra for prompt in found.prompts)
    (note,) = found.notes
    assert note.endswith("all are greedy: model (2), n (1), temperature (2)")


@pytest.mark.parametrize("is_array", [True, False])
def test_a_conversation_is_asked_for_its_last_answer(tmp_path: Path, is_array: bool) -> None:
    first = conversation(
        ("system", "Be brief."), ("human", "Hi"), ("gpt", "Hello"), ("human", "Bye"), ("gpt", "Bye")
    )
    lines = [first, conversation(("human", "Only this"), id="x1")]
    found = of(tmp_path, lines) if is_array else of(tmp_path, *lines)
    roles = [message["role"] for message in found.prompts[0].messages]
    assert roles == ["system", "user", "assistant", "user"]
    assert found.prompts[0].name == ("item 1" if is_array else "line 1")
    assert found.prompts[1] == Prompt("x1", ({"role": "user", "content": "Only this"},))
    assert found.notes == ()


def test_what_is_skipped_is_counted_and_named(tmp_path: Path) -> None:
    found = of(
        tmp_path,
        batch({"messages": HELLO}),
        batch({"input": "text"}, url="/v1/embeddings"),
        conversation(("gpt", "I speak first")),
        conversation(("gpt", "So do I")),
        conversation(("tool", "3"), ("human", "What?")),
    )
    assert len(found.prompts) == 1
    embeddings, no_human, tool = found.notes
    assert "1 skipped (line 2): url /v1/embeddings" in embeddings
    assert "2 skipped (line 3, line 4): the conversation has no turn of a human" in no_human
    assert "1 skipped (line 5): a turn is from tool" in tool


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1: is no JSON"),
        ({"text": "x"}, 'line 1: {"text": "x"} is of neither form; allowed: lines of'),
        ("3", "line 1: 3 is of neither form"),
        (batch([]), "line 1: body=[]; allowed: an object"),
        (batch({}), "line 1: body.messages=null; allowed: a list of"),
        (batch({"messages": ["Hi"]}), 'line 1: body.messages[0]="Hi"; allowed: an object with'),
        (batch({"messages": HELLO, "max_tokens": 0}), "line 1: body.max_tokens=0; allowed: an int"),
        (
            batch({"prompt": [1, 2]}, url="/v1/completions"),
            "line 1: body.prompt=[1, 2]; allowed: a text that is not empty",
        ),
        ({"conversations": "Hi"}, 'line 1: conversations="Hi"; allowed: a list of turns'),
        (
            {"conversations": [{"from": "human"}]},
            'line 1: conversations[0]={"from": "human"}; allowed: {"from": "human", "value"',
        ),
        ("[1,", "is no JSON array"),
        ("", "nothing in it can be asked (it is empty)"),
        (batch({}, url="/v1/x"), "nothing in it can be asked (url /v1/x is neither"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_field(
    tmp_path: Path, line: Any, says: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        of(tmp_path, line)
    (problem,) = raised.value.problems
    assert problem.startswith(f"--prompts {tmp_path / 'mine.jsonl'}")
    assert says in problem


def test_of_many_wrong_lines_the_first_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        of(tmp_path, *[{"text": "x"}] * 8, batch({"messages": HELLO}))
    *first, last = raised.value.problems
    assert len(first) == 5
    assert last == "and 3 lines more that are wrong"


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "there.jsonl"
    if content:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"there\.jsonl: cannot be read"):
        prompts.read(file)
