"""Whether a model is cached already, and where.

The layout is the Hugging Face hub's: `models--<org>--<name>/` with `refs/<revision>`, which
holds a commit, and `snapshots/<commit>/`. On Runpod it lies on a volume, where the platform
may have put a model under its name in lower case; the hub's client would not find it there.
"""

import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from specworker import snapshot, volume
from specworker.checkpoint import Checkpoint, is_path
from specworker.errors import ConfigurationError
from specworker.values import BOOLEANS, text_of

_REPOSITORY = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@dataclass(frozen=True)
class Found:
    """A model and where vLLM is to take it from.

    Attributes:
        name: what the user wrote.
        place: the folder of its snapshot; its name where no cache holds it.
        revision: the branch, tag or commit that the user asked for.
        notes: what the user should know: snapshots that cannot be used, and why.
        read: what its small files tell, where they were read.
    """

    name: str
    place: str
    revision: str | None = None
    notes: tuple[str, ...] = ()
    read: Checkpoint | None = field(default=None, compare=False)

    @property
    def is_cached(self) -> bool:
        """Whether a cache holds the model."""
        return self.place != self.name


class Models(NamedTuple):
    """The models that the settings name; None for one that they do not."""

    target: Found | None = None
    draft: Found | None = None


def folders(environment: Mapping[str, str]) -> list[Path]:
    """The hub caches to look in, the one that the hub's client uses first.

    None where the user keeps models elsewhere.
    """
    modelscope = (text_of(environment, "VLLM_USE_MODELSCOPE") or "").lower()
    if text_of(environment, "DOWNLOAD_DIR") or BOOLEANS.get(modelscope):
        return []
    own = text_of(environment, "HF_HUB_CACHE") or text_of(environment, "HUGGINGFACE_HUB_CACHE")
    cache = text_of(environment, "XDG_CACHE_HOME") or "~/.cache"
    home = text_of(environment, "HF_HOME") or f"{cache}/huggingface"
    mounted = (volume.of(environment) or volume.SERVERLESS, volume.SERVERLESS)
    on_volumes = (volume.hub(place) for place in mounted)
    return list(dict.fromkeys([Path(own or f"{home}/hub").expanduser(), *on_volumes]))


def is_offline(environment: Mapping[str, str]) -> bool:
    """Whether the hub's client is told not to use the network."""
    text = text_of(environment, "HF_HUB_OFFLINE") or text_of(environment, "TRANSFORMERS_OFFLINE")
    return BOOLEANS.get((text or "").lower(), False)


def target_revision(environment: Mapping[str, str]) -> str | None:
    """The revision of the model to serve that the variables ask for."""
    return text_of(environment, "MODEL_REVISION") or text_of(environment, "REVISION")


def is_hub_id(name: str) -> bool:
    """Whether a model's name can only be found on the hub."""
    return bool(not is_path(name) and _REPOSITORY.fullmatch(name) and not Path(name).exists())


def find(
    variable: str,
    name: str,
    revision: str | None,
    caches: Sequence[Path],
    *,
    offline: bool = False,
    with_tokenizer: bool = False,
) -> Found:
    """Look for the model `name`, which `variable` gave, in `caches`.

    Args:
        variable: for what is said to the user.
        name: a hub id; anything else is returned as it is.
        revision: a branch, tag or commit; None for the main branch.
        caches: the folders to look in, in this order.
        offline: whether nothing can be downloaded.
        with_tokenizer: leave a snapshot without tokenizer to the hub's client, which
            completes it; without effect offline.

    Raises:
        ConfigurationError: `offline`, and no cache holds the model whole.
    """
    if not is_hub_id(name) or not caches:
        return Found(name, name, revision)
    unusable: list[str] = []
    for folder in _repositories(name, caches):
        try:
            found = snapshot.of(folder, revision)
            if found is None:
                continue
            lacks = snapshot.lacks(found, with_tokenizer=with_tokenizer and not offline)
        except (OSError, ValueError) as error:
            unusable.append(f"{folder} cannot be read ({error})")
            continue
        if not lacks:
            return Found(name, str(found), revision, _notes(variable, name, unusable))
        unusable.append(f"{found} is not used, it has {lacks}")
    if offline:
        at = f" at revision {revision}" if revision else ""
        looked = "; ".join(unusable) or f"looked in {', '.join(map(str, caches))}"
        raise ConfigurationError(
            [
                f"{variable}={name}: HF_HUB_OFFLINE is set and no cache holds this model whole"
                f"{at} ({looked}); allowed: a cached model or a folder, or unset HF_HUB_OFFLINE"
            ]
        )
    return Found(name, name, revision, _notes(variable, name, unusable))


def serve_from(models: Models, args: Namespace) -> None:
    """Have vLLM load `models` from where they lie, and serve the target under the user's name.

    Does nothing where `args`, vLLM's own options, ask for another model or revision.
    """
    target, draft = models
    if (
        target
        and target.is_cached
        and (args.model, args.revision) == (target.name, target.revision)
    ):
        args.model, args.revision = target.place, None
        args.served_model_name = args.served_model_name or [target.name]
    if draft and args.speculative_config:
        args.speculative_config = draft_from(draft, args.speculative_config)


def draft_from(draft: Found, config: Mapping[str, Any]) -> dict[str, Any]:
    """The speculative configuration `config` with its draft loaded from where it lies."""
    named = (config.get("model"), config.get("revision"))
    if not draft.is_cached or named != (draft.name, draft.revision):
        return dict(config)
    return {key: value for key, value in config.items() if key != "revision"} | {
        "model": draft.place
    }


def _repositories(name: str, caches: Sequence[Path]) -> Iterator[Path]:
    own = f"models--{name.replace('/', '--')}"
    return (cache / folder for cache in caches for folder in dict.fromkeys((own, own.lower())))


def _notes(variable: str, name: str, unusable: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{variable}={name}: {reason}" for reason in unusable)
