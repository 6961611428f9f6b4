import json
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest

from specworker import legacy
from specworker.errors import ConfigurationError
from specworker.jobs import request_of
from specworker.legacy import Batching, ChunkLists, Native, Shape, Shapes
from specworker.settings import Settings

DONE = "data: [DONE]\n\n"
CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}
MESSAGES = [{"role": "user", "content": "Hi"}]
ERROR = {"message": "out of memory", "type": "InternalServerError", "param": None, "code": 500}
COMPLETION = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "served"}
CHAT = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "served"}


def event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"


def usage(read: int, written: int) -> dict[str, int]:
    return {
        "prompt_tokens": read,
        "total_tokens": read + written,
        "completion_tokens": written,
    }


def completion(
    text: str, written: int, *, index: int = 0, finish: str | None = None, read: int = 5
) -> str:
    """A chunk of a completion, with the tokens of its choice so far."""
    choice = {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": finish,
        "stop_reason": None,
        "prompt_token_ids": None,
        "token_ids": None,
    }
    return event({**COMPLETION, "choices": [choice], "usage": usage(read, written)})


def chat(delta: dict[str, Any], written: int, *, index: int = 0, finish: str | None = None) -> str:
    """A chunk of a chat, with the tokens of its choice so far."""
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event({**CHAT, "choices": [choice], "usage": usage(9, written)})


def total(read: int, written: int, kind: dict[str, Any] | None = None) -> str:
    return event({**(kind or COMPLETION), "choices": [], "usage": usage(read, written)})


def native(
    parameters: dict[str, Any] | None = None,
    *,
    environment: dict[str, str] | None = None,
    **job: Any,
) -> Shape:
    settings = Settings.from_env({"LEGACY_NATIVE_OUTPUT": "true", **(environment or {})})
    job = {"prompt": "Hi", "stream": True, "sampling_params": parameters or {}, **job}
    return Shapes.of(settings).of_job(request_of(job, "served"))


def outputs(shape: Shape, groups: Iterable[str]) -> list[Any]:
    return [output for group in groups for output in shape.outputs(group)] + list(shape.rest())


def tokens(found: list[Any], index: int = 0) -> list[list[str]]:
    return [output["choices"][index]["tokens"] for output in found]


def lengths(found: list[Any]) -> list[int]:
    return [sum(len(choice["tokens"]) for choice in output["choices"]) for output in found]


def counted(number: int, *, step: int = 1) -> list[str]:
    """Chunks of `step` tokens each, the last of which ends the choice, and what vLLM adds."""
    last = number - 1
    return [
        *(
            completion(f"{place} ", step * (place + 1), finish="length" if place == last else None)
            for place in range(number)
        ),
        total(5, step * number),
        DONE,
    ]


def test_batches_grow_from_one_by_three_up_to_fifty() -> None:
    found = outputs(native(), counted(1 + 3 + 9 + 27 + 50 + 50 + 7))
    assert lengths(found) == [1, 3, 9, 27, 50, 50, 7]
    assert found[1] == {
        "choices": [{"tokens": ["1 ", "2 ", "3 "]}],
        "usage": {"input": 5, "output": 4},
    }


def test_the_groups_that_events_came_in_change_nothing() -> None:
    events = counted(60)
    apart = outputs(native(), events)
    assert outputs(native(), ["".join(events)]) == apart
    assert outputs(native(), ["".join(events[:7]), "".join(events[7:])]) == apart


def test_no_yield_is_empty_when_the_last_batch_is_full() -> None:
    assert lengths(outputs(native(), counted(1 + 3))) == [1, 3]


def test_output_counts_tokens_and_not_chunks() -> None:
    found = outputs(native(), counted(6, step=4))
    assert [output["usage"] for output in found] == [
        {"input": 5, "output": 4},
        {"input": 5, "output": 16},
        {"input": 5, "output": 24},
    ]


def noted(chunk: str) -> str:
    body = json.loads(chunk.removeprefix("data: "))
    return event({**body, "metrics": {"speculative_decoding": None, "notes": ["min_p: left out"]}})


