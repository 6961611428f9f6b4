"""Random weights in the shapes of a llama-like model, and the folder that holds them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]

#: What every llama-like `config.json` says.
NEEDED = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")


class Random:
    """Normally distributed tensors, the same in every run."""

    def __init__(self, deviation: float = 0.02) -> None:
        self._deviation = deviation
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> torch.Tensor:
        """The next tensor."""
        return torch.randn(shape, generator=self._generator) * self._deviation


def config_of(folder: Path) -> dict[str, Any]:
    """The `config.json` of the llama-like model in `folder`.

    Raises:
        ValueError: there is none, or it is not that of such a model.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"{folder}: has no config.json; allowed: the folder of a model")
    config: dict[str, Any] = json.loads(file.read_text())
    if missing := [key for key in NEEDED if key not in config]:
        raise ValueError(
            f"{folder}: its config.json does not say {', '.join(missing)}; "
            "allowed: a llama-like model"
        )
    return config


def head_size(config: dict[str, Any]) -> int:
    """The width of one attention head."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def layer(prefix: str, config: dict[str, Any], random: Random, width: int | None = None) -> Tensors:
    """One Llama layer without its input norm, under names that start with `prefix`.

    Its attention reads `width` values a token, the hidden size where that is None.
    """
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * head_size(config)
    keys = config.get("num_key_value_heads", config["num_attention_heads"]) * head_size(config)
    shapes = {
        "self_attn.q_proj": (queries, width or hidden),
        "self_attn.k_proj": (keys, width or hidden),
        "self_attn.v_proj": (keys, width or hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    tensors = {f"{prefix}{name}.weight": random(*shape) for name, shape in shapes.items()}
    return tensors | {f"{prefix}post_attention_layernorm.weight": torch.ones(hidden)}


def write(folder: Path, tensors: Tensors, config: dict[str, Any]) -> Path:
    """Write a checkpoint to `folder`, and return that."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder
