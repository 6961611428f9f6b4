"""What is checked before a start, and what was found."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from specworker import speculation
from specworker.checkpoint import Checkpoint
from specworker.vocabulary import Comparison

#: Key of vLLM's config -> the variable that sets it.
VARIABLES = {key: name.upper() for name, key in speculation.DRAFT_KEYS.items()} | {
    "method": "SPECULATIVE_METHOD",
    "model": "SPECULATIVE_MODEL",
    "num_speculative_tokens": "NUM_SPECULATIVE_TOKENS",
    "num_speculative_tokens_per_batch_size": "SPECULATIVE_DISABLE_BY_BATCH_SIZE",
}
#: Methods without a checkpoint that drafts.
WITHOUT_DRAFT = ("ngram", "suffix", "prediction", "ngram_gpu", "custom_class")


@dataclass(frozen=True)
class GpuFacts:
    """The GPUs that an engine is to be started on, and what of their memory it may take.

    Attributes:
        memory: bytes of each.
        utilization: the share that vLLM takes: GPU_MEMORY_UTILIZATION.
        stages: groups of GPUs that the layers are divided among.
        dtype: the type of weights that are not quantized, and of hidden states.
        kv_cache_dtype: the type of keys and values.
        quantization: how weights are quantized as they are loaded; None for as they are.
        eager: whether no CUDA graphs are captured.
    """

    memory: int
    utilization: float = 0.92
    stages: int = 1
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    eager: bool = False

    @property
    def budget(self) -> int:
        """Bytes that vLLM takes of each."""
        return int(self.memory * self.utilization)

    @property
    def bits(self) -> int:
        """Bits of a value of `dtype`."""
        return 32 if self.dtype in ("float32", "float") else 16


@dataclass(frozen=True)
class EngineFacts:
    """What the engine is to be started with, and what it can do.

    Attributes:
        tensor_parallel_size: GPUs that share a replica's weights.
        data_parallel_size: replicas.
        max_num_seqs: requests that run at a time.
        max_num_batched_tokens: tokens of a step.
        max_model_len: longest sequence; None where the target's own holds.
        lora: whether adapters are served.
        on_cpu: whether it runs without a GPU.
        hybrid_kv_cache: whether layers that attend in other ways have a KV cache of their own.
        keys: the keys that vLLM's speculative config has; empty where they are not known.
        lengthens: whether vLLM is told to let sequences be longer than a model was made for.
        suffix: whether what suffix decoding needs is installed.
        eagle3: whether vLLM can read the target's hidden states for EAGLE-3; None for unknown.
        mtp_layers: layers of multi-token prediction that vLLM finds in the checkpoint that
            holds them; None for unknown.
        gpu: what it runs on; None for a CPU, and where its memory is not known.
    """

    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    lora: bool = False
    on_cpu: bool = False
    hybrid_kv_cache: bool = False
    keys: frozenset[str] = frozenset()
    lengthens: bool = False
    suffix: bool = True
    eagle3: bool | None = None
    mtp_layers: int | None = None
    gpu: GpuFacts | None = None


@dataclass(frozen=True)
class Plan:
    """What is to be started.

    Attributes:
        config: vLLM's speculative config, by which tokens are drafted.
        target: the model to serve.
        draft: the checkpoint that drafts; None where there is none, or none is known.
        vocabularies: the target's beside the draft's; None where nothing can be said.
        engine: what it runs on.
        source: what `config` was written in as it is; empty where variables made it.
    """

    config: Mapping[str, Any]
    target: Checkpoint
    draft: Checkpoint | None = None
    vocabularies: Comparison | None = None
    engine: EngineFacts = field(default_factory=EngineFacts)
    source: str = ""

    @property
    def method(self) -> str | None:
        """How tokens are drafted; `mtp` for each of vLLM's older names of it."""
        method = self.config.get("method")
        if not isinstance(method, str):
            return None
        return "mtp" if method.endswith("_mtp") else method

    def integer(self, key: str) -> int | None:
        """The number under `key`; None where there is none, which vLLM sees to."""
        value = self.config.get(key)
        return value if isinstance(value, int) else None

    def set_by(self, key: str) -> str:
        """What the user changes to change `key` of the config."""
        if self.source or key not in VARIABLES:
            return f"{self.source or 'SPECULATIVE_CONFIG'}: {key}"
        return VARIABLES[key]


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        severity: an `error` keeps speculation from working, a `warning` from paying.
        text: a line: what, why it matters, what to set.
        unfit: whether the draft cannot be set up as it is, with this target and this engine;
            else the settings contradict vLLM or one another.
    """

    severity: Literal["error", "warning"]
    text: str
    unfit: bool = True


def unusable(findings: Iterable[Finding]) -> list[Finding]:
    """Those that say that the draft cannot be set up, so that plain decoding could serve."""
    return [finding for finding in findings if finding.severity == "error" and finding.unfit]