def test_notes_are_in_the_first_native_output_and_in_no_other() -> None:
    first, *rest = counted(5)
    found = outputs(native(), [noted(first), *rest])
    assert len(found) == 3
    assert [output.pop("metrics", None) for output in found] == [
        {"notes": ["min_p: left out"]},
        None,
        None,
    ]
    assert found == outputs(native(), [first, *rest])


def test_notes_are_in_a_whole_native_output() -> None:
    answer = {
        "choices": [{"index": 0, "text": "a"}],
        "usage": usage(5, 1),
        "metrics": {"notes": ["min_p: left out"]},
    }
    assert native(stream=False).whole(answer) == {
        "choices": [{"tokens": ["a"]}],
        "usage": {"input": 5, "output": 1},
        "metrics": {"notes": ["min_p: left out"]},
    }
    del answer["metrics"]
    assert "metrics" not in native(stream=False).whole(answer)


def test_choices_share_one_counter_and_their_tokens_are_added_up() -> None:
    found = outputs(
        native({"n": 2}),
        [
            completion("a", 2, index=1),
            completion("b", 1, index=0),
            completion("c", 4, index=1, finish="stop"),
            completion("d", 3, index=0),
            completion("", 4, index=0, finish="stop"),
            total(5, 8),
            DONE,
        ],
    )
    assert found == [
        {"choices": [{"tokens": []}, {"tokens": ["a"]}], "usage": {"input": 5, "output": 2}},
        {
            "choices": [{"tokens": ["b", "d"]}, {"tokens": ["c"]}],
            "usage": {"input": 5, "output": 7},
        },
        {"choices": [{"tokens": [""]}, {"tokens": []}], "usage": {"input": 5, "output": 8}},
    ]


@pytest.mark.parametrize("number", [2, 2.0, "2"])
def test_every_yield_has_an_entry_for_each_choice_however_their_number_is_written(
    number: Any,
) -> None:
    (found,) = outputs(native({"n": number}), [completion("a", 1)])
    assert found["choices"] == [{"tokens": ["a"]}, {"tokens": []}]


@pytest.mark.parametrize("number", [None, 1])
@pytest.mark.parametrize("prompt", ["Hi", [1, 2, 3], []])
def test_a_prompt_as_text_or_tokens_has_one_choice(prompt: Any, number: Any) -> None:
    (found,) = outputs(native({"n": number}, prompt=prompt), [completion("a", 1)])
    assert found["choices"] == [{"tokens": ["a"]}]


def test_several_prompts_have_their_choices_in_a_row_and_their_tokens_added_up() -> None:
    found = outputs(
        native({"n": 2}, prompt=["a", [1, 2]]),
        [
            completion("p", 1, index=3, read=2),
            completion("q", 1, index=2, read=2),
            completion("r", 1, index=0, read=1),
        ],
    )
    assert [len(output["choices"]) for output in found] == [4, 4]
    assert [output["usage"] for output in found] == [
        {"input": 2, "output": 1},
        {"input": 3, "output": 3},
    ]


def test_the_end_of_a_choice_is_a_delta_though_its_text_is_empty() -> None:
    found = outputs(
        native(), [completion("a", 1), completion("", 2, finish="stop"), total(5, 2), DONE]
    )
    assert tokens(found) == [["a"], [""]]
    assert found[-1]["usage"] == {"input": 5, "output": 2}


def test_an_answer_without_text_still_has_a_yield() -> None:
    found = outputs(native(), [completion("", 1, finish="stop"), total(5, 1), DONE])
    assert found == [{"choices": [{"tokens": [""]}], "usage": {"input": 5, "output": 1}}]


def test_text_that_vllm_holds_back_is_no_delta() -> None:
    found = outputs(
        native(),
        [completion("a", 1), completion("", 2), completion("", 3), completion("🗻", 4)],
    )
    assert tokens(found) == [["a"], ["🗻"]]


