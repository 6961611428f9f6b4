"""What a person would choose to start with, in the Hub form's presets."""

from collections.abc import Mapping
from typing import NamedTuple


class Preset(NamedTuple):
    """A choice of values.

    Attributes:
        name: what the form calls it.
        values: by variable.
    """

    name: str
    values: Mapping[str, str | int]


PRESETS = (
    Preset(
        "Any model, n-gram lookup: RAG, summaries and editing",
        {
            "SPECULATIVE_METHOD": "ngram",
            "NUM_SPECULATIVE_TOKENS": 3,
            "NGRAM_PROMPT_LOOKUP_MIN": 2,
            "NGRAM_PROMPT_LOOKUP_MAX": 4,
        },
    ),
    Preset(
        "Any model, suffix decoding: agents and repeated tasks",
        {"SPECULATIVE_METHOD": "suffix", "NUM_SPECULATIVE_TOKENS": 24},
    ),
    Preset(
        "Llama 3.1 8B with an EAGLE-3 head (one GPU)",
        {
            "MODEL_NAME": "meta-llama/Llama-3.1-8B-Instruct",
            "SPECULATIVE_METHOD": "eagle3",
            "SPECULATIVE_MODEL": "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3",
            "NUM_SPECULATIVE_TOKENS": 3,
            "MAX_MODEL_LEN": "16384",
        },
    ),
    Preset(
        "Qwen3 8B with an EAGLE-3 head (one GPU)",
        {
            "MODEL_NAME": "Qwen/Qwen3-8B",
            "SPECULATIVE_METHOD": "eagle3",
            "SPECULATIVE_MODEL": "RedHatAI/Qwen3-8B-speculator.eagle3",
            "NUM_SPECULATIVE_TOKENS": 3,
            "MAX_MODEL_LEN": "16384",
            "REASONING_PARSER": "qwen3",
        },
    ),
    Preset(
        "Llama 3.3 70B with Llama 3.2 1B as its draft (4 GPUs per worker)",
        {
            "MODEL_NAME": "meta-llama/Llama-3.3-70B-Instruct",
            "SPECULATIVE_METHOD": "draft_model",
            "SPECULATIVE_MODEL": "meta-llama/Llama-3.2-1B-Instruct",
            "NUM_SPECULATIVE_TOKENS": 4,
            "TENSOR_PARALLEL_SIZE": 4,
            "MAX_MODEL_LEN": "32768",
        },
    ),
)
