"""A draft made of some of a target's own layers (self-speculation, arXiv 2309.08168)."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LAYER = re.compile(r"^(model\.layers\.)(\d+)(\..*)$")

#: Files of a target that its draft does not share.
REPLACED = ("config.json", "model.safetensors.index.json")


def cut(target: Path, layers: Sequence[int], draft: Path) -> Path:
    """Write a model to `draft` that keeps only `layers` of the one in `target`.

    Embeddings, final norm and output head are the target's. Works for llama-like
    layouts, whose tensors are named `model.layers.N.…`.

    Args:
        target: a folder with config.json and safetensors.
        layers: the layers to keep, in order, each once.
        draft: the folder to write.

    Raises:
        ValueError: a layer that the target does not have, or that is given twice.
    """
    from safetensors.torch import load_file, save_file

    config = json.loads((target / "config.json").read_text())
    depth = config["num_hidden_layers"]
    if not layers or not all(0 <= layer < depth for layer in layers):
        raise ValueError(f"layers {list(layers)} are not all among the target's {depth}")
    place = {layer: position for position, layer in enumerate(layers)}
    if len(place) < len(layers):
        raise ValueError(f"layers {list(layers)} are not all different")
    kept: dict[str, Any] = {}
    for file in sorted(target.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            if (match := LAYER.match(name)) is None:
                kept[name] = tensor
            elif int(match[2]) in place:
                kept[f"{match[1]}{place[int(match[2])]}{match[3]}"] = tensor
    draft.mkdir(parents=True, exist_ok=True)
    save_file(kept, draft / "model.safetensors", metadata={"format": "pt"})
    config["num_hidden_layers"] = len(layers)
    if kinds := config.get("layer_types"):
        config["layer_types"] = [kinds[layer] for layer in layers]
    (draft / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for extra in target.iterdir():
        if extra.is_file() and extra.name not in REPLACED and extra.suffix != ".safetensors":
            shutil.copy(extra, draft)
    return draft