def test_characters_of_every_kind_arrive_as_they_are() -> None:
    text = "é日😀\u2028\u2029\x85\x0b\x1c\r\n\n\ndata: [DONE]\n\n\tø "
    found = outputs(native(), [completion(character, 1) for character in text])
    assert "".join(text for part in tokens(found) for text in part) == text
    assert tokens(outputs(native(), [completion(text, 9, finish="stop"), DONE])) == [[text]]


def test_a_chat_streams_the_text_of_its_deltas() -> None:
    found = outputs(
        native({"n": 2}, messages=MESSAGES),
        [
            chat({"role": "assistant", "content": ""}, 0, index=0),
            chat({"role": "assistant", "content": ""}, 0, index=1),
            chat({"content": "さ"}, 2, index=0),
            chat({"content": "🌸"}, 3, index=1),
            chat({"content": "くら"}, 4, index=0, finish="length"),
            chat({"content": ""}, 4, index=1, finish="stop"),
            total(9, 8, CHAT),
            DONE,
        ],
    )
    assert found == [
        {"choices": [{"tokens": ["さ"]}, {"tokens": []}], "usage": {"input": 9, "output": 2}},
        {
            "choices": [{"tokens": ["くら"]}, {"tokens": ["🌸", ""]}],
            "usage": {"input": 9, "output": 8},
        },
    ]


def test_what_a_parser_took_out_of_the_text_is_counted_but_not_in_it() -> None:
    call = {"index": 0, "function": {"arguments": "{"}}
    found = outputs(
        native(messages=MESSAGES),
        [
            chat({"role": "assistant", "content": ""}, 0),
            chat({"reasoning": "hm"}, 3),
            chat({"content": "yes"}, 4),
            chat({"content": None, "tool_calls": [call]}, 6),
            chat({}, 7, finish="tool_calls"),
            total(9, 7, CHAT),
        ],
    )
    assert tokens(found) == [["yes"], [""]]
    assert [output["usage"]["output"] for output in found] == [4, 7]


def test_an_error_ends_in_no_text_and_loses_none() -> None:
    found = outputs(
        native(),
        [
            completion("a", 1) + completion("b", 2) + event({"error": ERROR}) + DONE,
        ],
    )
    assert tokens(found) == [["a"], ["b"]]
    assert outputs(native(), [event({"error": ERROR}), DONE]) == []


def test_a_stream_that_breaks_off_gives_what_waits() -> None:
    shape = native()
    assert tokens(outputs(shape, counted(3)[:2])) == [["0 "], ["1 "]]
    assert list(shape.rest()) == []


def test_a_batch_goes_out_before_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy, "MAX_GROUP_CHARACTERS", 10)
    shape = native(min_batch_size=50)
    found = outputs(shape, [completion("four", number) for number in range(1, 8)])
    assert lengths(found) == [3, 3, 1]


def test_a_stream_asks_vllm_for_its_counts_with_every_chunk() -> None:
    shape = native({"stream_options": {"include_usage": False}, "temperature": 0})
    assert shape.body == {
        "prompt": "Hi",
        "max_tokens": 100,
        "temperature": 0,
        "stream": True,
        "stream_options": CONTINUOUS,
        "model": "served",
    }


@pytest.mark.parametrize("stream", [False, None])
def test_without_a_stream_vllm_is_asked_for_nothing_more(stream: Any) -> None:
    assert "stream_options" not in native(stream=stream).body


def test_an_answer_that_is_no_stream_is_one_output_with_the_full_texts() -> None:
    body = {
        "object": "text_completion",
        "choices": [
            {"index": 0, "text": "さくら", "finish_reason": "stop"},
            {"index": 1, "text": "", "finish_reason": "stop"},
        ],
        "usage": usage(5, 7),
    }
    assert native({"n": 2}, stream=False).whole(body) == {
        "choices": [{"tokens": ["さくら"]}, {"tokens": [""]}],
        "usage": {"input": 5, "output": 7},
    }


