"""Has `preflight` look at what is about to be started, and reports what it finds."""

import logging
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from specworker import capabilities, checkpoint, draft_fit, preflight, vocabulary
from specworker.checkpoint import Checkpoint
from specworker.decision import Speculation
from specworker.errors import ConfigurationError
from specworker.findings import WITHOUT_DRAFT, Finding, Plan
from specworker.hub_cache import Found, Models
from specworker.settings import Settings

logger = logging.getLogger(__name__)


def look(
    args: Namespace, settings: Settings, decided: Speculation, models: Models
) -> tuple[Speculation, list[Finding]]:
    """What speculation becomes beside this target, in `args` too, and what is found about it.

    Small files are downloaded where a model is on the hub; that the hub is out of reach is
    no error here.

    Args:
        args: vLLM's own options, which may name other models than the settings.
        settings: the settings.
        decided: what was decided without the target.
        models: where the models that the settings name are.

    Raises:
        ConfigurationError: a model is not there, or its `config.json` is no JSON object.
    """
    if not args.speculative_config:
        return replace(decided, config=None), []
    plan, reason = draft_fit.mapped(plan_of(args, settings, decided, models))
    args.speculative_config = dict(plan.config)
    reasons = (*decided.reasons, *filter(None, [reason]))
    decided = replace(decided, config=args.speculative_config, reasons=reasons)
    return decided, preflight.check(plan)


def report(findings: Iterable[Finding], settings: Settings) -> None:
    """Log every warning.

    Raises:
        ConfigurationError: with every error, unless PREFLIGHT makes warnings of them.
    """
    errors = []
    for finding in findings:
        if finding.severity == "error" and settings.preflight == "error":
            errors.append(finding.text)
        else:
            logger.warning("%s", finding.text)
    if errors:
        raise ConfigurationError(errors)


def plan_of(
    args: Namespace,
    settings: Settings,
    decided: Speculation,
    models: Models,
    *,
    always_target: bool = False,
) -> Plan:
    """What is to be started, with what the small files of its models tell.

    Args:
        args: vLLM's own options.
        settings: the settings.
        decided: what was decided without the target.
        models: where the models that the settings name are.
        always_target: look at the target though nothing that may be found depends on it.

    Raises:
        ConfigurationError: as `look`.
    """
    source = "SPECULATIVE_CONFIG" if settings.speculative_config is not None else ""
    if args.speculative_config != decided.config:
        source = "--speculative-config"
    draft = _draft(args, settings, source, models)
    plan = Plan(args.speculative_config or {}, Checkpoint(args.model), draft, source=source)
    if always_target or _depends_on_target(plan):
        plan = replace(plan, target=_target(args, settings, models))
    if draft and draft.tokenizer and plan.target.tokenizer:
        compared = vocabulary.compare(plan.target.tokenizer, draft.tokenizer)
        plan = replace(plan, vocabularies=compared)
    return replace(plan, engine=capabilities.of(args, plan.target, draft))


def _depends_on_target(plan: Plan) -> bool:
    """Whether anything that may be found does, so that the target is worth a look."""
    return plan.method == "mtp" if plan.draft is None else plan.draft.config is not None


def _target(args: Namespace, settings: Settings, models: Models) -> Checkpoint:
    variable = "MODEL_NAME" if args.model == settings.model_name else "--model"
    place = _found(models.target, args.model, args.revision).place
    found = checkpoint.read(variable, args.model, args.revision, settings.token, place)
    found = checkpoint.complete(found, args.revision, settings.token)
    if args.tokenizer is None:
        return found
    own = Path(args.tokenizer)
    return replace(found, tokenizer=own if vocabulary.is_in(own) else None)


def _draft(args: Namespace, settings: Settings, source: str, models: Models) -> Checkpoint | None:
    config = args.speculative_config or {}
    method, name, revision = map(config.get, ("method", "model", "revision"))
    if method in WITHOUT_DRAFT or not isinstance(name, str):
        return None
    found = _found(models.draft, name, revision)
    variable = source or "SPECULATIVE_MODEL"
    known = found.read or checkpoint.read(variable, name, revision, settings.token, found.place)
    return checkpoint.complete(known, revision, settings.token)


def _found(model: Found | None, name: str, revision: str | None) -> Found:
    """`model` where that is what is named; else no more than the name."""
    same = model is not None and (model.name, model.revision) == (name, revision)
    return model if model and same else Found(name, name, revision)
