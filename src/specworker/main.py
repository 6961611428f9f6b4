"""From the environment to a running worker: settings, speculation, engine, mode."""

import argparse
import logging
import textwrap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from specworker import (
    api_key,
    baked,
    checkpoint,
    demo_model,
    download,
    draft_alias,
    fallback,
    home,
    hub_cache,
    local,
    logs,
    misspelt,
    self_draft,
    serverless,
    speculation,
    ssh,
    start_failure,
    volume,
)
from specworker.decision import Speculation
from specworker.errors import ConfigurationError, StartError
from specworker.hub_cache import Found, Models
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
#: What says which of its model runners vLLM takes.
V2_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
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
    logs.configure(as_json=settings.on_platform)
    home.place(environment)
    baked.place(environment)
    if is_unset(environment.get("HF_TOKEN", "")):  # else the hub gets the word None as a token
        environment.pop("HF_TOKEN", None)
    if environment.pop("VLLM_API_KEY", None):  # vLLM's application would refuse every job
        logger.warning("VLLM_API_KEY: no effect; set API_KEY, which guards every route")
    if environment.pop("ARCTIC_INFERENCE_ENABLED", None):  # the package's plugin patches vLLM then
        logger.warning(
            "ARCTIC_INFERENCE_ENABLED: no effect; suffix decoding needs none of the package's "
            "patches, which are for another vLLM"
        )
    if "VLLM_SERVER_DEV_MODE" in environment:  # of which vLLM reads only 0 and 1
        environment["VLLM_SERVER_DEV_MODE"] = str(int(settings.vllm_server_dev_mode))
    if settings.vllm_server_dev_mode:
        logger.warning("VLLM_SERVER_DEV_MODE=true: whoever is let in can run code in the engine")
    options = _parser().parse_known_args(argv)[0]
    if settings.where in ("pod", "lb") or (options.serve and settings.where == "local"):
        return _serve(environment, settings)
    volume.place(environment)
    if settings.where == "serverless":
        if options.serve:
            logger.warning("--serve: no effect, jobs come from the queue; MODE=local serves here")
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


def _serve(environment: MutableMapping[str, str], settings: Settings) -> int:
    """Answer over HTTP. Nothing touches a volume or a hub before the ports are open."""
    from specworker import server

    own = LOCAL_DEFAULTS if settings.where == "local" else {}
    _set_defaults(environment, PROCESS_DEFAULTS | own)

    def key() -> str | None:
        return api_key.of(settings, self_draft.homes(environment))

    def start() -> "Engine":
        ssh.start(settings, environment)
        volume.place(environment)
        return load(environment, *configure(environment))

    return server.run(start, key, settings)


