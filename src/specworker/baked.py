"""The models that an image brings along: which of them are served, and what is not used.

They lie in a folder in the layout of the hub's cache, beside a manifest that says which
they are (`builder/download_model.py`).
"""

import json
import logging
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple

from specworker import drafting, hub_cache, speculation
from specworker.settings import Settings
from specworker.values import text_of

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
TARGET, DRAFT = "MODEL_NAME", "SPECULATIVE_MODEL"
#: Options that may name something else on the hub, which needs the network.
MORE_FROM_HUB = (
    "DEFAULT_MM_LORAS",
    "HF_CONFIG_PATH",
    "LORA_MODULES",
    "TOKENIZER",
    "TOKENIZER_NAME",
    "VLLM_CONFIG_FILE",
    "VLLM_EXTRA_ARGS",
)


class Baked(NamedTuple):
    """A model that the image brings.

    Attributes:
        name: its hub id.
        revision: the branch, tag or commit that was asked for; None for the main branch.
        commit: what that was when the image was built.
    """

    name: str
    revision: str | None
    commit: str


def place(environment: MutableMapping[str, str]) -> None:
    """Serve the image's own models where nothing else is named, without a network then.

    For before the hub's client is imported.
    """
    if (cache := folder(environment)) is None:
        return
    models = read(cache)
    environment.update(chosen(environment, models))
    for note in unused(environment, models):
        logger.warning("%s", note)
    if is_enough(environment, cache) and not text_of(environment, "HF_HUB_OFFLINE"):
        environment["HF_HUB_OFFLINE"] = "1"


def folder(environment: Mapping[str, str]) -> Path | None:
    """Where the image's own models lie; None where it brings none."""
    named = text_of(environment, "BAKED_MODELS")
    return Path(named) if named and (Path(named) / MANIFEST).is_file() else None


def read(cache: Path) -> dict[str, Baked]:
    """The models of the manifest in `cache`, by the variable that names each."""
    manifest = json.loads((cache / MANIFEST).read_text())
    return {variable: Baked(**model) for variable, model in manifest.items()}


def write(cache: Path, models: Mapping[str, Baked]) -> None:
    """Write the manifest of `models` to `cache`."""
    manifest = {variable: model._asdict() for variable, model in models.items()}
    (cache / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def chosen(environment: Mapping[str, str], models: Mapping[str, Baked]) -> dict[str, str]:
    """The variables that have the image's own models served.

    Whoever has another model served says what drafts for it, too.
    """
    target, draft = models.get(TARGET), models.get(DRAFT)
    if target is None or text_of(environment, "VLLM_CONFIG_FILE"):
        return {}
    if text_of(environment, TARGET) not in (None, target.name):
        return {}
    variables = {TARGET: target.name}
    if target.revision and not hub_cache.target_revision(environment):
        variables["MODEL_REVISION"] = target.revision
    if draft and not _drafts_otherwise(environment):
        variables[DRAFT] = draft.name
        if draft.revision and not text_of(environment, "SPECULATIVE_MODEL_REVISION"):
            variables["SPECULATIVE_MODEL_REVISION"] = draft.revision
    return variables


def unused(environment: Mapping[str, str], models: Mapping[str, Baked]) -> list[str]:
    """A line on each of the image's own models that `environment` has no use for."""
    wanted = _wanted(environment)
    notes = []
    for variable, model in models.items():
        name, revision = wanted[variable]
        if name == model.name and revision in (None, model.revision, model.commit):
            continue
        asked = f"{variable}={name}" if name else f"{variable}: is not set"
        at = f" at {revision}" if name and revision else ""
        own = f" at {model.revision}" if model.revision else ""
        notes.append(f"{asked}{at}: the image's own {model.name}{own} is not used")
    return notes


def is_enough(environment: Mapping[str, str], cache: Path) -> bool:
    """Whether the image brings everything that is named."""
    if any(text_of(environment, name) for name in MORE_FROM_HUB):
        return False
    named = {
        variable: model for variable, model in _wanted(environment).items() if model[0] is not None
    }
    return TARGET in named and all(
        hub_cache.find(
            variable, str(name), revision, [cache], with_tokenizer=variable == TARGET
        ).is_cached
        for variable, (name, revision) in named.items()
    )


def _wanted(environment: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Name and revision of the models that `environment` names."""
    draft = speculation.draft(Settings.read(environment)[0])
    return {
        TARGET: (text_of(environment, TARGET), hub_cache.target_revision(environment)),
        DRAFT: (draft.name, draft.revision) if draft else (None, None),
    }


def _drafts_otherwise(environment: Mapping[str, str]) -> bool:
    """Whether what is set drafts without the image's own draft."""
    settings, _ = Settings.read(environment)
    if settings.speculative_model or settings.speculative_config is not None:
        return True
    if method := settings.speculative_method:
        return method in (*drafting.LOOKUP_METHODS, "mtp", "self")
    return bool(settings.ngram_prompt_lookup_min or settings.ngram_prompt_lookup_max)
