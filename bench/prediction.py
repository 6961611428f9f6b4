"""What a prediction saves: one identifier renamed in a file of 60 lines.

Tokens per second of the same greedy request in one engine, by what drafts:

  off        nothing
  lookup     n-gram lookup in prompt and answer
  predicted  the file as it was, with the lookup behind it
  unrelated  another file as the prediction, with the lookup behind it

The demo model does not rename a thing, so what answers is a model of its size and cost whose
answer is written beforehand (`builder.scripted`). The ways take turns within each round; ratios
are medians over the rounds, and absolute figures are those of this machine.

Usage: python bench/prediction.py [--rounds N] [--k N] [--json]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from builder import scripted
from specworker import demo_model, main
from specworker.drafting import DEFAULT_PREDICTION_TOKENS
from specworker.main import LOCAL_DEFAULTS, PROCESS_DEFAULTS
from specworker.terms import PREDICTION, TOKENS

if TYPE_CHECKING:
    from specworker.engine import Engine

SOURCES = Path(demo_model.__file__).parent
LINES = 60
OLD, NEW = "config", "layout"
FILE = "\n".join((SOURCES / "model_size.py").read_text().split("\n")[:LINES])
OTHER = "\n".join((SOURCES / "live.py").read_text().split("\n")[:LINES])
RENAMED = FILE.replace(OLD, NEW)
ASKED = (
    f"Rename `{OLD}` to `{NEW}` everywhere in this file. Answer with the whole file and "
    f"nothing else.\n\n{FILE}"
)


async def compare(options: argparse.Namespace, messages: Console) -> dict[str, Any]:
    """Tokens per second and counts by what drafts."""
    from transformers import AutoTokenizer
    from vllm import SamplingParams

    with tempfile.TemporaryDirectory() as work:
        target = demo_model.prepare()
        tokenizer = AutoTokenizer.from_pretrained(target)

        def ids(text: str) -> list[int]:
            found: list[int] = tokenizer.encode(text, add_special_tokens=False)
            return found

        chat = [{"role": "user", "content": ASKED}]
        templated = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        prompt, answer = ids(templated), [*ids(RENAMED), tokenizer.eos_token_id]
        script = scripted.script(prompt, answer)
        model = scripted.scripted(target, Path(work) / "scripted", script)
        messages.print(
            f"{len(answer)} tokens, {RENAMED.count(NEW)} times {NEW}. Starting the engine …"
        )
        environment = {
            "MODEL_NAME": str(model),
            "MAX_MODEL_LEN": "4096",
            "NUM_SPECULATIVE_TOKENS": str(options.k),
            "NGRAM_PROMPT_LOOKUP_MAX": "4",
        }
        engine: Engine = main.load(environment, *main.configure(environment))
        ways: dict[str, dict[str, Any]] = {
            "off": {TOKENS: 0},
            "lookup": {},
            "predicted": {PREDICTION: ids(FILE)},
            "unrelated": {PREDICTION: ids(OTHER)},
        }
        found: dict[str, dict[str, Any]] = {way: {"tokens_per_second": []} for way in ways}
        for number in track(range(-1, options.rounds), "rounds", console=messages):
            for way in sorted(ways, reverse=bool(number % 2)):
                asked = SamplingParams(
                    temperature=0, max_tokens=len(answer), extra_args=ways[way] or None
                )
                first = 0.0
                given = {"prompt_token_ids": prompt}
                output: Any = None
                async for answered in engine.client.generate(given, asked, f"{way} {number}"):
                    output, first = answered, first or time.perf_counter()
                rate = (len(answer) - 1) / (time.perf_counter() - first)
                assert [*output.outputs[0].token_ids] == answer, f"{way}: another answer"
                if number >= 0:
                    found[way]["tokens_per_second"].append(rate)
                    figures = output.outputs[0].spec_decode_metrics.to_dict()
                    found[way] |= {
                        "steps": figures["num_spec_steps"],
                        "drafted": figures["num_draft_tokens"],
                        "accepted": figures["num_accepted_draft_tokens"],
                    }
        await engine.aclose()
    return found


def report(found: Mapping[str, Mapping[str, Any]], k: int) -> Table:
    table = Table(title=f"K = {k}; ratios are medians over rounds")
    for column in ("", "tokens/s", "/ off", "/ lookup", "steps", "drafted", "accepted"):
        table.add_column(column, justify="right" if column else "left")
    for way, figures in found.items():
        ratios = []
        for base in ("off", "lookup"):
            pairs = zip(figures["tokens_per_second"], found[base]["tokens_per_second"], strict=True)
            each = [one / other for one, other in pairs]
            ratios.append(f"{statistics.median(each):.2f} ({min(each):.2f}–{max(each):.2f})")
        rate = statistics.median(figures["tokens_per_second"])
        counts = [str(figures[name]) for name in ("steps", "drafted", "accepted")]
        table.add_row(way, f"{rate:.1f}", *ratios, *counts)
    return table


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--k", type=int, default=DEFAULT_PREDICTION_TOKENS, help="tokens drafted a step"
    )
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
        Console(width=None if sys.stdout.isatty() else 110).print(report(measured, arguments.k))
