"""From the environment to a running worker: settings, speculation, engine, mode."""

import argparse
import logging
import textwrap
from collections.abc import Mapping, MutableMapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from specworker import (
    checkpoint,
    demo_model,
    download,
    draft_alias,
    hub_cache,
    local,
    logs,
    misspelt,
    serverless,
    speculation,
    start_failure,
    volume,
)
from specworker.decision import Speculation
from specworker.errors import ConfigurationError, StartError
from specworker.hub_cache import Models
from specworker.settings import Settings
from specworker.stopwatch import Stopwatch
from specworker.values import is_unset, text_of

if TYPE_CHECKING:
    from specworker.engine import Engine

logger = logging.getLogger(__name__)

#: What vLLM and the SDK read when they are imported, where the user has not set it.
PROCESS_DEFAULTS = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is for answers
    "RUNPOD_SKIP_GPU_CHECK": "true",  # it opens CUDA beside the engine
    "RUNPOD_LOG_LEVEL": "INFO",  # at its own default the SDK logs what users write
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
    settings, _ = Settings.read(environment)  # what is wrong is reported when it is used
    logs.configure(as_json=settings.runpod_endpoint_id is not None)
    if is_unset(environment.get("HF_TOKEN", "")):  # else the hub gets the word None as a token
        environment.pop("HF_TOKEN", None)
    if environment.pop("VLLM_API_KEY", None):  # vLLM's application would refuse every job
        logger.warning(
            "VLLM_API_KEY: no effect, jobs come through the platform, which has its own keys"
        )
    volume.place(environment)
    options = _parser().parse_known_args(argv)[0]
    if settings.where == "serverless":
        _set_defaults(environment, PROCESS_DEFAULTS)
        return serverless.run(lambda: load(environment, *configure(environment)), settings)
    _set_defaults(environment, PROCESS_DEFAULTS | LOCAL_DEFAULTS)
    try:
        settings, decided, models = configure(environment)
        job = local.job(options.test_input)
        return local.run(lambda: load(environment, settings, decided, models), job, settings)
    except (ConfigurationError, StartError) as error:
        logger.error("cannot start:\n%s", textwrap.indent(str(error), "  "))
        return 2


def configure(environment: Mapping[str, str]) -> tuple[Settings, Speculation, Models]:
    """Settings, what they mean for speculation, and where the models that they name are.

    All that can be said without vLLM.

    Raises:
        ConfigurationError: with one line for every problem.
    """
    settings, problems = Settings.read(environment)
    if settings.serves_demo and not speculation.is_set(settings):
        settings = settings.model_copy(update=speculation.DEMO)
    if settings.serves_demo and settings.where == "serverless":
        problems.append("MODEL_NAME: is not set; allowed: a hub id or a folder")
    find = partial(
        hub_cache.find,
        caches=hub_cache.folders(environment),
        offline=hub_cache.is_offline(environment),
    )
    target = draft = known = None
    try:
        if name := settings.model_name:
            checkpoint.check("MODEL_NAME", name)
            revision = hub_cache.target_revision(environment)
            target = find("MODEL_NAME", name, revision, with_tokenizer=True)
    except ConfigurationError as error:
        problems.extend(error.problems)
    if named := speculation.draft(settings):
        known = checkpoint.Checkpoint(named.name)
        try:
            draft = find(*named)
            known = checkpoint.read(*named, settings.token, draft.place)
        except ConfigurationError as error:
            problems.extend(error.problems)
    decided = speculation.resolve(settings, known)
    problems.extend(decided.problems)
    if problems:
        raise ConfigurationError(problems)
    return settings, decided, Models(target, draft)


def load(
    environment: MutableMapping[str, str],
    settings: Settings,
    decided: Speculation,
    models: Models,
) -> "Engine":
    """Load the engine; blocks until the weights are loaded.

    Raises:
        ConfigurationError: vLLM refuses what is set.
        StartError: the engine did not start.
    """
    defaults = {}
    if settings.serves_demo:
        defaults = {
            "model": str(demo_model.prepare()),
            "served_model_name": [demo_model.NAME],
        }
        logger.info("MODEL_NAME is not set: serving the demo model %s", demo_model.NAME)
    clock = Stopwatch()
    if hub_cache.folders(environment) and not text_of(environment, "LOAD_FORMAT"):
        models = download.fetch_all(models, settings.token)
    clock.lap("download")
    from specworker import engine

    clock.lap("imports")
    config = decided.config
    if config and models.draft:
        config = hub_cache.draft_from(models.draft, config)
    config = config and draft_alias.apply(config)
    args, notes = engine.arguments(environment, config, defaults, models.target)
    logger.info("%s", decided.line)
    for model in filter(None, models):
        if model.is_cached:
            logger.info("%s is cached in %s", model.name, model.place)
        notes += model.notes
    for note in (*decided.notes, *misspelt.notes(environment), *notes):
        logger.warning("%s", note)
    on_platform = settings.runpod_endpoint_id is not None
    errors = start_failure.ErrorLog(environment, as_json=on_platform)
    try:
        loaded = engine.Engine(args)
    except ConfigurationError:
        raise
    except Exception as error:
        raise StartError(errors.cause(error)) from error
    clock.lap("load")
    loaded.started = clock.laps
    return loaded


def _set_defaults(environment: MutableMapping[str, str], defaults: Mapping[str, str]) -> None:
    for name, value in defaults.items():
        environment.setdefault(name, value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="handler.py", allow_abbrev=False)
    parser.add_argument("--test_input", metavar="JSON", help="the job to run, in place of the file")
    return parser
