"""What vLLM refuses about speculation, in the names of the variables that set it.

Most of it `preflight` has said before. It is said here where that could not tell.
"""

import re
from typing import NamedTuple

from specworker.draft_fit import FAMILY
from specworker.findings import VARIABLES


class Refusal(NamedTuple):
    """One of vLLM's texts, with `{}` for what it fills in, and the line for the user."""

    text: str
    line: str


LONGEST = VARIABLES["max_model_len"]
REFUSALS = (
    Refusal(
        "speculative_draft_tensor_parallel_size={} cannot be other value than 1 or target model "
        "tensor_parallel_size",
        f"{VARIABLES['draft_tensor_parallel_size']}={{0}}: is neither 1 nor the target's; "
        "allowed: 1 or TENSOR_PARALLEL_SIZE",
    ),
    Refusal(
        "Target and draft model should have the same vocabulary size. Target model "
        "vocab_size={}. Draft model vocab_size={}.",
        f"{VARIABLES['model']}: its vocabulary has {{1}} entries, the target's {{0}}; "
        f"allowed: {FAMILY}",
    ),
    Refusal(
        "speculative_max_model_len={} cannot be larger than target_max_model_len={}",
        f"{LONGEST}={{0}}: is above the target's longest sequence; allowed: 1 to {{1}}",
    ),
    Refusal(
        "speculative_max_model_len={} cannot be larger than draft_max_model_len={}",
        f"{LONGEST}={{0}}: is above the draft's longest sequence; allowed: 1 to {{1}}",
    ),
    Refusal(
        "num_speculative_tokens:{} must be divisible by n_predict={}",
        f"{VARIABLES['num_speculative_tokens']}={{0}}: the draft's layers are run as a whole; "
        "allowed: up to {1}, or a multiple of {1}",
    ),
    Refusal(
        "Unsupported speculative method: '{}'",
        f"{VARIABLES['method']}={{0}}: the draft, or the target, is not made for it; "
        "allowed: another method, or another draft",
    ),
    Refusal(
        "use_heterogeneous_vocab currently only supports greedy draft sampling.",
        f"{VARIABLES['draft_sample_method']}=probabilistic: use_heterogeneous_vocab is for "
        "greedy drafts only; allowed: greedy",
    ),
    Refusal(
        "use_heterogeneous_vocab only works with method='draft_model'",
        "SPECULATIVE_CONFIG: use_heterogeneous_vocab is for method draft_model; allowed: false",
    ),
    Refusal(
        "Consider increasing max_num_batched_tokens or decreasing num_speculative_tokens",
        "MAX_NUM_BATCHED_TOKENS: is too low for LoRA with speculation; allowed: at least "
        "MAX_NUM_SEQS times (1 + NUM_SPECULATIVE_TOKENS)",
    ),
)


def translated(text: str) -> str | None:
    """The line for the user where `text` is one of these refusals; None where it is none."""
    text = " ".join(text.split())
    for refusal in REFUSALS:
        if match := re.search(_pattern(refusal.text), text):
            return refusal.line.format(*match.groups())
    return None


def _pattern(text: str) -> str:
    """What finds a text of vLLM's, and the values in it."""
    return re.escape(text).replace(r"\{\}", r"(\w+)")
