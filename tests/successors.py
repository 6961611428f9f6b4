"""A target that goes from each token to a fixed next one, and an MLP speculator that knows it.

What such a pair writes, drafts and accepts can be said in advance.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from builder import heads, tiny

STEP, VOCABULARY = 5, 33
#: After these tokens the speculator drafts a wrong one.
MISTAKEN = (7, 8, 20, 22, 24)


def after(token: int) -> int:
    """The token that the target puts after `token`. Every token comes up in turn."""
    return (token + STEP) % VOCABULARY


def text(token: int, length: int) -> list[int]:
    """The `length` tokens that the target writes after a prompt that ends in `token`."""
    return [(token + STEP * place) % VOCABULARY for place in range(1, length + 1)]


def accepted(token: int, length: int, most: int) -> list[int]:
    """How many drafted tokens each step accepts of a text, where `most` are drafted a step."""
    steps: list[int] = []
    last, written = after(token), 1
    while written < length:
        right = 0
        while right < most and last not in MISTAKEN:
            last, right = after(last), right + 1
        last = after(last)
        steps.append(right)
        written += right + 1
    return steps


def target(folder: Path) -> Path:
    """Write the target: its layer adds nothing, and its output layer knows what follows."""
    tiny.write(folder, words=VOCABULARY - 1, layers=1)
    tensors = load_file(folder / "model.safetensors")
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"model.layers.0.{name}.weight"].zero_()
    hidden = tensors["model.embed_tokens.weight"].shape[1]
    tensors["model.embed_tokens.weight"] = torch.eye(VOCABULARY, hidden)
    tensors["lm_head.weight"] = _next() @ torch.eye(VOCABULARY, hidden)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def speculator(of: Path, folder: Path, stages: int) -> Path:
    """Write the speculator, whose stages share their weights.

    A unit for each token is on where state and last token both say that it is the last one,
    and off where they differ: neither of the two can be wrong without the draft being wrong.
    """
    heads.mlp_speculator(of, stages, folder, inner=VOCABULARY, tied=True, scaled=True)
    tensors = load_file(folder / "model.safetensors")
    hidden = json.loads((of / "config.json").read_text())["hidden_size"]
    one = torch.eye(VOCABULARY)
    # Both reach the norm equally strong; it makes of one unit √33, and √16.5 each of two.
    decay = 0.5 ** (1 / stages)
    strength = ((1 - decay) / decay * VOCABULARY / 2) ** 0.5
    threshold = 5.0
    on = torch.nn.functional.gelu(torch.tensor(VOCABULARY**0.5 - threshold))
    draft = _next()
    for token in MISTAKEN:
        draft[:, token] = draft[:, token].roll(1)
    tensors |= {
        "speculator.emb.0.weight": one,
        "speculator.proj.0.weight": _next()
        @ torch.eye(VOCABULARY, hidden)
        * strength
        * (2 / hidden) ** 0.5,
        "speculator.proj.1.weight": _next() * strength / on,
        "speculator.ln.0.weight": torch.ones(VOCABULARY),
        "speculator.ln.0.bias": torch.full((VOCABULARY,), -threshold),
        "speculator.head.0.weight": draft,
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _next() -> torch.Tensor:
    """[V, V], with a 1 from each token to that after it."""
    return torch.eye(VOCABULARY).roll(STEP, 0)
