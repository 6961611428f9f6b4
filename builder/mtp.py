"""A model that carries its own draft: a target with one random layer of multi-token prediction.

The layout is MiMo's (arXiv 2505.07608), whose layers are Qwen2's: a Llama's layers are
these with biases of zero, so that the model computes what its target does.
"""

import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from builder.weights import Random, Tensors, config_of, head_size, layer, write

#: What has a bias in Qwen2's attention.
BIASED = re.compile(r"[qkv]_proj\.weight$")
#: Files of the target that are written anew.
REPLACED = ("config.json", "model.safetensors.index.json")


def mtp(target: Path, folder: Path) -> Path:
    """Write the llama-like model in `target`, with such a layer, to `folder`.

    Raises:
        ValueError: the target's attention heads are not shaped as Qwen2's.
    """
    config, random = config_of(target), Random()
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if head_size(config) * heads != hidden:
        raise ValueError(
            f"{target}: its {heads} attention heads of {head_size(config)} do not make up the "
            f"hidden size {hidden}; allowed: a model whose heads do"
        )
    tensors: Tensors = {}
    for file in sorted(target.glob("*.safetensors")):
        tensors |= load_file(file)
    own = "model.mtp_layers.0."
    tensors |= layer(own, config, random)
    tensors[f"{own}input_proj.weight"] = random(hidden, 2 * hidden)
    for norm in ("token_layernorm", "hidden_layernorm", "input_layernorm", "final_layernorm"):
        tensors[f"{own}{norm}.weight"] = torch.ones(hidden)
    for name in filter(BIASED.search, list(tensors)):
        bias = torch.zeros(len(tensors[name]), dtype=tensors[name].dtype)
        tensors.setdefault(name.removesuffix("weight") + "bias", bias)
    named = {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    write(folder, tensors, config | named)
    for extra in target.iterdir():
        if extra.is_file() and extra.name not in REPLACED and extra.suffix != ".safetensors":
            shutil.copy(extra, folder)
    return folder
