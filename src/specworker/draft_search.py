"""Drafts for a model among those that lie in the hub's cache."""

from collections.abc import Callable, Mapping

from specworker import checkpoint, drafting, hub_cache, snapshot
from specworker.checkpoint import Checkpoint
from specworker.errors import ConfigurationError

#: A model of the same family that is larger than this share is no draft.
LARGEST_SHARE = 0.5


def cached(
    environment: Mapping[str, str], target: Checkpoint, say: Callable[[str], None]
) -> list[str]:
    """Names of models in the hub's cache that may draft for `target`.

    Heads of any kind, and smaller models of its family: what is made for another model is
    refused later, with the reason.
    """
    found: dict[str, None] = {}
    folders = (path for cache in hub_cache.folders(environment) for path in cache.glob("models--*"))
    others = 0
    for folder in sorted(folders):
        name = folder.name.removeprefix("models--").replace("--", "/")
        try:
            place = snapshot.of(folder, None)
            read = place and checkpoint.read("SPECULATIVE_MODEL", name, place=str(place))
        except (OSError, ValueError, ConfigurationError) as error:
            say(f"{folder}: is not looked at as a draft, it cannot be read ({error})")
            continue
        if read and name != target.name and _may_draft(read, target):
            found[name] = None
        else:
            others += 1
    if others:
        say(f"models in the hub's cache that are no drafts of this family: {others}")
    return list(found)


def _may_draft(read: Checkpoint, target: Checkpoint) -> bool:
    """Whether a model is a head, or of the target's family and smaller."""
    if read.config is None:
        return False
    method, _ = drafting.method_of(read)
    if method == "mtp":
        return False  # a model that drafts for itself
    if method != "draft_model":
        return True
    same = read.language.get("model_type") == target.language.get("model_type")
    sizes = read.parameters, target.parameters
    return bool(same and sizes[0] and sizes[1] and sizes[0] <= sizes[1] * LARGEST_SHARE)
