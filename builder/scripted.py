"""A model whose answer is written beforehand, at the cost of a real one.

What it says depends on the position alone, not on what was said before: right or wrong drafts
change nothing but the time. Its layers compute, and add nothing.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from builder.weights import Random, Tensors, write

#: How much louder the position is than the token before it.
LOUD = 8.0
#: Files of a tokenizer.
TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "chat_template*")


def scripted(
    of: Path,
    folder: Path,
    script: Mapping[int, int],
    *,
    layers: int | None = None,
    positions: int = 4096,
) -> Path:
    """Write a GPT-2 to `folder`, of the width, depth and tokenizer of the model in `of`.

    Args:
        of: a folder with the model to take the measures of.
        folder: where to write.
        script: by position, from 0, the token that stands there.
        layers: how many, those of the model in `of` where that is None.
        positions: tokens of the longest sequence.
    """
    like = json.loads((of / "config.json").read_text())
    width, words = like["hidden_size"], like["vocab_size"]
    depth = layers or like["num_hidden_layers"]
    random = Random()
    embedded = torch.nn.functional.normalize(random(words, width))
    placed = torch.zeros(positions, width)
    for position, token in script.items():
        placed[position - 1] = LOUD * embedded[token]
    tensors: Tensors = {"transformer.wte.weight": embedded, "transformer.wpe.weight": placed}
    for name in ("ln_f", *(f"h.{i}.{norm}" for i in range(depth) for norm in ("ln_1", "ln_2"))):
        tensors[f"transformer.{name}.weight"] = torch.ones(width)
        tensors[f"transformer.{name}.bias"] = torch.zeros(width)
    for i in range(depth):
        for name, rows, columns in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ):
            adds = name.endswith("c_proj")
            matrix = torch.zeros(rows, columns) if adds else random(rows, columns)
            tensors[f"transformer.h.{i}.{name}.weight"] = matrix
            tensors[f"transformer.h.{i}.{name}.bias"] = torch.zeros(columns)
    write(
        folder,
        tensors,
        {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": words,
            "n_positions": positions,
            "n_embd": width,
            "n_layer": depth,
            "n_head": like["num_attention_heads"],
            "tie_word_embeddings": True,
            "dtype": "float32",
            **{key: like[key] for key in ("bos_token_id", "eos_token_id") if key in like},
        },
    )
    for pattern in TOKENIZER:
        for file in of.glob(pattern):
            shutil.copy(file, folder)
    return folder


def script(prompt: Sequence[int], answer: Sequence[int]) -> dict[int, int]:
    """The script of a model that answers a prompt with `answer`, by their token ids."""
    return dict(enumerate(answer, len(prompt)))
