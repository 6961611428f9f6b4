"""One job on this machine: the completion to stdout as it is generated, figures to stderr."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from specworker import acceptance, serving
from specworker.errors import ConfigurationError
from specworker.job_record import JobRecord

if TYPE_CHECKING:
    from specworker.engine import Engine
    from specworker.settings import Settings

INPUT_FILE = "test_input.json"


def job(text: str | None) -> dict[str, Any]:
    """The job in `text`, or in `test_input.json` of the working directory.

    Raises:
        ConfigurationError: there is none, or it is no job.
    """
    source = "--test_input" if text is not None else INPUT_FILE
    try:
        found = json.loads(text if text is not None else Path(INPUT_FILE).read_text())
    except FileNotFoundError:
        raise ConfigurationError(
            [
                f"{INPUT_FILE}: not found in this folder; allowed: the file, or "
                "--test_input '{\"input\": {…}}'"
            ]
        ) from None
    except json.JSONDecodeError as error:
        raise ConfigurationError([f"{source}: is not valid JSON ({error})"]) from None
    if not isinstance(found, dict) or "input" not in found:
        raise ConfigurationError([f'{source}: is no job; allowed: {{"input": {{…}}}}'])
    return found


def run(load: Callable[[], "Engine"], job: dict[str, Any], settings: "Settings") -> int:
    """Load the engine and answer one job. Returns the exit status: 1 for a job that failed."""
    return asyncio.run(_run(load, job, settings.stream_interval))


async def _run(load: Callable[[], "Engine"], job: dict[str, Any], stream_interval: float) -> int:
    messages = Console(stderr=True)
    started = time.monotonic()
    with messages.status("Starting the engine …"):
        engine = load()
        await engine.app()
    messages.print(f"Engine ready after {time.monotonic() - started:.0f} s: {engine.served_name}")
    try:
        return await answer(engine, job, stream_interval, messages)
    finally:
        await engine.aclose()


async def answer(
    engine: "Engine", job: dict[str, Any], stream_interval: float, messages: Console
) -> int:
    """Print the answer to stdout as it comes, figures to `messages`. Returns the exit status."""
    before = acceptance.read()
    started = first = time.monotonic()
    status, pieces, record = 0, 0, JobRecord()
    answers = serving.outputs(engine, job["input"], stream_interval, record)
    async with aclosing(answers) as outputs:
        async for output in outputs:
            first = time.monotonic() if not pieces else first
            pieces += 1
            if isinstance(output, dict) and "error" in output:
                messages.print(f"The job failed: {output['error']}", style="red", markup=False)
                status = 1
            else:
                sys.stdout.write(readable(output))
                sys.stdout.flush()
    ended = time.monotonic()
    sys.stdout.write("\n")
    sys.stdout.flush()
    for note in record.notes:
        messages.print(f"Note: {note}", style="yellow", markup=False)
    figures = acceptance.read() - before
    messages.print(_table(figures, first - started, ended - started))
    return status


def readable(output: Any) -> str:
    """What a person reads of a job's output: the text of a completion, else JSON."""
    if isinstance(output, str):
        events = [line.removeprefix("data: ") for line in output.split("\n") if line.strip()]
        return "".join(_text(json.loads(event)) for event in events if event.startswith("{"))
    text = _text(output) if isinstance(output, dict) else ""
    return text or json.dumps(output, indent=2, ensure_ascii=False)


def _text(body: dict[str, Any]) -> str:
    texts = []
    for choice in body.get("choices", []):
        message = choice.get("delta") or choice.get("message") or {}
        texts.append(choice.get("text") or message.get("content") or "")
    return "".join(texts)


def _table(figures: acceptance.Acceptance, ttft: float, elapsed: float) -> Table:
    table = Table(title="Speculation" if figures.drafts else None, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("tokens", str(figures.generated))
    table.add_row("time to first token", f"{ttft:.2f} s")
    table.add_row("tokens/s", f"{figures.generated / elapsed:.1f}" if elapsed else "–")
    table.add_row("drafted", str(figures.drafted))
    table.add_row("accepted", f"{figures.accepted} ({figures.rate:.0%})")
    table.add_row("mean acceptance length", f"{figures.mean_length:.2f} (bonus token included)")
    table.add_row(
        "acceptance by position",
        " ".join(f"{rate:.0%}" for rate in figures.rate_by_position) or "–",
    )
    return table
