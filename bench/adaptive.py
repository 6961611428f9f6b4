"""What a K that adapts reaches, against no speculation and against every fixed K.

Tokens per second by way of drafting, workload and number of requests at a time. One engine a
way of drafting: its arms differ in K alone, take turns round by round in a changing order, and
answer the same prompts with as many tokens; prompts or seeds differ from round to round.
Adapting keeps what it knows between its own rounds; before them every arm has a few tokens to
warm up, and adapting some rounds to learn in, of `drift` one. A round's rate is taken while so
many requests decode. Absolute figures are those of this machine.

Ways of drafting:

  ngram    the demo model, by n-grams of its text
  good     a target of three times the demo model's layers, of which two thirds change next to
           nothing, and the demo model as its draft: accepted often, at a third of the cost
  poor     a target of twice the layers whose second half changes more: accepted less often, at
           half the cost
  equal    the demo model, with itself as its draft: accepted always at temperature 0, and
           as dear as the target

"trials" is the share of its time that adapting lost to trying other K, as it counts them itself.

Workloads: `copy` repeats a text, `json` continues a list of records, `prose` tells a story,
and `drift` is copy, prose and copy again, one after the other; each of its answers is longer, the
longest where requests are alone, since few requests tell less of what a draft is worth.

By default ngram is measured with 1 and 4 requests at a time, in a few minutes and too few rounds to
tell a few per cent apart on a machine that is shared; everything takes two hours on one core.

Usage: python bench/adaptive.py [--methods LIST] [--workloads LIST] [--requests LIST]
                                [--rounds N] [--tokens N] [--json]
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from builder import deep
from specworker import demo_model
from specworker.engine import Engine, arguments
from specworker.inside_vllm.steering import Steering
from specworker.main import LOCAL_DEFAULTS, PROCESS_DEFAULTS

TEXT = (
    "The harbour lay quiet when the first boats came in. Anna counted nine of them, wrote the "
    "number down, and went to wake her brother. He had promised to mend the net before noon, "
    "but the needle was lost and the twine was wet."
)
#: Characters of it that are given, and how many places there are to go on from.
BEGUN, STARTS = 53, 12
COPY = f"{TEXT}\n\nThe same text again:\n{TEXT}\n\nAnd the same text once more:\n{TEXT[:BEGUN]}"
RECORDS = [
    {"id": 17, "name": "Anna Berg", "city": "Bergen", "age": 31, "tags": ["sailing", "chess"]},
    {"id": 18, "name": "Ben Okafor", "city": "Lagos", "age": 28, "tags": ["music"]},
    {"id": 19, "name": "Carla Diaz", "city": "Lima", "age": 45, "tags": ["hiking", "film"]},
]
JSON = "".join(json.dumps(record) + "\n" for record in RECORDS) + '{"id": 20, "name": "'
PROSE = "Once upon a time, in a village by the sea, there lived"
#: A prompt and its temperature, by workload; and the workloads that follow one another in drift.
TEXTS = {"copy": (COPY, 0.0), "json": (JSON, 0.0), "prose": (PROSE, 1.0)}
DRIFT = ("copy", "prose", "copy")
WORKLOADS = (*TEXTS, "drift")
ADAPTIVE = "adaptive"
#: Requests one after the other in a round, rounds that adapting has to learn in, and tokens of
#: an answer that only warms up.
WAVES, LEARNS, WARM_UP = 2, 4, 8
#: Tokens of an answer of drift, of a single request, as so many of another workload.
LONGER = 8


@dataclass(frozen=True)
class Method:
    """A way of drafting: the target, vLLM's speculative config, and the fixed K to compare with."""

    model: Path
    config: Mapping[str, Any]
    fixed: Sequence[int]

    @property
    def most(self) -> int:
        """The largest K."""
        return max(self.fixed)


@dataclass
class Cell:
    """What was measured of a workload: tokens/s of each round by arm, and what adapting knew."""

    method: str
    workload: str
    requests: int
    rates: dict[str, list[float]] = field(default_factory=dict)
    state: dict[str, Any] | None = None

    def ratio(self, arm: str) -> float:
        """How many times as fast as an arm adapting was: the median over the rounds."""
        pairs = zip(self.rates[ADAPTIVE], self.rates[arm], strict=True)
        return statistics.median(adaptive / other for adaptive, other in pairs)

    @property
    def best(self) -> str:
        """The fastest of the other arms."""
        others = {arm: rates for arm, rates in self.rates.items() if arm != ADAPTIVE}
        return max(others, key=lambda arm: statistics.median(others[arm]))


def methods(target: Path, folder: Path) -> dict[str, Callable[[], Method]]:
    """The ways of drafting, to be made when they are needed; models are written to `folder`."""
    ngram = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    drafted = {"method": "draft_model", "model": str(target)}
    return {
        "ngram": lambda: Method(target, ngram, (2, 8)),
        "good": lambda: Method(deep.deepened(target, folder / "good", 3, 0.03), drafted, (2, 4)),
        "poor": lambda: Method(deep.deepened(target, folder / "poor", 2, 0.1), drafted, (2, 4)),
        "equal": lambda: Method(target, drafted, (1, 4)),
    }


def load(method: Method) -> Engine:
    environment = {
        "MODEL_NAME": str(method.model),
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "demo",
        "MAX_MODEL_LEN": "1024",
        "MAX_NUM_SEQS": "16",
        "KV_CACHE_MEMORY_BYTES": str(512 * 1024**2),
    }
    config = {**method.config, "num_speculative_tokens": method.most}
    args, _ = arguments(environment, config, {})
    return Engine(args, steered=Steering(adaptive=True))


