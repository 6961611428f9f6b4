"""The output shapes of older Runpod vLLM workers, for clients that still read them.

LEGACY_NATIVE_OUTPUT=true answers prompt- and messages-shaped jobs as workers before 2.24 did:
`{"choices": [{"tokens": [text, …]}, …], "usage": {"input": N, "output": M}}`.
RAW_OPENAI_OUTPUT=false streams the other jobs as lists of parsed chunks.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from specworker.sse import MAX_GROUP_CHARACTERS

if TYPE_CHECKING:
    from specworker.jobs import Request
    from specworker.settings import Settings


@dataclass(frozen=True)
class Batching:
    """How many deltas a yield of a native stream waits for.

    Attributes:
        smallest: those of the first yield.
        growth: how many times more each later yield waits for; 1 or less makes every
            yield wait for `largest`, and so does a `smallest` above it.
        largest: where the growth ends.
    """

    smallest: float = 1
    growth: float = 3
    largest: float = 50

    @classmethod
    def of(cls, settings: "Settings") -> "Batching":
        """What the environment says. Where a variable has two names, DEFAULT_… wins."""
        return cls(
            settings.default_min_batch_size or settings.min_batch_size or cls.smallest,
            settings.default_batch_size_growth_factor
            or settings.batch_size_growth_factor
            or cls.growth,
            settings.default_batch_size,
        )

    def of_job(self, said: Mapping[str, float]) -> "Batching":
        """The same with what a job says for itself."""
        return Batching(
            said.get("min_batch_size", self.smallest),
            said.get("batch_size_growth_factor", self.growth),
            said.get("max_batch_size", said.get("batch_size", self.largest)),
        )

    def sizes(self) -> Iterator[float]:
        """Deltas that each yield waits for, without end."""
        size = self.smallest if self.growth > 1 else self.largest
        while True:
            yield (size := min(size, self.largest))
            size *= max(self.growth, 1)


class Shape:
    """The outputs of one job; these are the current ones: vLLM's answer as it is.

    Attributes:
        body: what vLLM is asked.
    """

    def __init__(self, request: "Request") -> None:
        self.body = request.body

    def whole(self, body: Any) -> Any:
        """The output for an answer that did not fail and is no stream."""
        return body

    def outputs(self, group: str) -> Iterator[Any]:
        """Outputs for the next whole events of a stream."""
        yield group

    def rest(self) -> Iterator[Any]:
        """Outputs for what waits when the stream has ended."""
        yield from ()


class ChunkLists(Shape):
    """Streams as lists of parsed chunks, without `[DONE]`; an error stays in its list."""

    def outputs(self, group: str) -> Iterator[Any]:
        """One list for each group that holds a chunk."""
        if found := list(chunks(group)):
            yield found


class Native(Shape):
    """The native output of workers before 2.24.

    A delta is what one chunk adds to one choice: text, or the end of the choice, whose
    text may be empty. Deltas of all choices count together. An error in a stream has no
    native shape: it ends in no text here and is the caller's, who reads the same events.
    What a parser has taken out of the text, reasoning or tool calls, is not in it. Notes of
    the worker's are in the first output, under `metrics`, where there are any.
    """

    def __init__(self, request: "Request", batching: Batching) -> None:
        super().__init__(request)
        self._asked = request.body
        if self._asked.get("stream"):
            counts = {"include_usage": True, "continuous_usage_stats": True}
            self.body = {**self._asked, "stream_options": counts}
        self._sizes = batching.sizes()
        self._size = next(self._sizes)
        self._waiting: list[tuple[int, str]] = []
        self._usage: dict[str, int] = {"input": 0, "output": 0}
        self._inputs: dict[int, int] = {}
        self._outputs: dict[int, int] = {}
        self._metrics: dict[str, Any] = {}

    def whole(self, body: Any) -> Any:
        """One output with the full text of each choice."""
        self._count(body)
        return self._output([[_text(choice)] for choice in body["choices"]])

    def outputs(self, group: str) -> Iterator[Any]:
        """The batches that these events complete."""
        for chunk in chunks(group):
            if chunk.get("error"):
                continue
            self._count(chunk)
            for choice in chunk["choices"]:
                if (text := _text(choice)) or choice.get("finish_reason"):
                    self._waiting.append((choice["index"], text))
            characters = sum(len(text) for _, text in self._waiting)
            if len(self._waiting) >= self._size or characters >= MAX_GROUP_CHARACTERS:
                yield from self.rest()
                self._size = next(self._sizes)

    def rest(self) -> Iterator[Any]:
        """The deltas that wait, as a batch; nothing when none do."""
        if self._waiting:
            tokens: list[list[str]] = [[] for _ in range(self._prompts * self._n)]
            for index, text in self._waiting:
                tokens[index].append(text)
            self._waiting.clear()
            yield self._output(tokens)

    def _output(self, tokens: list[list[str]]) -> dict[str, Any]:
        metrics, self._metrics = self._metrics, {}
        choices = [{"tokens": texts} for texts in tokens]
        return {"choices": choices, "usage": {**self._usage}, **metrics}

    def _count(self, answer: Mapping[str, Any]) -> None:
        """Take in the usage of an answer or chunk, and its notes.

        A chunk with one choice counts the tokens of that choice, and of its prompt, so
        far; everything else counts the whole request.
        """
        if notes := (answer.get("metrics") or {}).get("notes"):
            self._metrics = {"metrics": {"notes": notes}}
        if not (usage := answer.get("usage")):
            return
        read, written = usage["prompt_tokens"], usage.get("completion_tokens") or 0
        if len(answer["choices"]) == 1:
            index = answer["choices"][0]["index"]
            self._inputs[index // self._n], self._outputs[index] = read, written
            read, written = sum(self._inputs.values()), sum(self._outputs.values())
        self._usage = {"input": read, "output": written}

    @cached_property
    def _n(self) -> int:
        """Choices for each prompt, as vLLM took the number, which may be text."""
        return int(float(self._asked.get("n") or 1))

    @cached_property
    def _prompts(self) -> int:
        prompt = self._asked.get("prompt")
        several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        return len(prompt) if several else 1


@dataclass(frozen=True)
class Shapes:
    """The shapes that a worker's outputs have; the current ones when nothing is said.

    Attributes:
        native: whether prompt- and messages-shaped jobs get the old native output.
        raw: whether streams of the other jobs are text, not lists of chunks.
        batching: that of native streams whose job says nothing.
    """

    native: bool = False
    raw: bool = True
    batching: Batching = field(default_factory=Batching)

    @classmethod
    def of(cls, settings: "Settings") -> "Shapes":
        """What the environment says."""
        return cls(settings.legacy_native_output, settings.raw_openai_output, Batching.of(settings))

    def of_job(self, request: "Request") -> Shape:
        """The shape of one job's outputs."""
        if request.batching is None:
            return Shape(request) if self.raw else ChunkLists(request)
        if self.native:
            return Native(request, self.batching.of_job(request.batching))
        return Shape(request)


#: vLLM's answers as they are.
CURRENT = Shapes()


def chunks(group: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a group of whole events."""
    for line in group.split("\n"):  # splitlines would also cut at separators inside a text
        if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
            yield json.loads(data)


def _text(choice: Mapping[str, Any]) -> str:
    """The text that a choice of a completion or chat has, or adds in a chunk."""
    message = choice.get("delta") or choice.get("message") or {}
    return choice.get("text") or message.get("content") or ""