def configure(environment: Mapping[str, str]) -> tuple[Settings, Speculation, Models]:
    """Settings, what they mean for speculation, and where the models that they name are.

    All that can be said without vLLM. What speculation cannot work with is a problem, or
    ends in plain decoding: `fallback` decides.

    Raises:
        ConfigurationError: with one line for every problem.
    """
    settings, problems = Settings.read(environment)
    if settings.serves_demo and not speculation.is_set(settings):
        settings = settings.model_copy(update=speculation.DEMO)
    if settings.serves_demo and settings.where in ("serverless", "lb"):
        problems.append("MODEL_NAME: is not set; allowed: a hub id or a folder")
    find = partial(
        hub_cache.find,
        caches=[*filter(None, [baked.folder(environment)]), *hub_cache.folders(environment)],
        offline=hub_cache.is_offline(environment),
    )
    target = draft = known = own = None
    unfit: list[str] = []  # what keeps speculation from being set up
    try:
        if name := settings.model_name:
            checkpoint.check("MODEL_NAME", name)
            revision = hub_cache.target_revision(environment)
            target = find("MODEL_NAME", name, revision, with_tokenizer=True)
        if speculation.drafts_itself(settings):
            own = _served(settings, target)
    except ConfigurationError as error:
        problems.extend(error.problems)
    if named := speculation.draft(settings):
        known = checkpoint.Checkpoint(named.name)
        try:
            draft = find(*named)
            known = checkpoint.read(*named, settings.token, draft.place)
            draft = replace(draft, read=known)
        except ConfigurationError as error:
            unfit.extend(error.problems)
    decided = speculation.resolve(settings, known, own)
    unfit.extend(decided.problems)
    if unfit and (plain := fallback.instead(settings, decided, unfit)):
        decided, draft = plain, None
    else:
        problems.extend(unfit)
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

    An engine that does not start with speculation is started once more without it where
    `fallback` says so, and then it is that start which succeeds or fails.

    Raises:
        ConfigurationError: vLLM refuses what is set.
        StartError: the engine did not start.
    """
    runner = environment.get(V2_RUNNER)
    try:
        return _load(environment, settings, decided, models)
    except (ConfigurationError, StartError) as error:
        if runner is None:
            environment.pop(V2_RUNNER, None)
        plain = decided.config and fallback.instead(settings, decided, str(error).splitlines())
        if not plain:
            raise
    return _load(environment, settings, plain, Models(models.target, None))


def _load(
    environment: MutableMapping[str, str],
    settings: Settings,
    decided: Speculation,
    models: Models,
) -> "Engine":
    """Load the engine as it was decided, or raise what `load` raises."""
    defaults = {}
    if settings.serves_demo:
        defaults = {
            "model": str(demo_model.prepare()),
            "served_model_name": [demo_model.NAME],
        }
        logger.info("MODEL_NAME is not set: serving the demo model %s", demo_model.NAME)
    clock = Stopwatch()
    from specworker import engine, inspection
    from specworker.inside_vllm import predictions
    from specworker.inside_vllm.steering import Steering

    args, notes = engine.arguments(environment, decided.config, defaults, decided.rule)
    clock.lap("imports")
    decided, findings = inspection.look(args, settings, decided, models)
    logger.log(logging.WARNING if decided.fallback else logging.INFO, "%s", decided.line)
    for note in (*decided.notes, *misspelt.notes(environment), *notes):
        logger.warning("%s", note)
    inspection.report(findings, settings)
    if (settings.speculative_prediction or decided.adaptive) and predictions.prefers_v1(args):
        environment.setdefault(V2_RUNNER, "0")
    clock.lap("checks")
    in_advance = decided.layers or not text_of(environment, "LOAD_FORMAT")
    if hub_cache.folders(environment) and in_advance:
        models = download.fetch_all(models, settings.token)
    clock.lap("download")
    for model in filter(None, models):
        if model.is_cached:
            logger.info("%s is cached in %s", model.name, model.place)
        for note in model.notes:
            logger.warning("%s", note)
    hub_cache.serve_from(models, args)
    if decided.layers:
        self_draft.add(args, decided.layers, self_draft.homes(environment))
        clock.lap("draft")
    args.speculative_config = args.speculative_config and draft_alias.apply(args.speculative_config)
    errors = start_failure.ErrorLog(environment, as_json=settings.on_platform)
    try:
        loaded = engine.Engine(
            args,
            drops_unsupported=settings.speculative_unsupported == "drop",
            fallback=decided.fallback,
            draft=(decided.config or {}).get("model"),
            steered=Steering(decided.adaptive, decided.max_prompt_len, decided.only_predictions),
            predicts=settings.speculative_prediction,
        )
    except Exception as error:
        cause = errors.cause(error)
        errors.close()
        if isinstance(error, ConfigurationError):
            raise
        raise StartError(cause) from error
    clock.lap("load")
    loaded.started = clock.laps
    return loaded


def _served(settings: Settings, target: Found | None) -> checkpoint.Checkpoint | None:
    """What is known of the model to serve; None where no variable names it."""
    if settings.serves_demo:
        return checkpoint.read("MODEL_NAME", str(demo_model.prepare()))
    if target is None:
        return None
    return checkpoint.read("MODEL_NAME", target.name, target.revision, settings.token, target.place)


def _set_defaults(environment: MutableMapping[str, str], defaults: Mapping[str, str]) -> None:
    for name, value in defaults.items():
        environment.setdefault(name, value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="handler.py", allow_abbrev=False)
    parser.add_argument("--test_input", metavar="JSON", help="the job to run, in place of the file")
    parser.add_argument(
        "--serve", action="store_true", help="answer over HTTP on this machine, as a pod does"
    )
    return parser
