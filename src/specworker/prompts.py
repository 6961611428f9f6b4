"""Prompts from a file: OpenAI's batch form, or ShareGPT's conversations.

A batch is a line for each request: `{"custom_id", "method", "url", "body"}`. ShareGPT is an
array, or a line for each conversation: `{"conversations": [{"from": "human", "value": …}, …]}`.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specworker.errors import ConfigurationError
from specworker.values import shown
from specworker.workloads import Prompt, Workload

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
#: Fields of a request that whoever measures decides: how it is sampled, counted and sent.
NOT_USED = (
    "best_of",
    "frequency_penalty",
    "min_p",
    "model",
    "n",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "stream",
    "stream_options",
    "temperature",
    "top_k",
    "top_p",
)
#: Who speaks in ShareGPT -> the role in OpenAI's words.
ROLES = {
    "assistant": "assistant",
    "chatgpt": "assistant",
    "gpt": "assistant",
    "human": "user",
    "system": "system",
    "user": "user",
}
#: What a line may be, in words.
FORMS = (
    '{"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": {"messages": …}} '
    'or {"conversations": [{"from": "human", "value": …}, …]}'
)


class _UselessError(Exception):
    """A request that is understood and of no use here."""


class _WrongError(Exception):
    """A request that is not as it should be: which field, what is wrong, what is allowed."""


def read(file: Path) -> Workload:
    """The prompts in `file`.

    Raises:
        ConfigurationError: the file cannot be read, or a line of it is of neither form, or
            nothing in it can be asked.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(
            [f"--prompts {file}: cannot be read ({reason}); allowed: a file of JSON lines"]
        ) from None
    found, notes = of(text, str(file))
    return Workload(file.name, f"the prompts of {file.name}", found, notes)


def of(text: str, file: str) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """The prompts in `text`, the content of `file`, and what of it is not used.

    Raises:
        ConfigurationError: as `read`.
    """
    prompts: list[Prompt] = []
    problems: list[str] = []
    skipped: dict[str, list[str]] = {}
    unused: Counter[str] = Counter()
    for place, value in _objects(text, file, problems):
        try:
            prompt, without = _prompt(value, place)
        except _UselessError as reason:
            skipped.setdefault(str(reason), []).append(place)
        except _WrongError as reason:
            problems.append(f"--prompts {file}, {place}: {reason}")
        else:
            prompts.append(prompt)
            unused.update(without)
    if not prompts and not problems:
        reasons = "; ".join(skipped) or "it is empty"
        problems.append(f"--prompts {file}: nothing in it can be asked ({reasons}); {_allowed()}")
    if problems:
        raise ConfigurationError([*problems[:5], *_rest(problems[5:])])
    notes = [_skipped(file, reason, places) for reason, places in skipped.items()]
    if unused:
        counted = ", ".join(f"{name} ({count})" for name, count in sorted(unused.items()))
        notes.append(f"--prompts {file}: not used of the requests, all are greedy: {counted}")
    return tuple(prompts), tuple(notes)


def _objects(text: str, file: str, problems: list[str]) -> Iterator[tuple[str, Any]]:
    """The JSON values of an array or of lines, and where each stands; what is no JSON is told."""
    if text.lstrip().startswith("["):
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            problems.append(f"--prompts {file}: is no JSON array ({error}); {_allowed()}")
            return
        yield from ((f"item {number}", value) for number, value in enumerate(values, 1))
        return
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", json.loads(line)
        except json.JSONDecodeError as error:
            problems.append(f"--prompts {file}, line {number}: is no JSON ({error}); {_allowed()}")


def _prompt(value: Any, place: str) -> tuple[Prompt, list[str]]:
    if isinstance(value, dict) and "body" in value:
        return _of_batch(value, place)
    if isinstance(value, dict) and "conversations" in value:
        return _of_conversation(value, place), []
    raise _WrongError(f"{shown(json.dumps(value))} is of neither form; {_allowed()}")


def _of_batch(value: Mapping[str, Any], place: str) -> tuple[Prompt, list[str]]:
    """A request of a batch, and the fields of it that are not used."""
    url, body = value.get("url", CHAT), value["body"]
    if url not in (CHAT, COMPLETIONS):
        raise _UselessError(f"url {shown(str(url))} is neither {CHAT} nor {COMPLETIONS}")
    if not isinstance(body, dict):
        raise _WrongError(f"body={shown(json.dumps(body))}; allowed: an object")
    own = dict(body)
    without = [name for name in NOT_USED if own.pop(name, None) is not None]
    longest = own.pop("max_completion_tokens", None)
    limit = own.pop("max_tokens", None)
    tokens = longest if longest is not None else limit
    if tokens is not None and (type(tokens) is not int or tokens < 1):
        raise _WrongError(
            f"body.max_tokens={shown(json.dumps(tokens))}; allowed: an integer from 1 on"
        )
    name = str(value.get("custom_id") or place)
    if url == CHAT:
        messages = _messages(own.pop("messages", None))
        return Prompt(name, messages, max_tokens=tokens, extra=own), without
    text = own.pop("prompt", None)
    if not isinstance(text, str) or not text:
        raise _WrongError(
            f"body.prompt={shown(json.dumps(text))}; allowed: a text that is not empty"
        )
    return Prompt(name, text=text, max_tokens=tokens, extra=own), without


def _messages(given: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(given, list) or not given:
        raise _WrongError(
            f'body.messages={shown(json.dumps(given))}; allowed: a list of {{"role", "content"}}'
        )
    for number, message in enumerate(given):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _WrongError(
                f"body.messages[{number}]={shown(json.dumps(message))}; "
                'allowed: an object with "role" and "content"'
            )
    return tuple(given)


def _of_conversation(value: Mapping[str, Any], place: str) -> Prompt:
    """The turns of a conversation before its last answer, which the model is to give."""
    turns = value["conversations"]
    if not isinstance(turns, list):
        raise _WrongError(f"conversations={shown(json.dumps(turns))}; allowed: a list of turns")
    messages = []
    for number, turn in enumerate(turns):
        speaker, said = (turn.get("from"), turn.get("value")) if isinstance(turn, dict) else (0, 0)
        if not isinstance(speaker, str) or not isinstance(said, str):
            raise _WrongError(
                f"conversations[{number}]={shown(json.dumps(turn))}; "
                'allowed: {"from": "human", "value": a text}'
            )
        if speaker.lower() not in ROLES:
            raise _UselessError(f"a turn is from {shown(speaker)}, none of {', '.join(ROLES)}")
        messages.append({"role": ROLES[speaker.lower()], "content": said})
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    if not messages:
        raise _UselessError("the conversation has no turn of a human")
    return Prompt(str(value.get("id") or place), tuple(messages))


def _skipped(file: str, reason: str, places: list[str]) -> str:
    named = ", ".join(places[:5]) + (" …" if len(places) > 5 else "")
    return f"--prompts {file}: {len(places)} skipped ({named}): {reason}"


def _allowed() -> str:
    return f"allowed: lines of {FORMS}"


def _rest(problems: list[str]) -> list[str]:
    return [f"and {len(problems)} lines more that are wrong"] if problems else []
