"""Why an engine did not start, in a line that the platform's client may read.

vLLM's parent process learns only that a child failed; the reason is in the child's log.
So every vLLM process writes its errors to a file besides, and the reason is read there.
"""

import atexit
import json
import logging
import re
import shutil
import tempfile
import textwrap
from collections.abc import MutableMapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from specworker import logs
from specworker.errors import ConfigurationError, StartError
from specworker.outgoing import public

logger = logging.getLogger(__name__)

_ERROR_LINE = re.compile(r"\b((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)): (.+)$", re.M)
#: Lines that only say that another process knows more.
_ELSEWHERE = re.compile(r"see (root cause|stack trace)|initialization failed", re.I)
_OUT_OF_MEMORY = re.compile(
    r"out of memory|No available memory for the cache blocks|less than desired", re.I
)


def report(error: Exception) -> str:
    """Log why the worker cannot start. Returns the reason in words that a client may read."""
    foreseen = isinstance(error, ConfigurationError | StartError)
    reason = str(error) if foreseen else f"{type(error).__name__}: {error}"
    logger.error(
        "cannot start:\n%s", textwrap.indent(reason, "  "), exc_info=None if foreseen else error
    )
    return public(reason.replace("\n", "; "))


class ErrorLog:
    """The errors of vLLM's processes, in a file of their own."""

    def __init__(self, environment: MutableMapping[str, str], *, as_json: bool) -> None:
        """Have the vLLM processes that start from now on write their errors to the file.

        Args:
            environment: of those processes; the user's own settings of vLLM's log stay.
            as_json: whether what vLLM logs is written as JSON lines, here and there.
        """
        folder = Path(tempfile.mkdtemp(prefix="specworker-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self._file = folder / "errors.log"
        self._environment = environment
        self._is_set = False
        if "VLLM_LOGGING_CONFIG_PATH" in environment:
            return
        written = folder / "logging.json"
        written.write_text(json.dumps(_logging(self._file, as_json=as_json)))
        environment["VLLM_LOGGING_CONFIG_PATH"] = str(written)
        self._is_set = True
        if as_json:
            for handler in logging.getLogger("vllm").handlers:
                handler.setFormatter(logs.JsonLines())

    def cause(self, error: BaseException) -> str:
        """Why the engine did not start, as far as the logs or `error` tell."""
        text = self._file.read_text(errors="replace") if self._file.is_file() else ""
        return cause(error, text)

    def close(self) -> None:
        """Leave the environment as it was, for another start with an ErrorLog of its own."""
        if self._is_set:
            del self._environment["VLLM_LOGGING_CONFIG_PATH"]
            self._is_set = False


def _logging(errors: Path, *, as_json: bool) -> dict[str, Any]:
    """vLLM's own settings of its log, and a second copy of every error to `errors`."""
    from vllm.logger import DEFAULT_LOGGING_CONFIG

    config: dict[str, Any] = deepcopy(DEFAULT_LOGGING_CONFIG)
    config["formatters"]["plain"] = {"format": "%(message)s"}
    config["handlers"]["errors"] = {
        "class": "logging.FileHandler",
        "formatter": "plain",
        "level": "ERROR",
        "filename": str(errors),
        "delay": True,
    }
    config["loggers"]["vllm"]["handlers"].append("errors")
    if as_json:
        config["formatters"]["lines"] = {"()": "specworker.logs.JsonLines"}
        config["handlers"]["vllm"]["formatter"] = "lines"
    return config


def cause(error: BaseException, log: str) -> str:
    """The reason for `error`, from the errors that vLLM's processes logged."""
    found = [f"{kind}: {text}" for kind, text in _ERROR_LINE.findall(log)]
    reasons = [line for line in found if not _ELSEWHERE.search(line)]
    reason = reasons[-1] if reasons else f"{type(error).__name__}: {error}"
    hint = ""
    if _OUT_OF_MEMORY.search(reason):
        hint = " Lower MAX_MODEL_LEN or MAX_NUM_SEQS, or take a larger GPU."
    return public(" ".join(reason.split())[:600]) + hint
