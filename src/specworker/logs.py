"""The worker's own log: messages to stderr, since stdout carries answers."""

import logging
import sys


def configure() -> None:
    """Log what this package says, from INFO on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    package = logging.getLogger("specworker")
    package.handlers = [handler]
    package.setLevel(logging.INFO)
    package.propagate = False
