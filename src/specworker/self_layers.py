"""Which of a target's layers draft for it, with method self (arXiv 2309.08168). Pure."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from specworker import layer_layout
from specworker.checkpoint import Checkpoint
from specworker.decision import Decision
from specworker.values import shown as shortened

#: The share of the target's layers that draft where nothing says which.
DEFAULT_SHARE = 4 / 5

_ITEM = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")


def add(decided: Decision, target: Checkpoint | None, given: Any, source: str = "") -> None:
    """Have vLLM draft with the layers of `target` that `given` chooses.

    Args:
        decided: what is told.
        target: the model to serve; None where no variable names it.
        given: as `chosen` takes it.
        source: the variable that holds method and layers as keys; empty where each has its own.
    """
    assert decided.config is not None
    decided.config["method"] = "draft_model"
    method, variable = ("SPECULATIVE_METHOD", "SPECULATIVE_SELF_LAYERS")
    if source:
        method, variable = (f"{source}: {key}" for key in ("method", "layers"))
    if target is None:
        decided.problems.append(f"{method}=self: needs MODEL_NAME, a hub id or a folder")
    elif target.config is None:
        decided.problems.append(
            f"{method}=self: the config.json of {target.name}, which says how many layers it "
            "has, cannot be read; allowed: a folder, or a hub id while the hub is in reach"
        )
    elif reason := layer_layout.unfit(target.config, target.tensors):
        decided.problems.append(
            f"{method}=self: {target.name} cannot draft with some of its layers: {reason}; "
            "allowed: a llama-like model, or another method"
        )
    else:
        depth = target.config["num_hidden_layers"]
        try:
            layers = decided.layers = chosen(given, depth)
        except ValueError as error:
            decided.problems.append(
                f"{variable}={shortened(str(given))}: {error}; allowed: {allowed(depth)}"
            )
            return
        decided.reasons.append(
            f"method self: the target drafts with {len(layers)} of its {depth} layers "
            f"({shown(layers)})"
        )
        decided.notes.append(cost(layers, depth))
        if len(kinds := layer_layout.kinds(target.config, layers)) > 1:
            decided.notes.append(
                f"{method}=self: these layers attend in several ways ({', '.join(kinds)}), and on "
                "a GPU vLLM drafts with layers of one way; set DISABLE_HYBRID_KV_CACHE_MANAGER="
                f"true, or have {variable} name such layers"
            )


def chosen(given: Any, depth: int) -> tuple[int, ...]:
    """The layers that `given` chooses of a target of `depth` layers, which is above 1.

    Args:
        given: how many, or which: `12`, `0-7,26-29`, or a list of integers; None for
            the default.
        depth: the target's number of layers.

    Raises:
        ValueError: it chooses none, all, or one that the target does not have; the text
            is a clause for the user.
    """
    given = default(depth) if given is None else _parsed(given, depth)
    if isinstance(given, int):
        if not 0 < given < depth:
            raise ValueError(f"the target has {depth} layers, of which some draft, and not all")
        return around_the_middle(given, depth)
    if not given or any(later <= layer for layer, later in pairwise(given)):
        raise ValueError("is no list of layers in rising order")
    if given[0] < 0 or given[-1] >= depth:
        raise ValueError(f"the target's layers are 0 to {depth - 1}")
    if len(given) == depth:
        raise ValueError("these are all layers of the target, which would draft at its own cost")
    return tuple(given)


def allowed(depth: int) -> str:
    """What may choose layers of a target of `depth` layers, in words."""
    example = shown(around_the_middle(default(depth), depth))
    example = f"{example}-{example}" if example.isdigit() else example  # alone it is a number
    return f"how many, 1 to {depth - 1}, or which, such as {example}"


def default(depth: int) -> int:
    """How many of a target's `depth` layers draft where nothing says."""
    return min(depth - 1, max(1, round(depth * DEFAULT_SHARE)))


def around_the_middle(count: int, depth: int) -> tuple[int, ...]:
    """The first and the last layers, `count` in all, without the block in the middle.

    A block of that size is missed least there: the first layers find out what the text is
    about, and the last ones turn that into a token.
    """
    first = (count + 1) // 2
    return (*range(first), *range(depth - (count - first), depth))


def shown(layers: Sequence[int]) -> str:
    """Layers in rising order as a user writes them: `0-7, 26-29`."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def cost(layers: Sequence[int], depth: int) -> str:
    """What a draft of `layers` costs and when it pays (arXiv 2211.17192), in a clause."""
    share = len(layers) / depth
    return (
        f"method self drafts with {len(layers)} of {depth} layers: a draft step costs at least "
        f"{share:.2f} of a target step, so it pays only where more than {share:.0%} of the "
        "drafted tokens are accepted"
    )


def _parsed(given: Any, depth: int) -> int | list[int]:
    """A number of layers, or a list of them, of which those from `depth` on are cut off."""
    if isinstance(given, list) and all(type(layer) is int for layer in given):
        return given
    items = [item.strip() for item in str(given).split(",")]
    matches = [match for match in map(_ITEM.fullmatch, items) if match]
    if len(matches) < len(items):
        raise ValueError("is neither a number of layers nor a list of them")
    if len(items) == 1 and matches[0][2] is None:
        return int(matches[0][1])
    layers: list[int] = []
    for match in matches:
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"{first}-{last} is no range of layers in rising order")
        layers += range(first, min(last, depth) + 1) or [first]
    return layers
