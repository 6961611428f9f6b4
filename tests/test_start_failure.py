"""The reason why an engine did not start, out of what vLLM's processes log."""

import json
import logging
import logging.config
from pathlib import Path

import pytest

from specworker import start_failure
from specworker.start_failure import ErrorLog, cause

OUTER = RuntimeError("Engine core initialization failed. See root cause above.")
LOG = """WorkerProc failed to start.
Traceback (most recent call last):
  File "/opt/venv/vllm/worker.py", line 10, in load
    raise ValueError("first")
ValueError: the weights at /models/org/model are of another shape
EngineCore failed to start.
Exception: WorkerProc initialization failed due to an exception. See stack trace for root cause.
"""


def test_the_reason_is_the_last_error_that_does_not_point_elsewhere() -> None:
    assert cause(OUTER, LOG) == "ValueError: the weights at <path> are of another shape"


def test_without_a_log_the_error_itself_is_the_reason() -> None:
    assert cause(OUTER, "") == f"RuntimeError: {OUTER}"


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.",
        "ValueError: No available memory for the cache blocks.",
    ],
)
def test_for_a_lack_of_memory_it_says_what_to_set(line: str) -> None:
    assert "MAX_MODEL_LEN" in cause(OUTER, line)


def test_no_secret_is_in_a_reason() -> None:
    said = cause(OUTER, "OSError: cannot open with hf_abcdefghijklmnop at /root/.cache/hub")
    assert said == "OSError: cannot open with <secret> at <path>"


@pytest.fixture
def vllm_logging() -> object:
    from vllm.logger import DEFAULT_LOGGING_CONFIG

    yield
    logging.config.dictConfig(DEFAULT_LOGGING_CONFIG)


@pytest.mark.usefixtures("vllm_logging")
@pytest.mark.parametrize("as_json", [False, True])
def test_a_process_of_vllms_writes_its_errors_where_the_reason_is_read(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    environment: dict[str, str] = {}
    errors = ErrorLog(environment, as_json=as_json)
    settings = json.loads(Path(environment["VLLM_LOGGING_CONFIG_PATH"]).read_text())
    settings["handlers"]["vllm"] |= {"stream": "ext://sys.stderr", "level": "INFO"}
    logging.config.dictConfig(settings)
    try:
        raise ValueError("too few bits")
    except ValueError:
        logging.getLogger("vllm.worker").exception("failed")
    assert errors.cause(OUTER) == "ValueError: too few bits"
    said = capsys.readouterr().err
    if as_json:
        assert json.loads(said)["level"] == "ERROR"
    else:
        assert "ValueError: too few bits" in said


def test_the_users_own_settings_of_vllms_log_stay() -> None:
    environment = {"VLLM_LOGGING_CONFIG_PATH": "mine.json"}
    errors = start_failure.ErrorLog(environment, as_json=True)
    assert environment == {"VLLM_LOGGING_CONFIG_PATH": "mine.json"}
    assert errors.cause(OUTER) == f"RuntimeError: {OUTER}"
    errors.close()
    assert environment == {"VLLM_LOGGING_CONFIG_PATH": "mine.json"}


def test_a_second_start_has_errors_of_its_own() -> None:
    environment: dict[str, str] = {}
    first = ErrorLog(environment, as_json=False)
    written = environment["VLLM_LOGGING_CONFIG_PATH"]
    first.close()
    first.close()
    assert environment == {}
    ErrorLog(environment, as_json=False)
    assert environment["VLLM_LOGGING_CONFIG_PATH"] != written
