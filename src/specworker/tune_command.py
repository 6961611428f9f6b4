"""Find the method and the K that pay: `python -m specworker tune`."""

import asyncio
import json
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from specworker import (
    atomic,
    comparison,
    environment_block,
    provenance,
    rounds_file,
    trials,
    tune_plan,
    tuning,
    tuning_report,
)
from specworker.candidates import Refused
from specworker.compare_command import carried_out, prepare, say
from specworker.comparison import Comparison
from specworker.errors import StartError
from specworker.measured import Round
from specworker.rounds_file import RoundsFile
from specworker.trials import Manner, Trial
from specworker.tune_plan import TunePlan
from specworker.tuning import Confirmed, Tried
from specworker.tuning_report import Tuned


def run(options: Namespace, environment: MutableMapping[str, str]) -> int:
    """Tune as `options` say, for the worker that `environment` describes.

    Returns:
        The exit status: 1 where a request failed or no engine started, 2 where an option or a
        variable is wrong, 130 where it was interrupted. Only with 0 there is something to set.
    """
    prepare(environment)
    folder = Path(options.resume or options.out or time.strftime("specworker-tune-%Y%m%d-%H%M%S"))
    return carried_out(_run(options, environment, folder), folder, off=options.off)


async def _run(options: Namespace, environment: Mapping[str, str], folder: Path) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    plan = tune_plan.of(options, environment, say)
    for note in plan.notes:
        say(note)
    if options.dry_run and not options.resume:
        sys.stdout.write("\n".join([*tune_plan.lines(plan), ""]))
        return 0
    made_with = {
        "versions": provenance.versions(),
        "device": provenance.device(),
        "variables": provenance.engine_variables(plan.plain),
    }
    whole, resumes = plan.as_object() | made_with, bool(options.resume)
    with rounds_file.opened(folder, whole, resumes=resumes, say=say) as file:
        if options.dry_run:
            sys.stdout.write("\n".join([*tune_plan.lines(plan, file.rounds), ""]))
            return 0
        first, last = tune_plan.time_needed(plan, file.rounds)
        say(f"results in {folder}\nto try all: {first}\nto confirm the best: {last}")
        tried, refused = await _try(plan, file, folder)
        confirmed = await _confirm(plan, tried, file, folder)
        told = {**file.provenance, **made_with, **plan.told}
        rows = [one for one in file.rounds if one.trial.endswith(tune_plan.CONFIRMED)]
    won = tuning.winner(confirmed)
    chosen = {}
    if won:
        chosen = environment_block.variables(plan.candidate(won.setting.candidate), won.kept)
    found = Tuned(plan.model, tuple(tried), (*plan.refused, *refused), tuple(confirmed), won)
    comments = tuning_report.comments(found, plan.workload.name, told)
    block = environment_block.block(environment, chosen, comments)
    compared = _compared(plan, rows, told) if rows else None
    _report(found, block, chosen, told, folder, compared, as_json=options.json)
    return 0


async def _try(plan: TunePlan, file: RoundsFile, folder: Path) -> tuple[list[Tried], list[Refused]]:
    """Measure each candidate's values of K. One whose engine does not start is refused.

    Raises:
        StartError: none starts.
    """
    found: list[Tried] = []
    refused: list[Refused] = []
    for one in plan.candidates:
        trial, arms = tune_plan.first_trial(one), tune_plan.first_variants(one)
        try:
            rounds = await _measure(plan, trial, plan.first_manner, file, folder)
        except StartError as error:
            say(f"{one.name}: does not start: {error}")
            refused.append(Refused(one.name, f"does not start: {error}"))
            continue
        tried = tuning.tried(
            one.name, arms, rounds, plan.margin, left_to_right=one.drafts_left_to_right
        )
        found.append(tried)
        size, k, gain = tried.highest
        say(f"{one.name}: {gain:.2f} times as fast at best, K={k} at {size} at once")
    if not found:
        raise StartError("; ".join(f"{one.name}: {one.reason}" for one in refused))
    return found, refused


async def _confirm(
    plan: TunePlan, tried: Iterable[Tried], file: RoundsFile, folder: Path
) -> list[Confirmed]:
    """Measure the best settings in turns with off."""
    found: list[Confirmed] = []
    for one in tuning.worth_confirming(list(tried), plan.confirm):
        trial = tune_plan.last_trial(plan, one.settings)
        rounds = await _measure(plan, trial, plan.manner, file, folder)
        compared = comparison.of(rounds, {}, model=plan.model, workload=plan.workload.name)
        found += tuning.confirmed(one.settings, compared.rows, plan.margin)
    return found


async def _measure(
    plan: TunePlan, trial: Trial, manner: Manner, file: RoundsFile, folder: Path
) -> list[Round]:
    """All rounds of a trial; what is in the file is not measured again."""
    async with aclosing(
        trials.measure(trial, plan.workload, manner, folder, say, file.rounds)
    ) as rounds:
        async for one in rounds:
            file.add(one)
    return trials.complete(trial, file.rounds)


def _compared(plan: TunePlan, rounds: Iterable[Round], told: Mapping[str, Any]) -> Comparison:
    return comparison.of(
        rounds, told, model=plan.model, workload=plan.workload.name, margin=plan.margin
    )


def _report(
    found: Tuned,
    block: str,
    chosen: Mapping[str, str],
    told: Mapping[str, Any],
    folder: Path,
    compared: Comparison | None,
    *,
    as_json: bool,
) -> None:
    from rich.console import Console

    from specworker import report

    data = tuning_report.as_object(found, chosen, told)
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    written = report.write(folder, compared) if compared else []
    written += [atomic.write(folder / "tune.json", text), atomic.write(folder / "tune.env", block)]
    wide = None if sys.stderr.isatty() else 120
    Console(file=sys.stderr, width=wide, highlight=False).print(tuning_report.table(found))
    say(f"written: {', '.join(map(str, written))}")
    sys.stdout.write(text if as_json else block)
