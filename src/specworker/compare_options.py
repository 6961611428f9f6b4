"""The options of `python -m specworker compare`, and those it shares with `tune`."""

import argparse
import os

from specworker.workloads import BUILT_IN


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "compare",
        help="measure your prompts with speculation and without",
        description="Serve the model that the environment describes, ask the same prompts with "
        "speculation and without in turns, and say whether it pays. Progress goes to stderr, "
        "the table to stdout, and a report to a folder.",
        allow_abbrev=False,
    )
    add_load(parser)
    parser.add_argument(
        "--with",
        dest="variants",
        action="append",
        default=[],
        metavar="NAME=VALUE[,NAME=VALUE…]",
        help="a variant: variables in place of the environment's own about speculation; repeat "
        "it for more, each on an engine of its own",
    )
    parser.add_argument(
        "--off",
        choices=("same", "engine"),
        default="same",
        help="what speculation is compared with: K = 0 in the same engine, or an engine without "
        "speculation beside it",
    )
    parser.add_argument("--url", metavar="URL", help="measure a server that runs already")
    parser.add_argument(
        "--off-url",
        metavar="URL",
        help="one without speculation, where K of the other cannot be changed",
    )
    parser.add_argument(
        "--api-key-from",
        default="OPENAI_API_KEY",
        metavar="NAME",
        help="the variable that holds the servers' key (OPENAI_API_KEY)",
    )
    parser.add_argument(
        "--margin",
        type=share,
        default=0.1,
        metavar="SHARE",
        help="the gain from which on it pays (0.1)",
    )
    parser.set_defaults(run=_run)


def add_load(parser: argparse.ArgumentParser) -> None:
    """Add what says which prompts are measured, how, and where the results go."""
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument(
        "--workload", choices=BUILT_IN, help=f"prompts that are built in: {', '.join(BUILT_IN)}"
    )
    prompts.add_argument(
        "--prompts", metavar="FILE", help="your own, in OpenAI's batch form or ShareGPT's"
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="so many of the prompts")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the choice and order of prompts (0)"
    )
    parser.add_argument(
        "--concurrency",
        type=concurrencies,
        default=(1, 4, 16),
        metavar="N[,N…]",
        help="requests in flight (1,4,16)",
    )
    parser.add_argument(
        "--rounds",
        type=positive,
        default=3,
        metavar="N",
        help="how often each variant gets all prompts at each concurrency (3)",
    )
    parser.add_argument(
        "--max-tokens",
        type=positive,
        default=256,
        metavar="N",
        help="the longest answer of a prompt that sets none (256)",
    )
    parser.add_argument(
        "--tokens",
        type=positive,
        metavar="N",
        help="the length of every answer, past its own end: measures cost, not quality",
    )
    parser.add_argument(
        "--warm",
        action="store_true",
        help="keep caches between rounds, as for traffic that repeats",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--out", metavar="DIR", help="a new folder for the results")
    where.add_argument("--resume", metavar="DIR", help="the folder of a run that broke off")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be measured, and how long it takes"
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")


def positive(text: str) -> int:
    """An integer from 1 on."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: an integer from 1 on")
    return number


def concurrencies(text: str) -> tuple[int, ...]:
    """Integers from 1 on, each once, ascending."""
    return tuple(sorted({positive(part.strip()) for part in text.split(",")}))


def share(text: str) -> float:
    """A share, 0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 10:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a share such as 0.1")
    return number


def _run(options: argparse.Namespace) -> int:
    from specworker import compare_command

    return compare_command.run(options, os.environ)
