"""What is logged, and how: messages to stderr, since stdout carries answers."""

import json
import logging
import sys


class JsonLines(logging.Formatter):
    """One JSON object a line, in the keys of the Runpod SDK's own lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of one record."""
        message = super().format(record)
        return json.dumps({"requestId": None, "message": message, "level": record.levelname})


def configure(*, as_json: bool) -> None:
    """Log what this package says, from INFO on; as JSON lines where a platform reads them.

    Of the web server, what it warns of.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else logging.Formatter("%(levelname)s %(message)s"))
    for name, level in (("specworker", logging.INFO), ("uvicorn", logging.WARNING)):
        package = logging.getLogger(name)
        package.handlers = [handler]
        package.setLevel(level)
        package.propagate = False
