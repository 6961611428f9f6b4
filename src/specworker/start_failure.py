"""Why an engine did not start, in a line that the platform's client may read.

vLLM's parent process learns only that a child failed; the reason is in the child's log.
So every vLLM process writes its errors to a file besides, and the reason is read there.
"""

import atexit
import json
import re
import shutil
import tempfile
from collections.abc import MutableMapping
from copy import deepcopy
from pathlib import Path

from specworker.outgoing import public

_ERROR_LINE = re.compile(r"\b((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)): (.+)$", re.M)
#: Lines that only say that another process knows more.
_ELSEWHERE = re.compile(r"see (root cause|stack trace)|initialization failed", re.I)
_OUT_OF_MEMORY = re.compile(
    r"out of memory|No available memory for the cache blocks|less than desired", re.I
)


class ErrorLog:
    """The errors of vLLM's processes, in a file of their own."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Have the vLLM processes that start from now on write their errors to the file."""
        folder = Path(tempfile.mkdtemp(prefix="specworker-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self._file = folder / "errors.log"
        if "VLLM_LOGGING_CONFIG_PATH" in environment:
            return  # the user's own logging stays as it is
        from vllm.logger import DEFAULT_LOGGING_CONFIG

        config = deepcopy(DEFAULT_LOGGING_CONFIG)
        config["handlers"]["errors"] = {
            "class": "logging.FileHandler",
            "formatter": "vllm",
            "level": "ERROR",
            "filename": str(self._file),
            "delay": True,
        }
        config["loggers"]["vllm"]["handlers"].append("errors")
        written = folder / "logging.json"
        written.write_text(json.dumps(config))
        environment["VLLM_LOGGING_CONFIG_PATH"] = str(written)

    def cause(self, error: BaseException) -> str:
        """Why the engine did not start, as far as the logs or `error` tell."""
        text = self._file.read_text(errors="replace") if self._file.is_file() else ""
        return cause(error, text)


def cause(error: BaseException, log: str) -> str:
    """The reason for `error`, from the errors that vLLM's processes logged."""
    found = [f"{kind}: {text}" for kind, text in _ERROR_LINE.findall(log)]
    reasons = [line for line in found if not _ELSEWHERE.search(line)]
    reason = reasons[-1] if reasons else f"{type(error).__name__}: {error}"
    hint = ""
    if _OUT_OF_MEMORY.search(reason):
        hint = " Lower MAX_MODEL_LEN or MAX_NUM_SEQS, or take a larger GPU."
    return public(" ".join(reason.split())[:600]) + hint
