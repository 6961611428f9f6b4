"""Models of which some layers can be taken, and what their config then says. Pure.

They are llama-like: tensors named `model.layers.N.…`, and one config for all layers.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from specworker.checkpoint import OF_LANGUAGE

_LAYER = re.compile(r"(model\.layers\.)(\d+)(\..+)")
_NAMED = re.compile(r"\blayers\\?\.(\d+)\b")  # in a pattern, the dot has a backslash

#: Lists in a config that have an entry for each layer.
BY_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers", "attn_type_list")
#: Lists of layers that differ from the others.
LISTED = ("mlp_only_layers",)
#: Numbers of first layers that differ from the others.
FIRST = ("first_k_dense_replace", "max_window_layers")
#: Every how many layers one differs; nothing does where that is 1.
PERIODS = (
    "decoder_sparse_step",
    "full_attention_interval",
    "interleave_moe_layer_step",
    "moe_layer_freq",
    "moe_layer_interval",
    "no_rope_layer_interval",
    "sliding_window_pattern",
)
#: Periods of which a list by layer says the same, where there is one.
SPELT_OUT = {
    "full_attention_interval": "layer_types",
    "no_rope_layer_interval": "no_rope_layers",
    "sliding_window_pattern": "layer_types",
}


def unfit(config: Mapping[str, Any], tensors: Collection[str] = ()) -> str | None:
    """Why no draft can be made of some layers of a model; None where it can.

    Args:
        config: its `config.json`.
        tensors: the names of its tensors; empty where they are not known.
    """
    if part := next((key for key in OF_LANGUAGE if isinstance(config.get(key), dict)), None):
        return f"its language model is one part of several ({part} in its config.json)"
    depth = config.get("num_hidden_layers")
    if not isinstance(depth, int) or depth < 2:
        return f"its config.json says num_hidden_layers={depth}, and it takes at least 2"
    if config.get("num_nextn_predict_layers"):
        return "it has layers of multi-token prediction, which are for SPECULATIVE_METHOD=mtp"
    if config.get("num_kv_shared_layers"):
        return "some of its layers read the keys and values of others (num_kv_shared_layers)"
    for key in PERIODS:
        every = config.get(key)
        if every not in (None, 0, 1) and not config.get(SPELT_OUT.get(key, "")):
            return f"what a layer does depends on its place ({key} in its config.json)"
    places = {int(match[2]) for match in map(_LAYER.fullmatch, tensors) if match}
    if tensors and places != set(range(depth)):
        return f"its tensors are not those of model.layers.0 to model.layers.{depth - 1}"
    return None


def kinds(config: Mapping[str, Any], layers: Sequence[int] | None = None) -> list[str]:
    """The ways in which some layers of a model attend, or all of them: `full_attention`, …."""
    types = config.get("layer_types")
    if not isinstance(types, list):
        return []
    return sorted({str(types[layer]) for layer in layers or range(len(types))})


def kept(name: str, layers: Sequence[int]) -> str | None:
    """What the tensor `name` is called in a model of `layers`; None where it is not in it."""
    if (match := _LAYER.fullmatch(name)) is None:
        return name
    layer = int(match[2])
    return f"{match[1]}{layers.index(layer)}{match[3]}" if layer in layers else None


def config_of(config: Mapping[str, Any], layers: Sequence[int]) -> dict[str, Any]:
    """The config of a model that keeps only `layers`, in rising order, of that of `config`."""
    cut = {**config, "num_hidden_layers": len(layers)}
    for key in BY_LAYER:
        if isinstance(kinds := config.get(key), list):
            cut[key] = [kinds[layer] for layer in layers]
    for key in LISTED:
        if isinstance(listed := config.get(key), list):
            cut[key] = [place for place, layer in enumerate(layers) if layer in listed]
    for key in FIRST:
        if isinstance(number := config.get(key), int):
            cut[key] = sum(layer < number for layer in layers)
    if "quantization_config" in config:
        cut["quantization_config"] = renumbered(config["quantization_config"], layers)
    return cut


def renumbered(value: Any, layers: Sequence[int]) -> Any:
    """`value`, part of a config, with what it says of modules by name for `layers` alone."""
    if isinstance(value, dict):
        names = _renamed(value, layers)
        return {new: renumbered(value[name], layers) for name, new in names}
    if isinstance(value, list):
        texts = dict(_renamed([item for item in value if isinstance(item, str)], layers))
        return [
            texts[item] if isinstance(item, str) else renumbered(item, layers)
            for item in value
            if not isinstance(item, str) or item in texts
        ]
    return value


def _renamed(names: Iterable[str], layers: Sequence[int]) -> list[tuple[str, str]]:
    """Those of `names` that are in a model of `layers`, and what they are called there."""
    pairs = []
    for name in names:
        match = _NAMED.search(name)
        if match is None:
            pairs.append((name, name))
        elif (layer := int(match[1])) in layers:
            start, end = match.span(1)
            pairs.append((name, f"{name[:start]}{layers.index(layer)}{name[end:]}"))
    return pairs
