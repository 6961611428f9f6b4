"""A target deeper than its draft, with nearly the same text: what a good draft would be like."""

import json
import shutil
from pathlib import Path


def deepened(model: Path, folder: Path, times: int, damped: float) -> Path:
    """Write `model` so many times as deep; of what the copies add `damped` is left."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    weights = load_file(model / "model.safetensors")
    config = json.loads((model / "config.json").read_text())
    depth = config["num_hidden_layers"]
    for name in [name for name in weights if name.startswith("model.layers.")]:
        number, rest = name.removeprefix("model.layers.").split(".", 1)
        adds = rest.endswith(("o_proj.weight", "down_proj.weight"))
        copied = weights[name] * (damped if adds else 1)
        for copy in range(1, times):
            weights[f"model.layers.{int(number) + copy * depth}.{rest}"] = copied.clone()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config["num_hidden_layers"] = times * depth
    if kinds := config.get("layer_types"):
        config["layer_types"] = kinds * times
    (folder / "config.json").write_text(json.dumps(config))
    return folder
