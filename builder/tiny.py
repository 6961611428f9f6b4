"""A tiny Llama with random weights and a word-level tokenizer: an engine's cost without a model's.

For measuring what surrounds a model, and for sampling far more often than a real model
allows. Its text means nothing.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def write(
    folder: Path, *, words: int = 32, padding: int = 0, layers: int = 2, seed: int = 0
) -> Path:
    """Write a model to `folder` whose vocabulary is `w0` … and an end token.

    Args:
        folder: where to write.
        words: size of the vocabulary, without the end token.
        padding: random rows that embedding and output layer have beyond the vocabulary; the
            other weights are those without them.
        layers: number of layers, each of width 64.
        seed: of the weights. Two seeds give two models that share a tokenizer.
    """
    vocabulary = {f"w{index}": index for index in range(words)} | {"<end>": words}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", chat_template=CHAT_TEMPLATE
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            initializer_range=0.2,  # enough for the distributions to be far from uniform
            eos_token_id=words,
            bos_token_id=None,
            tie_word_embeddings=False,
        )
    )
    if padding:
        model.resize_token_embeddings(len(vocabulary) + padding, mean_resizing=False)
    model.save_pretrained(folder)
    wrapped.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    write(Path(sys.argv[1]))
