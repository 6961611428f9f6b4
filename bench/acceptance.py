"""What the acceptance rules do to sampled text with a greedy draft.

Mean tokens per verified draft (1 to K + 1) and tokens per second of the same sampled requests
on the demo model, by rule:

  exact             rejection sampling: the target's distribution
  typical           typical acceptance, LOSSY; the target's first choice after a rejection
  typical, sampled  typical acceptance, LOSSY; a sampled token after a rejection

The draft is the target with noise on its weights: their first choices mostly agree. It is as
large as the target, so the rates compare rules and say nothing about speculation itself.
The engines live at once and take turns within each round; those that wait are stopped.

Usage: python bench/acceptance.py [--rounds N] [--requests N] [--tokens N] [--noise X]
                                  [--temperature T] [--json]
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent.parent))

from specworker import demo_model, main
from specworker.engine import Engine
from specworker.main import LOCAL_DEFAULTS, PROCESS_DEFAULTS
from specworker.pausing import children, stopped
from tests.engines import complete

if TYPE_CHECKING:
    import psutil

DRAFTED = 4
TYPICAL = {"SPEC_DECODING_ACCEPTANCE_METHOD": "typical_acceptance_sampler"}
RULES = {
    "exact": {},
    "typical": TYPICAL,
    "typical, sampled": TYPICAL | {"TYPICAL_ACCEPTANCE_RECOVERY": "sample"},
}
PROMPTS = (
    "The history of the lighthouse begins",
    "To bake a good loaf of bread, first",
    "Dear Sir or Madam, I am writing to",
    "The main difference between a virus and a bacterium is",
    "Once upon a time, in a village by the sea,",
    "import json\n\ndef read(path):\n",
    "In economics, inflation means",
    "The capital of France is Paris, and",
)


def noisy(target: Path, share: float, draft: Path) -> Path:
    """Write a copy of a model whose weights have noise, a `share` of their own deviation."""
    shutil.copytree(target, draft)
    random = torch.Generator().manual_seed(0)
    for file in draft.glob("*.safetensors"):
        tensors = load_file(file)
        for name, weights in tensors.items():
            noise = torch.randn(weights.shape, generator=random)
            tensors[name] = (weights + share * weights.float().std() * noise).to(weights.dtype)
        save_file(tensors, file, metadata={"format": "pt"})
    return draft


def load(target: Path, draft: Path, rule: Mapping[str, str]) -> Engine:
    environment = {
        "MODEL_NAME": str(target),
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "demo",
        "SPECULATIVE_MODEL": str(draft),
        "NUM_SPECULATIVE_TOKENS": str(DRAFTED),
        "MAX_MODEL_LEN": "1024",
        "MAX_NUM_SEQS": "64",
        "KV_CACHE_MEMORY_BYTES": str(512 * 1024**2),
        **rule,
    }
    return main.load(environment, *main.configure(environment))


async def traffic(engine: Engine, options: argparse.Namespace, seed: int) -> dict[str, float]:
    """What the requests of one round come to: verified and accepted drafts, and tokens/s."""
    body: dict[str, Any] = {
        "temperature": options.temperature,
        "max_tokens": options.tokens,
        "ignore_eos": True,
    }
    started = time.perf_counter()
    answers = await asyncio.gather(
        *(
            complete(engine, PROMPTS[number % len(PROMPTS)], seed=seed + number, **body)
            for number in range(options.requests)
        )
    )
    rate = options.requests * options.tokens / (time.perf_counter() - started)
    figures = [answer["metrics"]["speculative_decoding"] for answer in answers]
    return {
        "drafts": sum(figure["num_spec_steps"] for figure in figures),
        "accepted": sum(figure["num_accepted_draft_tokens"] for figure in figures),
        "rate": rate,
    }


async def compare(options: argparse.Namespace, messages: Console) -> dict[str, Any]:
    """The figures of every round, by rule."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in RULES}
    with tempfile.TemporaryDirectory() as work:
        target = demo_model.prepare()
        draft = noisy(target, options.noise, Path(work) / "draft")
        engines: dict[str, Engine] = {}
        processes: dict[str, set[psutil.Process]] = {}
        for name, rule in RULES.items():
            messages.print(f"Starting the engine: {name} …")
            others = children()
            with stopped(list(others)):
                engines[name] = load(target, draft, rule)
            processes[name] = children() - others
        for number in track(range(-1, options.rounds), "rounds", console=messages):
            names = list(RULES)[number % 3 :] + list(RULES)[: number % 3]
            for name in names:
                waiting = set().union(*(processes[other] for other in RULES if other != name))
                with stopped(list(waiting)):
                    figures = await traffic(engines[name], options, 1000 * (number + 2))
                if number >= 0:  # the first warms up
                    rounds[name].append(figures)
        for engine in engines.values():
            await engine.aclose()
    return rounds


def mean_length(rounds: list[dict[str, float]]) -> float:
    """Tokens per verified draft, the bonus token included."""
    return 1 + sum(each["accepted"] for each in rounds) / sum(each["drafts"] for each in rounds)


def report(measured: Mapping[str, list[dict[str, float]]]) -> Table:
    table = Table(title="sampled text, greedy draft; ratios are medians over rounds")
    for column in ("rule", "tokens/draft", "tokens/s", "over exact"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    exact = [figures["rate"] for figures in measured["exact"]]
    for name, rounds in measured.items():
        rates = [figures["rate"] for figures in rounds]
        ratios = [ours / theirs for ours, theirs in zip(rates, exact, strict=True)]
        table.add_row(
            name,
            f"{mean_length(rounds):.3f}",
            f"{statistics.median(rates):.1f}",
            f"{statistics.median(ratios):.3f} ({min(ratios):.2f}–{max(ratios):.2f})",
        )
    return table


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each request")
    parser.add_argument("--noise", type=float, default=0.05, help="of the draft's weights")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--json", action="store_true", help="every figure as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    for variable, value in (PROCESS_DEFAULTS | LOCAL_DEFAULTS).items():
        os.environ.setdefault(variable, value)
    arguments = parse()
    found = uvloop.run(compare(arguments, Console(stderr=True)))
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        Console().print(report(found))
