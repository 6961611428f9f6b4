"""From the environment to a running worker: settings, speculation, engine, mode."""

import argparse
import logging
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING

from specworker import checkpoint, demo_model, draft_alias, local, logs, serverless, speculation
from specworker.errors import ConfigurationError
from specworker.settings import Settings
from specworker.speculation import Speculation
from specworker.values import is_unset

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
#: In a local run the answer is what matters: of vLLM and its libraries, only errors show.
LOCAL_DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONWARNINGS": "ignore",
}


def main(environment: MutableMapping[str, str], argv: Sequence[str]) -> int:
    """Run the worker that `environment` describes. Returns the exit status.

    Every variable that is wrong is reported at once, and before vLLM is imported where
    that can be told without it.
    """
    logs.configure()
    if is_unset(environment.get("HF_TOKEN", "")):  # else the hub gets the word None as a token
        environment.pop("HF_TOKEN", None)
    options = _parser().parse_known_args(argv)[0]
    try:
        settings, decided = configure(environment)
        if settings.where == "serverless":
            _set_defaults(environment, PROCESS_DEFAULTS)
            serverless.run(load(environment, settings, decided), settings)
            return 0
        _set_defaults(environment, PROCESS_DEFAULTS | LOCAL_DEFAULTS)
        job = local.job(options.test_input)
        return local.run(lambda: load(environment, settings, decided), job, settings)
    except ConfigurationError as error:
        logger.error("cannot start:\n%s", "\n".join(f"  {line}" for line in error.problems))
        return 2


def configure(environment: Mapping[str, str]) -> tuple[Settings, Speculation]:
    """Settings and what they mean for speculation: all that can be said without vLLM.

    Raises:
        ConfigurationError: with one line for every problem.
    """
    settings, problems = Settings.read(environment)
    if settings.serves_demo and not speculation.is_set(settings):
        settings = settings.model_copy(update=speculation.DEMO)
    if settings.serves_demo and settings.where == "serverless":
        problems.append("MODEL_NAME: is not set; allowed: a hub id or a folder")
    draft = None
    try:
        if settings.model_name:
            checkpoint.check("MODEL_NAME", settings.model_name)
    except ConfigurationError as error:
        problems.extend(error.problems)
    if named := speculation.draft(settings):
        draft = checkpoint.Checkpoint(named.name)
        try:
            token = settings.hf_token.get_secret_value() if settings.hf_token else None
            draft = checkpoint.read(*named, token)
        except ConfigurationError as error:
            problems.extend(error.problems)
    decided = speculation.resolve(settings, draft)
    problems.extend(decided.problems)
    if problems:
        raise ConfigurationError(problems)
    return settings, decided


def load(environment: Mapping[str, str], settings: Settings, decided: Speculation) -> "Engine":
    """Load the engine; blocks until the weights are loaded.

    Raises:
        ConfigurationError: vLLM refuses what is set.
    """
    defaults = {}
    if settings.serves_demo:
        defaults = {
            "model": str(demo_model.prepare()),
            "served_model_name": [demo_model.NAME],
        }
        logger.info("MODEL_NAME is not set: serving the demo model %s", demo_model.NAME)
    from specworker import engine

    config = decided.config and draft_alias.apply(decided.config)
    args, notes = engine.arguments(environment, config, defaults)
    logger.info("%s", decided.line)
    for note in (*decided.notes, *notes):
        logger.warning("%s", note)
    return engine.Engine(args)


def _set_defaults(environment: MutableMapping[str, str], defaults: Mapping[str, str]) -> None:
    for name, value in defaults.items():
        environment.setdefault(name, value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="handler.py", allow_abbrev=False)
    parser.add_argument("--test_input", metavar="JSON", help="the job to run, in place of the file")
    return parser
