"""What is asked while speculation is measured: prompts that come with the package, or a file."""

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from typing import Any

#: The workloads that come with the package, each a file of `prompts` below `texts/`.
BUILT_IN = {
    "copy": "a file is given, one name in it is changed, and the whole file is the answer",
    "summarize": "a text is given, and its main points are the answer",
    "rag": "passages are given, and a question is answered from them",
    "code": "a function is described, and code is the answer",
    "chat": "open questions; little of the answer stands in the question",
    "json": "a text is given, and fields of it are the answer, as JSON",
}


@dataclass(frozen=True)
class Prompt:
    """A request; exactly one of `messages` and `text` is there.

    Attributes:
        name: what a person finds it by: its id, else its line.
        messages: of a chat.
        text: what is to be continued.
        max_tokens: the longest answer; None where the one who asks decides.
        extra: other fields of the request, such as tools, sent as they are.
    """

    name: str
    messages: tuple[Mapping[str, Any], ...] = ()
    text: str = ""
    max_tokens: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> dict[str, Any]:
        """The fields of the request that say what is asked."""
        given = {"messages": list(self.messages)} if self.messages else {"prompt": self.text}
        return {**given, **self.extra}


@dataclass(frozen=True)
class Workload:
    """Prompts that are measured together.

    Attributes:
        name: of a workload that comes with the package, or the file's.
        description: what it is, in a clause.
        prompts: the requests, in the order in which they are sent.
        notes: what the user should know: lines that were skipped, fields that are not used.
    """

    name: str
    description: str
    prompts: tuple[Prompt, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def sha256(self) -> str:
        """What tells these prompts from any others, their order included."""
        content = [[prompt.asked, prompt.max_tokens] for prompt in self.prompts]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def sample(self, limit: int | None, seed: int = 0) -> "Workload":
        """At most `limit` of the prompts, all where None, in an order that `seed` decides."""
        drawn = random.Random(seed).sample(self.prompts, len(self.prompts))  # noqa: S311
        return replace(self, prompts=tuple(drawn[:limit]))


def built_in(name: str) -> Workload:
    """The workload `name`, which is one of `BUILT_IN`."""
    from specworker import prompts

    file = resources.files("specworker") / "texts" / f"{name}.jsonl"
    read, _ = prompts.of(file.read_text(encoding="utf-8"), file.name)
    return Workload(name, BUILT_IN[name], read)
