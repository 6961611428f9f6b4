"""Draft heads with random weights, to see a method run without a GPU or a download.

They are working heads that draft badly: nothing was trained. Each is made for the
llama-like model in the folder `target` and written to the folder `head`, named and shaped
as those that are published. H is the target's hidden size, V its vocabulary.
"""

from pathlib import Path
from typing import Any

import torch

from builder.weights import Random, Tensors, config_of, layer, write

#: What a layer of a head takes over from its target's `config.json`.
OF_A_LAYER = (
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "vocab_size",
)
#: Targets with fewer layers lack some of those that an EAGLE-3 head reads by default.
DEEP_ENOUGH = 7


def medusa(target: Path, heads: int, head: Path) -> Path:
    """Medusa (arXiv 2401.10774): `heads` heads, each of which drafts one token.

    Head i is a residual block [H, H] on the target's last hidden state [H], then an
    output layer [V, H] that drafts token i + 1.
    """
    config, random = config_of(target), Random()
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    tensors: Tensors = {}
    for index in range(heads):
        tensors[f"blocks.{index}.layers.0.weight"] = random(hidden, hidden)
        tensors[f"lm_heads.{index}.weight"] = random(vocabulary, hidden)
    kept = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": hidden,
        "vocab_size": vocabulary,
        "num_heads": heads,
        "num_hidden_layers": 1,
    }
    return write(head, tensors, kept)


def mlp_speculator(
    target: Path,
    heads: int,
    head: Path,
    *,
    inner: int | None = None,
    tied: bool = False,
    scaled: bool = False,
) -> Path:
    """An MLP speculator (arXiv 2404.19124): `heads` stages, each of which drafts one token.

    Stage i has an embedding [V, D], a projection [D, H] or, after the first, [D, D], a
    norm [D] and an output layer [V, D].

    Args:
        target: as above.
        heads: the number of stages.
        head: as above.
        inner: D; the target's hidden size where it is None.
        tied: have the stages share their weights, the first projection apart.
        scaled: normalize the target's hidden state first.

    Raises:
        ValueError: a single stage is to be tied.
    """
    if tied and heads < 2:
        raise ValueError("one stage has nothing to share its weights with; allowed: two or more")
    config, random = config_of(target), Random()
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    width = inner or hidden
    tensors: Tensors = {}
    for stage in range(heads):
        if stage == 0 or not tied:
            tensors[f"speculator.emb.{stage}.weight"] = random(vocabulary, width)
            tensors[f"speculator.head.{stage}.weight"] = random(vocabulary, width)
            tensors[f"speculator.ln.{stage}.weight"] = torch.ones(width)
            tensors[f"speculator.ln.{stage}.bias"] = torch.zeros(width)
        if stage < 2 or not tied:
            tensors[f"speculator.proj.{stage}.weight"] = random(width, width if stage else hidden)
    kept = {
        "model_type": "mlp_speculator",
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "emb_dim": hidden,
        "inner_dim": inner or 0,
        "vocab_size": vocabulary,
        "n_predict": heads,
        "n_candidates": 1,
        "top_k_tokens_per_head": [1] * heads,
        "tie_weights": tied,
        "scale_input": scaled,
    }
    return write(head, tensors, kept)


def eagle(target: Path, head: Path) -> Path:
    """EAGLE (arXiv 2401.15077), in the layout of its authors.

    A layer [H, 2H] joins the embedding of a token with the target's hidden state before
    it, and a Llama layer follows. Embedding and output layer are the target's.
    """
    config, random = config_of(target), Random()
    hidden = config["hidden_size"]
    tensors = {"fc.weight": random(hidden, 2 * hidden)} | layer("layers.0.", config, random)
    return write(head, tensors, _one_layer(config) | {"architectures": ["LlamaForCausalLM"]})


def eagle3(
    target: Path,
    head: Path,
    *,
    vocabulary: int | None = None,
    speculators: bool = False,
    tokens: int = 3,
) -> Path:
    """EAGLE-3 (arXiv 2503.01840), in the layout of its authors or in that of speculators.

    A layer [H, 3H] joins hidden states of three of the target's layers, and a Llama layer
    reads that and the embedding of a token. The embedding is the target's.

    Args:
        target: as above.
        head: as above.
        vocabulary: how many of the target's tokens can be drafted; None for all.
        speculators: write the layout of the library `speculators`.
        tokens: there: how many tokens a step the head declares that it is made to draft.

    Raises:
        ValueError: `vocabulary` is not a part of the target's, which may also be too shallow.
    """
    config, random = config_of(target), Random()
    hidden, whole = config["hidden_size"], config["vocab_size"]
    drafted = whole if vocabulary is None else vocabulary
    if not 0 < drafted <= whole:
        raise ValueError(f"vocabulary {drafted}: the target has {whole}; allowed: 1 to {whole}")
    prefix = "layers.0." if speculators else "midlayer."
    tensors = layer(prefix, config, random, 2 * hidden) | {
        f"{prefix}hidden_norm.weight": torch.ones(hidden),
        f"{prefix}input_layernorm.weight": torch.ones(hidden),
        "norm.weight": torch.ones(hidden),
        "fc.weight": random(hidden, 3 * hidden),
        "lm_head.weight": random(drafted, hidden),
    }
    if vocabulary is not None:
        own = torch.arange(drafted)
        of_target = own * whole // drafted
        tensors["d2t"] = of_target - own
        tensors["t2d"] = torch.zeros(whole, dtype=torch.bool).index_fill(0, of_target, value=True)
    depth, kept = config["num_hidden_layers"], _one_layer(config)
    read = {"eagle_aux_hidden_state_layer_ids": _layers_read(depth)}
    if not speculators:
        kept |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": drafted}
        return write(head, tensors, kept | (read if depth < DEEP_ENOUGH else {}))
    declared: dict[str, Any] = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": tokens}],
            "verifier": {
                "name_or_path": str(target),
                "architectures": config.get("architectures", []),
            },
        },
        "draft_vocab_size": drafted,
        "norm_before_residual": False,
        "transformer_layer_config": kept,
    }
    return write(head, tensors, declared | read)


def _one_layer(config: dict[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in OF_A_LAYER if key in config} | {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
    }


def _layers_read(depth: int) -> list[int]:
    """After how many of the target's layers an EAGLE-3 head reads the hidden state."""
    if depth < 2:
        raise ValueError(
            "the target has one layer; allowed: two or more, to be read at three places"
        )
    return [2, depth // 2, depth - 3] if depth >= DEEP_ENOUGH else [0, depth // 2, depth]
