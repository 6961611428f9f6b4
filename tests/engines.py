"""Real engines for the tests: one at a time, since they share this machine's cores."""

import json
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from specworker import main, serving
from specworker.engine import Engine
from tests import forked

NGRAM = {
    "NUM_SPECULATIVE_TOKENS": "3",
    "NGRAM_PROMPT_LOOKUP_MIN": "2",
    "NGRAM_PROMPT_LOOKUP_MAX": "4",
}
UP_TO_TWO = {"SPECULATIVE_DISABLE_BY_BATCH_SIZE": "2"}


class Rack:
    """Holds the engine that runs, and replaces it when another configuration is asked for."""

    def __init__(self, environments: Mapping[str, Mapping[str, str]]) -> None:
        self._environments = environments
        self._running: tuple[str, Engine] | None = None

    async def get(self, name: str) -> Engine:
        """The engine of the configuration `name`."""
        if self._running is None or self._running[0] != name or self._running[1].client.errored:
            await self.close()
            environment = dict(self._environments[name])
            with forked.processes():
                engine = main.load(environment, *main.configure(environment))
            self._running = (name, engine)
        return self._running[1]

    async def close(self) -> None:
        """Stop the engine that runs."""
        if self._running is not None:
            running, self._running = self._running[1], None
            await running.aclose()


async def outputs(engine: Engine, job_input: Any, stream_interval: float = 0.05) -> list[Any]:
    """Everything that a job puts out."""
    async with aclosing(serving.outputs(engine, job_input, stream_interval)) as generator:
        return [output async for output in generator]


async def complete(engine: Engine, prompt: str | list[int], **body: Any) -> dict[str, Any]:
    """The answer to a completion, greedy unless told otherwise, with its token ids."""
    route = {"route": "/v1/completions"}
    asked = {"prompt": prompt, "temperature": 0, "return_token_ids": True, **body}
    (answer,) = await outputs(engine, {**route, "body": asked})
    assert "error" not in answer, answer
    return dict(answer)


def events(pieces: list[str]) -> list[dict[str, Any]]:
    """The JSON events of a streamed answer, which must end as OpenAI's do."""
    lines = "".join(pieces).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""], lines[-2:]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
