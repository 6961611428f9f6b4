"""From the environment to a running worker: settings, speculation, engine, mode."""

import argparse
import logging
import os
from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING

from specworker import checkpoint, demo_model, speculation
from specworker.errors import ConfigurationError
from specworker.settings import Settings
from specworker.speculation import Speculation

if TYPE_CHECKING:
    from specworker.engine import Engine

logger = logging.getLogger(__name__)

#: What vLLM and the SDK read when they are imported, where the user has not set it.
PROCESS_DEFAULTS = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is for answers
    "RUNPOD_SKIP_GPU_CHECK": "true",  # it opens CUDA beside the engine
    "TOKENIZERS_PARALLELISM": "false",
}
QUIET = {"VLLM_LOGGING_LEVEL": "WARNING", "TRANSFORMERS_VERBOSITY": "error"}


def main(environment: MutableMapping[str, str], argv: Sequence[str]) -> int:
    """Run the worker that `environment` describes. Returns the exit status.

    Every variable that is wrong is reported at once, and before vLLM is imported where
    that can be told without it.
    """
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    options, _ = _parser().parse_known_args(argv)
    try:
        settings, decided = configure(environment)
        for name, value in (PROCESS_DEFAULTS | (QUIET if settings.where == "local" else {})).items():
            environment.setdefault(name, value)
        if settings.where == "serverless":
            from specworker import serverless

            engine = load(environment, settings, decided)
            serverless.run(
                engine,
                max_concurrency=settings.max_concurrency,
                stream_interval=settings.stream_interval_ms / 1000,
            )
            return 0
        from specworker import local

        job = local.job(options.test_input)
        return local.main(
            lambda: load(environment, settings, decided), job, settings.stream_interval_ms / 1000
        )
    except ConfigurationError as error:
        logger.error("cannot start:\n%s", "\n".join(f"  {line}" for line in error.problems))
        return 2


def configure(environment: MutableMapping[str, str]) -> tuple[Settings, Speculation]:
    """Settings and what they mean for speculation, all that can be said without vLLM.

    Raises:
        ConfigurationError: with one line for every problem.
    """
    settings, problems = Settings.read(environment)
    known = None
    for named in (("MODEL_NAME", settings.model_name, None), speculation.draft(settings)):
        if named is None or named[1] is None:
            continue
        try:
            found = checkpoint.read(named[0], named[1], named[2])
        except ConfigurationError as error:
            problems.extend(error.problems)
            found = checkpoint.Checkpoint(named[1])
        known = found if named[0] != "MODEL_NAME" else None
    decided = speculation.resolve(settings, known)
    problems.extend(decided.problems)
    if settings.where == "serverless" and not settings.model_name:
        problems.append("MODEL_NAME: is not set; allowed: a hub id or a folder")
    if problems:
        raise ConfigurationError(problems)
    return settings, decided


def load(environment: MutableMapping[str, str], settings: Settings, decided: Speculation) -> "Engine":
    """Load the engine; blocks until it can answer."""
    model = settings.model_name
    if model is None:
        model = str(demo_model.prepare())
        logger.info("MODEL_NAME is not set: serving the demo model %s", demo_model.NAME)
    from specworker import engine

    args, notes = engine.arguments(environment, decided.config, model)
    logger.info("%s", decided.line)
    for note in (*decided.notes, *notes):
        logger.warning("%s", note)
    return engine.Engine(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="handler.py", allow_abbrev=False)
    parser.add_argument("--test_input", metavar="JSON", help="the job to run, in place of the file")
    return parser


def run() -> int:
    """Run the worker of this process's environment and command line."""
    import sys

    return main(os.environ, sys.argv[1:])