def test_a_chat_that_is_no_stream_is_one_output_too() -> None:
    message = {"role": "assistant", "content": "Hi", "reasoning": "hm", "tool_calls": []}
    body = {"choices": [{"index": 0, "message": message}], "usage": usage(9, 3)}
    assert native(messages=MESSAGES, stream=False).whole(body) == {
        "choices": [{"tokens": ["Hi"]}],
        "usage": {"input": 9, "output": 3},
    }


@pytest.mark.parametrize(
    ("batching", "sizes"),
    [
        (Batching(), [1, 3, 9, 27, 50, 50]),
        (Batching(smallest=4, growth=2, largest=20), [4, 8, 16, 20, 20, 20]),
        (Batching(growth=1.5, largest=3), [1, 1.5, 2.25, 3, 3, 3]),
        (Batching(growth=1, largest=7), [7] * 6),
        (Batching(growth=0.5, largest=7), [7] * 6),
        (Batching(smallest=9, largest=7), [7] * 6),
    ],
)
def test_sizes_grow_to_the_largest_or_are_the_largest_throughout(
    batching: Batching, sizes: list[float]
) -> None:
    assert list(islice(batching.sizes(), 6)) == sizes


def test_a_fraction_of_a_delta_waits_for_a_whole_one() -> None:
    found = outputs(native(batch_size_growth_factor=1.5, max_batch_size=3), counted(9))
    assert lengths(found) == [1, 2, 3, 3]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Batching(1, 3, 50)),
        ({"DEFAULT_BATCH_SIZE": "20"}, Batching(1, 3, 20)),
        ({"DEFAULT_MIN_BATCH_SIZE": "2"}, Batching(2, 3, 50)),
        ({"MIN_BATCH_SIZE": "4"}, Batching(4, 3, 50)),
        ({"MIN_BATCH_SIZE": "4", "DEFAULT_MIN_BATCH_SIZE": "2"}, Batching(2, 3, 50)),
        ({"MIN_BATCH_SIZE": "4", "DEFAULT_MIN_BATCH_SIZE": "0"}, Batching(4, 3, 50)),
        ({"DEFAULT_BATCH_SIZE_GROWTH_FACTOR": "2.5"}, Batching(1, 2.5, 50)),
        ({"BATCH_SIZE_GROWTH_FACTOR": "1.5"}, Batching(1, 1.5, 50)),
        (
            {"BATCH_SIZE_GROWTH_FACTOR": "1.5", "DEFAULT_BATCH_SIZE_GROWTH_FACTOR": "2"},
            Batching(1, 2, 50),
        ),
        (
            {
                "DEFAULT_BATCH_SIZE": "0",
                "MIN_BATCH_SIZE": "0",
                "BATCH_SIZE_GROWTH_FACTOR": "0.0",
            },
            Batching(1, 3, 50),
        ),
    ],
)
def test_batching_by_the_environment(environment: dict[str, str], expected: Batching) -> None:
    assert Shapes.of(Settings.from_env(environment)).batching == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("DEFAULT_BATCH_SIZE", "-1"),
        ("DEFAULT_MIN_BATCH_SIZE", "1.5"),
        ("MIN_BATCH_SIZE", "few"),
        ("DEFAULT_BATCH_SIZE_GROWTH_FACTOR", "nan"),
        ("BATCH_SIZE_GROWTH_FACTOR", "inf"),
        ("LEGACY_NATIVE_OUTPUT", "maybe"),
        ("RAW_OPENAI_OUTPUT", "2"),
    ],
)
def test_a_variable_that_cannot_be_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name}={text}: "):
        Settings.from_env({name: text})


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({}, [2, 4, 8, 8]),
        ({"max_batch_size": 5}, [2, 4, 5, 5]),
        ({"batch_size": 5}, [2, 4, 5, 5]),
        ({"batch_size": 5, "max_batch_size": 6}, [2, 4, 6, 6]),
        ({"min_batch_size": 1}, [1, 2, 4, 8]),
        ({"batch_size_growth_factor": 3}, [2, 6, 8, 8]),
    ],
)
def test_a_job_says_more_than_the_environment(job: dict[str, Any], expected: list[int]) -> None:
    environment = {
        "DEFAULT_BATCH_SIZE": "8",
        "MIN_BATCH_SIZE": "2",
        "BATCH_SIZE_GROWTH_FACTOR": "2",
    }
    found = outputs(native(environment=environment, **job), counted(60))
    assert lengths(found)[:4] == expected


