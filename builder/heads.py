"""Draft heads with random weights, to see a method run without a GPU or a download.

They are working heads that draft badly: nothing was trained.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file


def medusa(target: Path, heads: int, head: Path) -> Path:
    """Write `heads` Medusa heads for the model in `target` to the folder `head`.

    Medusa (arXiv 2401.10774): head i is a residual block [H, H] on the target's last
    hidden state [H], then an output layer [V, H] that drafts token i + 1.
    """
    config = json.loads((target / "config.json").read_text())
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    noise = torch.Generator().manual_seed(0)
    tensors = {}
    for index in range(heads):
        block = torch.randn(hidden, hidden, generator=noise) * 0.02
        output = torch.randn(vocabulary, hidden, generator=noise) * 0.02
        tensors[f"blocks.{index}.layers.0.weight"] = block
        tensors[f"lm_heads.{index}.weight"] = output
    return _write(
        head,
        tensors,
        {
            "model_type": "medusa",
            "architectures": ["MedusaModel"],
            "hidden_size": hidden,
            "vocab_size": vocabulary,
            "num_heads": heads,
            "num_hidden_layers": 1,
        },
    )


def _write(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder
