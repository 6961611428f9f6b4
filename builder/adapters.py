"""A LoRA adapter with random weights, as PEFT writes them."""

import json
from pathlib import Path

from safetensors.torch import save_file

from builder.weights import Random, config_of, head_size

RANK = 8


def lora(of: Path, folder: Path) -> Path:
    """Write an adapter for the queries and values of the llama-like model in `of` to `folder`."""
    config, random = config_of(of), Random(0.5)
    heads = {"q_proj": "num_attention_heads", "v_proj": "num_key_value_heads"}
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, count in heads.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            rows = config[count] * head_size(config)
            tensors[f"{prefix}.lora_A.weight"] = random(RANK, config["hidden_size"])
            tensors[f"{prefix}.lora_B.weight"] = random(rows, RANK)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(of),
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": [*heads],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(described, indent=2) + "\n")
    return folder