def test_one_jobs_batches_do_not_depend_on_anothers() -> None:
    shapes = Shapes(native=True)
    request = request_of({"prompt": "Hi", "stream": True}, "served")
    one, other = shapes.of_job(request), shapes.of_job(request)
    assert lengths(outputs(one, counted(6))) == [1, 3, 2]
    assert lengths(outputs(other, counted(6))) == [1, 3, 2]


def test_chunk_lists_hold_the_parsed_chunks_and_no_end_mark() -> None:
    groups = [completion("é", 1), completion("b", 2) + completion("c", 3), total(5, 3) + DONE]
    shape = Shapes(raw=False).of_job(request_of({"openai_input": {"stream": True}}, "served"))
    found = outputs(shape, groups)
    assert [[chunk["usage"]["completion_tokens"] for chunk in part] for part in found] == [
        [1],
        [2, 3],
        [3],
    ]
    assert found[0][0]["choices"][0]["text"] == "é"
    assert "".join(event(chunk) for part in found for chunk in part) + DONE == "".join(groups)


def test_a_group_without_a_chunk_is_no_list() -> None:
    shape = ChunkLists(request_of({"openai_input": {"stream": True}}, "served"))
    assert outputs(shape, [DONE, ": a comment\n\n"]) == []


def test_an_error_stays_among_the_chunks() -> None:
    shape = ChunkLists(request_of({"openai_input": {"stream": True}}, "served"))
    (found,) = outputs(shape, [completion("a", 1) + event({"error": ERROR}) + DONE])
    assert found[1] == {"error": ERROR}


def test_events_with_names_become_their_data() -> None:
    shape = ChunkLists(request_of({"route": "/v1/responses", "body": {"stream": True}}, "served"))
    assert outputs(shape, ['event: response.created\ndata: {"type":"response.created"}\n\n']) == [
        [{"type": "response.created"}]
    ]


@pytest.mark.parametrize(
    ("environment", "plain", "openai"),
    [
        ({}, Shape, Shape),
        ({"LEGACY_NATIVE_OUTPUT": "false", "RAW_OPENAI_OUTPUT": "1"}, Shape, Shape),
        ({"LEGACY_NATIVE_OUTPUT": "1"}, Native, Shape),
        ({"RAW_OPENAI_OUTPUT": "0"}, Shape, ChunkLists),
        ({"LEGACY_NATIVE_OUTPUT": "true", "RAW_OPENAI_OUTPUT": "false"}, Native, ChunkLists),
    ],
)
def test_each_switch_changes_the_jobs_it_is_about(
    environment: dict[str, str], plain: type[Shape], openai: type[Shape]
) -> None:
    shapes = Shapes.of(Settings.from_env(environment))

    def kind(job_input: dict[str, Any]) -> type[Shape]:
        return type(shapes.of_job(request_of(job_input, "served")))

    assert kind({"prompt": "Hi"}) is plain
    assert kind({"messages": MESSAGES}) is plain
    assert kind({"openai_input": {"messages": MESSAGES}}) is openai
    assert kind({"route": "/v1/completions", "body": {"prompt": "Hi"}}) is openai


def test_the_current_shape_is_what_vllm_sent() -> None:
    request = request_of({"prompt": "Hi", "stream": True}, "served")
    shape = legacy.CURRENT.of_job(request)
    assert Shapes.of(Settings.from_env({})) == legacy.CURRENT
    assert shape.body == request.body
    assert outputs(shape, counted(3)) == counted(3)
    assert shape.whole({"choices": []}) == {"choices": []}
