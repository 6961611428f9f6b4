"""What speculation costs while it is off: above SPECULATIVE_DISABLE_BY_BATCH_SIZE.

Tokens per second while a batch above the threshold runs, greedy, on the demo model,
against the same batch without speculation. Both engines live at once and take turns within each
round; the one that waits is stopped. Ratios are medians over the rounds; absolute figures
are those of this machine.

Usage: python bench/off.py [--rounds N] [--requests N] [--tokens N] [--methods LIST] [--json]
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from builder import heads, mtp
from specworker import acceptance, demo_model, layer_cut, main
from specworker.engine import Engine
from specworker.main import LOCAL_DEFAULTS, PROCESS_DEFAULTS
from specworker.pausing import children, stopped

THRESHOLD = 2
PROMPT = "One two three four. One two three four. One two three four. One two"
#: vLLM's own worker, without what this project puts in the place of its parts.
VLLMS_OWN = {"WORKER_CLS": "vllm.v1.worker.cpu_worker.CPUWorker"}


def variables(target: Path, folder: Path) -> dict[str, dict[str, str]]:
    """The variables of each method, its draft written to `folder`."""
    draft = str(layer_cut.cut(target, range(0, 30, 3), folder / "draft"))
    with_draft = {"SPECULATIVE_MODEL": draft, "NUM_SPECULATIVE_TOKENS": "4"}
    medusa = {"SPECULATIVE_MODEL": str(heads.medusa(target, 3, folder / "medusa"))}
    eagle = {"SPECULATIVE_MODEL": str(heads.eagle(target, folder / "head"))}
    model = str(mtp.mtp(target, folder / "mtp"))
    return {
        "ngram": {"NGRAM_PROMPT_LOOKUP_MAX": "4"},
        "suffix": {"SPECULATIVE_METHOD": "suffix"},
        "draft_model": with_draft,
        "draft_model (vLLM's own)": with_draft | VLLMS_OWN,
        "medusa": medusa,
        "eagle": eagle | {"SPECULATIVE_METHOD": "eagle"},
        "mtp": {"SPECULATIVE_METHOD": "mtp", "MODEL_NAME": model},
    }


def load(model: Path, own: Mapping[str, str]) -> Engine:
    environment = {
        "MODEL_NAME": str(model),
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "demo",
        "MAX_MODEL_LEN": "1024",
        "MAX_NUM_SEQS": "64",
        "KV_CACHE_MEMORY_BYTES": str(512 * 1024**2),
        **own,
    }
    return main.load(environment, *main.configure(environment))


async def tokens_per_second(engine: Engine, requests: int, tokens: int) -> float:
    """The rate while all requests run: not while they start, when one may be alone."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    parameters = SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    generated = 0
    times: list[tuple[float, int]] = []

    async def ask(number: int) -> None:
        nonlocal generated
        identifier = f"{id(times)}-{number}"
        async for output in engine.client.generate(f"{PROMPT} ({number})", parameters, identifier):
            generated += len(output.outputs[0].token_ids)
            times.append((time.perf_counter(), generated))

    await asyncio.gather(*(ask(number) for number in range(requests)))
    assert generated == requests * tokens
    all_run = [at for at in times if 3 * requests <= at[1] <= requests * (tokens - 1)]
    (started, first), (ended, last) = all_run[0], all_run[-1]
    return (last - first) / (ended - started)


async def compare(options: argparse.Namespace, messages: Console) -> dict[str, dict[str, object]]:
    """Tokens per second by method: without speculation, and with it above the threshold."""
    results: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as work:
        target = demo_model.prepare()
        methods = variables(target, Path(work))
        messages.print("Starting the engine without speculation …")
        plain = load(target, {})
        plain_processes = children()
        for name in options.methods or methods:
            with stopped(list(plain_processes)):
                engine = load(
                    target,
                    {"SPECULATIVE_DISABLE_BY_BATCH_SIZE": str(THRESHOLD)} | methods[name],
                )
            ways = {
                "off": (plain, list(children() - plain_processes)),
                "above": (engine, list(plain_processes)),
            }
            rates: dict[str, list[float]] = {way: [] for way in ways}
            before = acceptance.read()
            for number in track(range(-1, options.rounds), name, console=messages):
                for way in sorted(ways, reverse=bool(number % 2)):
                    served, waiting = ways[way]
                    with stopped(waiting):
                        rate = await tokens_per_second(served, options.requests, options.tokens)
                    if number >= 0:
                        rates[way].append(rate)
            results[name] = {**rates, "drafts": (acceptance.read() - before).drafts}
            await engine.aclose()
        await plain.aclose()
    return results


def report(results: Mapping[str, Mapping[str, object]]) -> Table:
    table = Table(title="tokens/s above the threshold; ratios are medians over rounds")
    for column in ("method", "off", "above", "above/off", "drafts"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name, rates in results.items():
        off, above = rates["off"], rates["above"]
        assert isinstance(off, list)
        assert isinstance(above, list)
        ratios = [with_it / without for with_it, without in zip(above, off, strict=True)]
        table.add_row(
            name,
            f"{statistics.median(off):.1f}",
            f"{statistics.median(above):.1f}",
            f"{statistics.median(ratios):.3f} ({min(ratios):.2f}–{max(ratios):.2f})",
            str(rates["drafts"]),
        )
    return table


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each request")
    parser.add_argument("--methods", type=lambda text: text.split(","), help="some of the methods")
    parser.add_argument("--json", action="store_true", help="every figure as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    for variable, value in (PROCESS_DEFAULTS | LOCAL_DEFAULTS).items():
        os.environ.setdefault(variable, value)
    arguments = parse()
    measured = uvloop.run(compare(arguments, Console(stderr=True)))
    if arguments.json:
        print(json.dumps(measured, indent=2))
    else:
        Console().print(report(measured))