def request_of(workload: str, number: int) -> tuple[str, float]:
    """The prompt of a request and its temperature; one number has one text."""
    prompt, temperature = TEXTS[workload]
    if workload == "copy":  # each begins elsewhere, so that they are not in step
        prompt += TEXT[BEGUN : BEGUN + 8 * (number % STARTS)]
    if workload == "json":
        prompt += ascii_uppercase[number % len(ascii_uppercase)]
    return prompt, temperature


async def tokens_per_second(
    engine: Engine, workload: str, at_once: int, tokens: int, number: int = 0
) -> float:
    """The rate of a round while so many requests decode: until the first has no successor."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    texts = DRIFT if workload == "drift" else (workload,)
    length = round(tokens * LONGER / at_once**0.5) if workload == "drift" else tokens
    each = 1 if workload == "drift" else WAVES
    waiting = iter(range(number * at_once * each, (number + 1) * at_once * each))
    generated = before = 0
    begun, began, ended = 0, 0.0, 0.0

    async def ask(request: int, *, is_first: bool) -> None:
        nonlocal generated, before, begun, began
        for part, text in enumerate(texts):
            prompt, temperature = request_of(text, request)
            parameters = SamplingParams(
                temperature=temperature,
                seed=request if temperature else None,
                max_tokens=length,
                ignore_eos=True,
                output_kind=RequestOutputKind.DELTA,
            )
            identifier = f"{time.monotonic_ns()}-{request}-{part}"
            async for output in engine.client.generate(prompt, parameters, identifier):
                generated += len(output.outputs[0].token_ids) * (not ended)
                if is_first:
                    is_first, begun = False, begun + 1
                    if begun == at_once:
                        began, before = time.perf_counter(), generated

    async def one_after_the_other() -> None:
        nonlocal ended
        is_first = True
        for request in waiting:
            await ask(request, is_first=is_first)
            is_first = False
        ended = ended or time.perf_counter()

    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    return (generated - before) / (ended - began)


async def fill(cell: Cell, engine: Engine, method: Method, rounds: int, tokens: int) -> None:
    """Measure a cell: every arm once a round, after it has warmed up."""
    arms = {"off": 0, **{f"K={k}": k for k in method.fixed}, ADAPTIVE: method.most}
    cell.rates = {arm: [] for arm in arms}

    async def measure(arm: str, number: int, tokens: int = tokens) -> float:
        await (engine.adapt if arm == ADAPTIVE else engine.set_tokens)(arms[arm])
        return await tokens_per_second(engine, cell.workload, cell.requests, tokens, number)

    for arm in arms:
        await measure(arm, rounds, WARM_UP)
    for number in range(LEARNS if cell.workload != "drift" else 1):
        await measure(ADAPTIVE, rounds + 1 + number)
    for number in range(rounds):
        turned = [*arms][number % len(arms) :] + [*arms][: number % len(arms)]
        for arm in turned[:: 1 - 2 * (number % 2)]:
            cell.rates[arm].append(await measure(arm, number))
            if arm == ADAPTIVE:
                cell.state = await engine.adapting()


async def compare(options: argparse.Namespace, messages: Console) -> list[Cell]:
    """Every cell that was asked for."""
    cells = []
    with tempfile.TemporaryDirectory() as work:
        known = methods(demo_model.prepare(), Path(work))
        for name in options.methods:
            method = known[name]()
            messages.print(f"Starting the engine of {name} …")
            engine = load(method)
            for workload in options.workloads:
                for requests in options.requests:
                    cell = Cell(name, workload, requests)
                    await fill(cell, engine, method, options.rounds, options.tokens)
                    messages.print(line(cell))
                    cells.append(cell)
            await engine.aclose()
    return cells


def line(cell: Cell) -> str:
    """A cell in a line."""
    rates = ", ".join(f"{arm} {statistics.median(rates):.1f}" for arm, rates in cell.rates.items())
    found = f"{cell.ratio(cell.best):.3f} of the best ({cell.best})"
    return f"{cell.method} {cell.workload} x{cell.requests}: {rates} tokens/s; {found}"


def report(cells: Sequence[Cell]) -> Table:
    table = Table(title="tokens/s, medians over rounds; adaptive over the better of all others")
    columns = (
        "method",
        "workload",
        "requests",
        "off",
        "fixed K",
        ADAPTIVE,
        "trials",
        "over",
        "ratio",
    )
    for column in columns:
        table.add_column(column)
    for cell in cells:
        medians = {arm: f"{statistics.median(rates):.1f}" for arm, rates in cell.rates.items()}
        off, adaptive = medians.pop("off"), medians.pop(ADAPTIVE)
        pairs = zip(cell.rates[ADAPTIVE], cell.rates[cell.best], strict=True)
        ratios = [with_it / without for with_it, without in pairs]
        table.add_row(
            cell.method,
            cell.workload,
            str(cell.requests),
            off,
            ", ".join(f"{arm}: {rate}" for arm, rate in medians.items()),
            adaptive,
            f"{cell.state['trials']:.1%}" if cell.state else "",
            cell.best,
            f"{cell.ratio(cell.best):.3f} ({min(ratios):.2f}–{max(ratios):.2f})",
        )
    return table


def parse() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(number) for number in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--methods", type=names, default=["ngram"])
    parser.add_argument("--workloads", type=names, default=[*WORKLOADS])
    parser.add_argument("--requests", type=numbers, default=[1, 4], help="at a time")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=48, help="of an answer")
    parser.add_argument("--json", action="store_true", help="every figure as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    for variable, value in (PROCESS_DEFAULTS | LOCAL_DEFAULTS).items():
        os.environ.setdefault(variable, value)
    asked = parse()
    measured = uvloop.run(compare(asked, Console(stderr=True)))
    if asked.json:
        print(json.dumps([vars(cell) for cell in measured], indent=2))
    else:
        Console().print(report(measured))
