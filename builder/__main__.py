"""The command line: `python -m builder heads METHOD TARGET FOLDER`."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from builder import heads
from builder.mtp import mtp

MAKERS: dict[str, Callable[[argparse.Namespace], Path]] = {
    "eagle": lambda asked: heads.eagle(asked.target, asked.folder),
    "eagle3": lambda asked: heads.eagle3(
        asked.target, asked.folder, vocabulary=asked.vocabulary, speculators=asked.speculators
    ),
    "medusa": lambda asked: heads.medusa(asked.target, asked.heads, asked.folder),
    "mlp_speculator": lambda asked: heads.mlp_speculator(
        asked.target,
        asked.heads,
        asked.folder,
        inner=asked.inner,
        tied=asked.tied,
        scaled=asked.scaled,
    ),
    "mtp": lambda asked: mtp(asked.target, asked.folder),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status."""
    parser = _parser()
    asked = parser.parse_args(argv)
    try:
        written = MAKERS[asked.method](asked)
    except ValueError as error:
        parser.error(str(error))
    served = written if asked.method == "mtp" else asked.target
    sys.stdout.write(
        f"MODEL_NAME={served} SPECULATIVE_MODEL={written} python handler.py  # runs it\n"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m builder", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="command")
    made = commands.add_parser(
        "heads",
        help="a draft with random weights for a model of yours, to try a method with",
        description="Write a draft with random weights for a llama-like model. It works and "
        "drafts badly: nothing was trained.",
        allow_abbrev=False,
    )
    methods = made.add_subparsers(required=True, dest="method", metavar="method")
    for method in MAKERS:
        one = methods.add_parser(method, help=HELP[method], allow_abbrev=False)
        one.add_argument("target", type=Path, help="the folder of the model to draft for")
        one.add_argument("folder", type=Path, help="the folder to write")
        if method in ("medusa", "mlp_speculator"):
            one.add_argument("--heads", type=_positive, default=3, metavar="N", help="heads (3)")
        if method == "eagle3":
            one.add_argument(
                "--vocabulary", type=_positive, metavar="N", help="draft only N of the tokens"
            )
            one.add_argument(
                "--speculators", action="store_true", help="in the layout of speculators"
            )
        if method == "mlp_speculator":
            one.add_argument("--inner", type=_positive, metavar="N", help="width of its state")
            one.add_argument("--tied", action="store_true", help="share weights among stages")
            one.add_argument("--scaled", action="store_true", help="normalize its input")
    return parser


HELP = {
    "eagle": "one layer that goes on from the target's hidden state",
    "eagle3": "one layer that goes on from three of the target's hidden states",
    "medusa": "a head for each token to draft",
    "mlp_speculator": "a stage for each token to draft, each reading the one before",
    "mtp": "a copy of the model that carries a layer to draft with",
}


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
