"""The options of `python -m specworker tune`."""

import argparse
import os

from specworker.compare_options import add_load, positive, share

#: What may be tried, in this order.
KINDS = ("configured", "ngram", "suffix", "draft", "self", "mtp")


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "tune",
        help="find the method and the K that pay for your prompts",
        description="Serve the model that the environment describes with each way to draft that "
        "can work here, measure what each K accepts and costs, and confirm the best in turns with "
        "no speculation. What is to be set goes to stdout, progress and what was tried to stderr, "
        "and a report to a folder. Without drafts wins unless the gain passes --margin.",
        allow_abbrev=False,
    )
    add_load(parser)
    parser.add_argument(
        "--methods",
        type=_kinds,
        default=KINDS,
        metavar="KIND[,KIND…]",
        help=f"what is tried, of {', '.join(KINDS)} (all)",
    )
    parser.add_argument(
        "--draft",
        dest="drafts",
        action="append",
        default=[],
        metavar="NAME",
        help="a draft model or head, besides those in the hub's cache; repeat it for more",
    )
    parser.add_argument(
        "--ngrams",
        type=_bounds,
        default=None,
        metavar="MIN-MAX[,…]",
        help="shortest and longest n-gram of each lookup (2-4,1-3,4-8)",
    )
    parser.add_argument(
        "--max-k", type=positive, metavar="N", help="the largest K of every method (8, suffix 24…)"
    )
    parser.add_argument(
        "--confirm",
        type=positive,
        default=2,
        metavar="N",
        help="how many of the best are confirmed (2)",
    )
    parser.add_argument(
        "--off",
        choices=("engine", "same"),
        default="engine",
        help="what the best are confirmed against: an engine without speculation beside it, or "
        "K = 0 in the same engine",
    )
    parser.add_argument(
        "--margin",
        type=share,
        default=0.1,
        metavar="SHARE",
        help="the gain from which on drafts are worth it (0.1)",
    )
    parser.set_defaults(run=_run)


def _kinds(text: str) -> tuple[str, ...]:
    """Kinds of candidates, each once, in the order in which they are tried."""
    given = {part.strip() for part in text.split(",")}
    if wrong := sorted(given - {*KINDS}):
        raise argparse.ArgumentTypeError(f"{', '.join(wrong)}; allowed: {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if kind in given)


def _bounds(text: str) -> tuple[tuple[int, int], ...]:
    """Pairs of a shortest and a longest n-gram."""
    found = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        bounds = positive(low), positive(high if dash else low)
        if bounds[0] > bounds[1]:
            raise argparse.ArgumentTypeError(f"{part!r}; allowed: such as 2-4")
        found.append(bounds)
    return tuple(dict.fromkeys(found))


def _run(options: argparse.Namespace) -> int:
    from specworker import tune_command

    return tune_command.run(options, os.environ)
