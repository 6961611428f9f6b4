"""What target and draft take of the GPUs that can be rented. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from specworker import gpu_memory
from specworker.checkpoint import Checkpoint
from specworker.findings import GpuFacts, Plan
from specworker.weights import Weights

MIB = 1024**2


class GpuType(NamedTuple):
    """A GPU: its name, its memory as its driver has it, and vLLM's own sizes of a batch on it."""

    name: str
    memory: int
    max_num_seqs: int
    max_num_batched_tokens: int


GPU_TYPES = (
    GpuType("RTX 4090 24 GB", 24_564 * MIB, 256, 2048),
    GpuType("L40S 48 GB", 46_068 * MIB, 256, 2048),
    GpuType("A100 80 GB", 81_920 * MIB, 256, 2048),
    GpuType("H100 80 GB", 81_559 * MIB, 1024, 8192),
    GpuType("H200 141 GB", 143_771 * MIB, 1024, 8192),
    GpuType("B200 180 GB", 183_359 * MIB, 1024, 16_384),
)


@dataclass(frozen=True)
class Model:
    """A model on all of its GPUs together.

    Attributes:
        name: as the user wrote it.
        parameters: how many; None where nothing tells.
        weight_bytes: of its weights, once loaded.
        kv_bytes_per_token: of a token that every layer keeps.
        source: what told the weights: `headers`, `files` (their size) or `config`.
    """

    name: str
    parameters: int | None
    weight_bytes: int
    kv_bytes_per_token: int
    source: str


@dataclass(frozen=True)
class Row:
    """What comes of one type of GPU; bytes are those of each GPU.

    Attributes:
        gpu: its name.
        memory_bytes: what it has.
        room_bytes: what is computed in, an estimate.
        kv_cache_bytes: what is left for the KV cache; 0 where the weights do not fit.
        fits: whether one sequence fits.
        sequences: how many do.
        sequences_without_draft: how many would with the target alone.
    """

    gpu: str
    memory_bytes: int
    room_bytes: int
    kv_cache_bytes: int
    fits: bool
    sequences: int
    sequences_without_draft: int

    @property
    def draft_costs_sequences(self) -> int:
        """What the draft costs, in sequences."""
        return self.sequences_without_draft - self.sequences


@dataclass(frozen=True)
class Planned:
    """All that is found out.

    Attributes:
        target: the model that serves.
        draft: what drafts; None where nothing with weights does.
        speculation: the line that a start logs.
        context: tokens of a sequence.
        gpus: how many share the model.
        gpu_memory_utilization: the share of their memory that vLLM takes.
        rows: one for each type of GPU.
        findings: what a start would report: severity and text, errors first.
    """

    target: Model
    draft: Model | None
    speculation: str
    context: int
    gpus: int
    gpu_memory_utilization: float
    rows: tuple[Row, ...]
    findings: tuple[tuple[str, str], ...] = ()

    @property
    def works(self) -> bool:
        """Whether the draft can work with the target."""
        return all(severity != "error" for severity, _ in self.findings)

    def as_object(self) -> dict[str, Any]:
        """The same for programs."""
        rows = [
            {**asdict(row), "draft_costs_sequences": row.draft_costs_sequences} for row in self.rows
        ]
        findings = [{"severity": severity, "text": text} for severity, text in self.findings]
        return {**asdict(self), "rows": rows, "findings": findings}


def model(plan: Plan, gpu: GpuFacts, read: Checkpoint, found: Weights, *, of_draft: bool) -> Model:
    """The figures of a model whose weights are `found`; a cache that is not known counts as 0."""
    whole = replace(gpu, stages=1)
    cache = gpu_memory.cache_of(plan, whole, read, of_draft=of_draft)
    kept = round(cache.per_token) if cache else 0
    return Model(read.name, found.parameters, found.size, kept, found.source)


def rows(
    plan: Plan,
    facts: Mapping[GpuType, GpuFacts],
    context: int,
    target: Weights,
    draft: Weights | None,
) -> tuple[Row, ...] | None:
    """What comes of each type of GPU; None where the files do not say enough.

    Args:
        plan: what is to be started; the sizes of its batches are replaced by those of a type
            where they are 0, for unset.
        facts: the types, and what vLLM may take of each.
        context: tokens of a sequence.
        target: weights of the target.
        draft: weights of what drafts.
    """
    found = []
    for kind, gpu in facts.items():
        engine = replace(
            plan.engine,
            max_num_seqs=plan.engine.max_num_seqs or kind.max_num_seqs,
            max_num_batched_tokens=plan.engine.max_num_batched_tokens
            or kind.max_num_batched_tokens,
        )
        needs = gpu_memory.needs(replace(plan, engine=engine), gpu, target, draft)
        if needs is None:
            return None
        sequences = needs.sequences(gpu.budget, context)
        alone = needs.sequences(gpu.budget, context, drafts=False)
        left = max(0, needs.left(gpu.budget))
        fits = sequences > 0
        found.append(Row(kind.name, gpu.memory, needs.room, left, fits, sequences, alone))
    return tuple(found)
