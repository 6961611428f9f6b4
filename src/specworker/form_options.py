"""The options of vLLM that the Hub form offers, out of the hundreds that work by their names.

What is said of them here is compared with vLLM's own parser by a test.
"""

from dataclasses import dataclass
from typing import Literal

from specworker.variables import Place

Kind = Literal["string", "number", "boolean"]


@dataclass(frozen=True)
class Option:
    """One option, by the variable that sets it.

    Attributes:
        name: the variable.
        label: its name in the form.
        text: what it means, and what holds where it is not set.
        kind: how the form asks for it. A boolean without a default may stay unset.
        default: what vLLM takes where it is not set; None where that depends.
        choices: what the form lets choose from; not all that vLLM knows.
        highest: the upper end of a number; None for no end.
        place: where the form shows it.
    """

    name: str
    label: str
    text: str
    kind: Kind = "string"
    default: str | bool | int | None = None
    choices: tuple[str, ...] = ()
    highest: int | None = None
    place: Place = "advanced"


OPTIONS = (
    Option(
        "MAX_MODEL_LEN",
        "Context length",
        "Longest sequence in tokens, such as 16384 or 16k; the model's own when unset. A lower "
        "one leaves more memory for requests.",
        place="first",
    ),
    Option(
        "GPU_MEMORY_UTILIZATION",
        "GPU memory to use",
        "Share of each GPU's memory that the engine takes, drafts included; 0.92 when unset.",
        kind="number",
        highest=1,
        place="first",
    ),
    Option(
        "TENSOR_PARALLEL_SIZE",
        "GPUs per model",
        "GPUs that share the model's weights; all that the worker has when unset.",
        kind="number",
        place="first",
    ),
    Option(
        "QUANTIZATION",
        "Quantization",
        "How the weights are quantized, such as fp8 to quantize at the start; what the "
        "checkpoint declares when unset.",
        place="first",
    ),
    Option("MODEL_REVISION", "Model revision", "Branch, tag or commit of the model."),
    Option("TOKENIZER", "Tokenizer", "Hub id or folder of another tokenizer than the model's."),
    Option(
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE",
        "Served model name",
        "The model's name in requests and answers; MODEL_NAME when unset. Several are "
        "separated by commas.",
    ),
    Option(
        "CUSTOM_CHAT_TEMPLATE",
        "Chat template",
        "A Jinja template in one line; the model's own when unset.",
    ),
    Option(
        "DTYPE",
        "Data type",
        "Data type of weights and activations.",
        default="auto",
        choices=("auto", "bfloat16", "float16", "float32"),
    ),
    Option(
        "KV_CACHE_DTYPE",
        "KV cache data type",
        "Data type of the KV cache; fp8 holds twice as many tokens.",
        default="auto",
        choices=("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"),
    ),
    Option(
        "MAX_NUM_SEQS",
        "Requests in a batch",
        "Requests that run at a time; vLLM's own choice when unset.",
        kind="number",
    ),
    Option(
        "MAX_NUM_BATCHED_TOKENS",
        "Tokens in a step",
        "Tokens of a step; vLLM's own choice when unset. A verified draft takes K + 1 of them.",
        kind="number",
    ),
    Option(
        "ENABLE_PREFIX_CACHING",
        "Prefix caching",
        "Whether prompts that begin alike share their KV cache; on where the model allows when "
        "unset.",
        kind="boolean",
    ),
    Option(
        "ENFORCE_EAGER",
        "Without CUDA graphs",
        "Start sooner and decode slower; no when unset, yes on a CPU.",
        kind="boolean",
    ),
    Option(
        "TRUST_REMOTE_CODE",
        "Trust remote code",
        "Run code that the model's repository brings.",
        kind="boolean",
        default=False,
    ),
    Option(
        "ENABLE_AUTO_TOOL_CHOICE",
        "Tool calling",
        "Let the model decide when to call a tool; needs TOOL_CALL_PARSER.",
        kind="boolean",
        default=False,
    ),
    Option(
        "TOOL_CALL_PARSER",
        "Tool call parser",
        "How calls are read from the model's text, such as hermes or llama3_json.",
    ),
    Option(
        "REASONING_PARSER",
        "Reasoning parser",
        "How reasoning is told from the answer, such as qwen3 or deepseek_r1; not at all when "
        "unset.",
    ),
    Option("ENABLE_LORA", "LoRA", "Whether LoRA adapters are served; no when unset.", "boolean"),
    Option(
        "LORA_MODULES",
        "LoRA adapters",
        'Adapters to load at the start, such as [{"name": "mine", "path": "org/adapter"}].',
    ),
    Option(
        "MAX_LORA_RANK",
        "Largest LoRA rank",
        "The largest rank of an adapter.",
        default="16",
        choices=("8", "16", "32", "64", "128", "256"),
    ),
    Option(
        "PIPELINE_PARALLEL_SIZE",
        "Pipeline stages",
        "Stages that the model's layers are spread over.",
        kind="number",
        default=1,
    ),
    Option("HF_OVERRIDES", "Overrides of config.json", "A JSON object, such as for RoPE."),
    Option(
        "OVERRIDE_GENERATION_CONFIG",
        "Overrides of generation_config.json",
        "A JSON object of sampling parameters that requests start from.",
    ),
    Option(
        "LIMIT_MM_PER_PROMPT",
        "Images and videos in a prompt",
        'A JSON object, such as {"image": 1}.',
    ),
    Option(
        "VLLM_EXTRA_ARGS",
        "More options",
        "Options of vllm serve as on its command line; appended last, so they win.",
    ),
)
