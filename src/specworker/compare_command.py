"""Measure a model with speculation and without: `python -m specworker compare`."""

import asyncio
import json
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Coroutine, Mapping, MutableMapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from specworker import (
    compare_plan,
    comparison,
    estimate,
    home,
    logs,
    main,
    provenance,
    rounds_file,
    trials,
    volume,
)
from specworker.compare_plan import Plan
from specworker.comparison import Comparison
from specworker.errors import ConfigurationError, StartError
from specworker.measured import MeasuringError, Round
from specworker.rounds_file import RoundsFile
from specworker.values import is_unset

#: Exit statuses.
FAILED, WRONG, INTERRUPTED = 1, 2, 130


def run(options: Namespace, environment: MutableMapping[str, str]) -> int:
    """Compare as `options` say, for the worker that `environment` describes.

    Returns:
        The exit status: 1 where a request failed or a server did not start or ended, 2 where
        an option or a variable is wrong, 130 where it was interrupted. Only with 0 there is a
        table.
    """
    prepare(environment)
    folder = Path(
        options.resume or options.out or time.strftime("specworker-compare-%Y%m%d-%H%M%S")
    )
    return carried_out(_run(options, environment, folder), folder, off=options.off)


def carried_out(work: Coroutine[Any, Any, int], folder: Path, *, off: str) -> int:
    """Do `work`, and say in words what breaks it off. Returns the exit status.

    Args:
        work: what measures, and returns the status where nothing breaks it off.
        folder: where what was measured is kept.
        off: what variants are compared with, as `--off` has it.
    """
    try:
        return asyncio.run(work)
    except ConfigurationError as error:
        say(str(error))
        return WRONG
    except (StartError, MeasuringError) as error:
        say(f"failed, so that nothing is concluded: {error}")
        if isinstance(error, StartError) and off == "engine":
            say("--off engine needs room for two engines at once; --off same does with one")
        status = FAILED
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("interrupted")
        status = INTERRUPTED
    if rounds_file.has_rounds(folder):
        say(f"what was measured is kept; the same command with --resume {folder} goes on")
    return status


def prepare(environment: MutableMapping[str, str]) -> None:
    """Have this process find caches and models as a worker does."""
    logs.configure(as_json=False)
    home.place(environment)
    if is_unset(environment.get("HF_TOKEN", "")):
        environment.pop("HF_TOKEN", None)
    volume.place(environment)
    for name, value in (main.PROCESS_DEFAULTS | main.LOCAL_DEFAULTS).items():
        environment.setdefault(name, value)


def say(text: str) -> None:
    """Tell of progress, or of what went wrong."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


async def _run(options: Namespace, environment: Mapping[str, str], folder: Path) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    plan = await compare_plan.of(options, environment)
    for note in plan.notes:
        say(note)
    if options.dry_run and not options.resume:
        _print_plan(plan, [])
        return 0
    made_with = _made_with(options, environment)
    whole, resumes = plan.as_object() | made_with, bool(options.resume)
    with rounds_file.opened(folder, whole, resumes=resumes, say=say) as file:
        if options.dry_run:
            _print_plan(plan, file.rounds)
            return 0
        left = estimate.of(plan.trials, plan.workload, plan.manner, file.rounds)
        say(f"results in {folder}; {left}")
        await measure(plan, file, folder)
        found = _compared(plan, options.margin, file.rounds, file.provenance | made_with)
    return _report(found, folder, as_json=options.json)


async def measure(plan: Plan, file: RoundsFile, folder: Path) -> None:
    """Measure what is not in the file yet, and write it there."""
    for trial in plan.trials:
        rounds = trials.measure(trial, plan.workload, plan.manner, folder, say, file.rounds)
        async with aclosing(rounds):
            async for one in rounds:
                file.add(one)


def _print_plan(plan: Plan, done: Sequence[Round]) -> None:
    left = estimate.of(plan.trials, plan.workload, plan.manner, done)
    sys.stdout.write("\n".join([*compare_plan.lines(plan), f"time: {left}", ""]))


def _made_with(options: Namespace, environment: Mapping[str, str]) -> dict[str, Any]:
    """What the figures depend on besides the plan."""
    if options.url:
        return {"versions": provenance.versions()[:1], "device": "the server's"}
    return {
        "versions": provenance.versions(),
        "device": provenance.device(),
        "variables": provenance.engine_variables(environment),
    }


def _compared(
    plan: Plan, margin: float, rounds: Sequence[Round], made_with: Mapping[str, Any]
) -> Comparison:
    variants = [f"{name}: {text}" for name, text in plan.settings.items()]
    told = {**made_with, "variants": variants, **plan.told}
    return comparison.of(rounds, told, model=plan.model, workload=plan.workload.name, margin=margin)


def _report(found: Comparison, folder: Path, *, as_json: bool) -> int:
    from rich.console import Console

    from specworker import comparison_table, report, report_data

    written = report.write(folder, found)
    if as_json:
        data = report_data.as_object(found)
        sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    else:
        wide = None if sys.stdout.isatty() else 120
        Console(file=sys.stdout, width=wide, highlight=False).print(comparison_table.of(found))
    say(f"written: {', '.join(str(path) for path in written)}")
    return 0
