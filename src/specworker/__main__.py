"""The command line: `python -m specworker <command>`.

Each command imports what it needs when it runs, so that help and the small commands start at
once.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from specworker import compare_options, tune_options


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status."""
    options = _parser().parse_args(argv)
    status: int = options.run(options)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specworker", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_platform(commands)
    _add_plan(commands)
    compare_options.add(commands)
    tune_options.add(commands)
    _add_docs(commands)
    _add_health(commands)
    return parser


def _add_platform(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "platform",
        help="rehearse an endpoint on this machine: queue, OpenAI front, worker",
        description="Play Runpod's platform on loopback and run a worker under it, with the "
        "Runpod SDK's real loop between them. Ctrl-C stops the worker as the platform would.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="port of the platform (a free one)"
    )
    worker = parser.add_mutually_exclusive_group()
    worker.add_argument(
        "--no-worker",
        action="store_true",
        help="start no worker; print the variables that one needs",
    )
    worker.add_argument(
        "worker", nargs="*", default=[], help="its command, after '--' (python handler.py)"
    )
    parser.set_defaults(run=_platform)


def _platform(options: argparse.Namespace) -> int:
    from specworker import rehearsal_run

    return rehearsal_run.run(
        os.environ, options.port, None if options.no_worker else options.worker
    )


#: The options of `plan` -> the variables that they set.
OF_PLAN = {
    "model": "MODEL_NAME",
    "draft": "SPECULATIVE_MODEL",
    "context": "MAX_MODEL_LEN",
    "gpus": "TENSOR_PARALLEL_SIZE",
}


def _add_plan(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "plan",
        help="what fits which GPU, before one is rented",
        description="Tell from config and headers, without weights, what target and draft take "
        "of the GPUs' memory, how many sequences are left room for, and whether the draft can "
        "work with the target. It reads the worker's variables; an option wins over its own.",
        allow_abbrev=False,
    )
    for option, kind in (("model", str), ("draft", str), ("context", int), ("gpus", int)):
        metavar = "NAME" if kind is str else "N"
        parser.add_argument(f"--{option}", type=kind, metavar=metavar, help=OF_PLAN[option])
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    parser.set_defaults(run=_plan)


def _plan(options: argparse.Namespace) -> int:
    from specworker import plan_command

    given = {variable: getattr(options, option) for option, variable in OF_PLAN.items()}
    environment = os.environ | {name: str(value) for name, value in given.items() if value}
    os.environ.update(environment)  # the hub's client and vLLM read it themselves
    return plan_command.run(os.environ, as_json=options.json)


def _add_docs(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "docs",
        help="write .runpod/hub.json and docs/configuration.md",
        description="Write the Hub listing and the reference of the variables from the "
        "declarations in the source. Run it in the repository's root.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; status 1 where a file differs"
    )
    parser.set_defaults(run=_docs)


def _docs(options: argparse.Namespace) -> int:
    from specworker import generated

    return generated.run(Path.cwd(), check=options.check)


def _add_health(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "health",
        help="status 0 where the worker in this container is well",
        description="Ask the worker that the environment describes whether it is ready. One "
        "that takes its work from a queue or a file has no port to ask, and counts as well.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=lambda _: _health())


def _health() -> int:
    from specworker import health

    return health.check(os.environ)


if __name__ == "__main__":
    sys.exit(main())
