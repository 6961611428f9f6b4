"""Whether target and draft fit a GPU, and for how many sequences. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from specworker import kv_cache, layer_layout, model_size, weights
from specworker.checkpoint import Checkpoint
from specworker.drafting import HEAD_A_TOKEN
from specworker.findings import Finding, GpuFacts, Plan
from specworker.kv_cache import Cache
from specworker.weights import Tensor, Weights

GIB = 1024**3
#: Rounded up from experience, on each GPU: what CUDA and the libraries that use it take.
CONTEXT = GIB // 2
#: The same of CUDA graphs and what compiling leaves.
GRAPHS = GIB
#: Hidden states of a token that a layer holds at a time: input, residual, norm and output.
STATES = 4
#: Bytes of a token's logits, by entry of the vocabulary, while it is sampled: in 16 bits, in 32
#: bits twice, and their order.
SAMPLED = 2 + 2 * 4 + 8


@dataclass(frozen=True)
class Load:
    """A model on each of its GPUs: bytes of its weights, and of what it keeps of a sequence."""

    weights: int
    cache: Cache


@dataclass(frozen=True)
class Needs:
    """What each GPU needs.

    Attributes:
        target: the model that serves.
        draft: what drafts; None where nothing with weights does.
        room: bytes for what is computed, graphs and CUDA itself: an estimate.
    """

    target: Load
    draft: Load | None
    room: int

    def left(self, budget: int, *, drafts: bool = True) -> int:
        """Bytes of `budget` that are left for the KV cache; below 0 where it does not load."""
        draft = self.draft.weights if self.draft and drafts else 0
        return budget - self.room - self.target.weights - draft

    def sequences(self, budget: int, tokens: int, *, drafts: bool = True) -> int:
        """How many sequences of `tokens` the KV cache then holds."""
        each = self.target.cache.of(tokens)
        if self.draft and drafts:
            each += self.draft.cache.of(tokens)
        left = self.left(budget, drafts=drafts)
        return int(left // each) if left > 0 and each else 0


def needs(
    plan: Plan, gpu: GpuFacts, target: Weights | None = None, draft: Weights | None = None
) -> Needs | None:
    """What each GPU needs for `plan`.

    Args:
        plan: what is to be started.
        gpu: what it is to be started on.
        target: its weights; estimated by what the checkpoint says where they are not given.
        draft: the same of what drafts.

    Returns:
        None where the files do not say enough of the target, or of the draft.
    """
    drafter, shares = drafts(plan), plan.engine.tensor_parallel_size
    loaded = _load(plan, gpu, plan.target, target or weigh(plan, gpu, plan.target), shares)
    if loaded is None:
        return None
    if drafter is None:
        return Needs(loaded, None, room(plan, gpu))
    if plan.method != "draft_model":
        shares = plan.integer("draft_tensor_parallel_size") or shares
    draft = draft or weigh(plan, gpu, drafter, of_draft=True)
    beside = _load(plan, gpu, drafter, draft, shares, of_draft=True)
    return Needs(loaded, beside, room(plan, gpu)) if beside else None


def weigh(
    plan: Plan,
    gpu: GpuFacts,
    model: Checkpoint,
    tensors: Iterable[Tensor] = (),
    *,
    of_draft: bool = False,
) -> Weights | None:
    """The weights of `model`, the target or what drafts, by its headers where they are known."""
    quantization = plan.config.get("quantization") if of_draft else gpu.quantization
    method = quantization if isinstance(quantization, str) else None
    found = weights.of(model, tensors, bits=gpu.bits, quantization=method)
    # Layers of multi-token prediction in a checkpoint of their own are what drafts.
    whole = found and of_draft and replace(found, size=found.size + found.drafting, drafting=0)
    return whole or found


def drafts(plan: Plan) -> Checkpoint | None:
    """What is loaded beside the target to draft; None where nothing is, or it is not known.

    The target's layers of multi-token prediction are a model of so many layers here, with
    embeddings of its own, as checkpoints have them.
    """
    if plan.draft is not None:
        return plan.draft
    config = plan.target.language
    layers = plan.engine.mtp_layers or model_size.number(config, "num_nextn_predict_layers")
    if plan.method != "mtp" or not layers or not config:
        return None
    alone = {
        **config,
        "num_hidden_layers": layers,
        "first_k_dense_replace": 0,
        "layer_types": None,
    }
    return Checkpoint(plan.target.name, alone)


def of_own_layers(target: Checkpoint, layers: tuple[int, ...]) -> Checkpoint:
    """The draft that `layers` of `target` make."""
    return Checkpoint(
        f"{target.name} (its own layers)", layer_layout.config_of(target.language, layers)
    )


def room(plan: Plan, gpu: GpuFacts) -> int:
    """Bytes of each GPU that hold neither weights nor a KV cache: an estimate.

    The larger of what a layer computes for the tokens of a step and what sampling holds for
    every request that may run, with CUDA and its graphs.
    """
    config, engine = plan.target.language, plan.engine
    hidden, shares = model_size.number(config, "hidden_size"), engine.tensor_parallel_size
    inner = model_size.width(config)
    layer = (STATES * hidden + 3 * inner // shares) * gpu.bits // 8
    computed = engine.max_num_batched_tokens * layer
    sampled = engine.max_num_seqs * model_size.number(config, "vocab_size") * SAMPLED
    return CONTEXT + (0 if gpu.eager else GRAPHS) + max(computed, sampled)


def check(plan: Plan) -> Iterator[Finding]:
    """A draft for which the GPUs have no memory beside the target; on a CPU nothing is found."""
    gpu = plan.engine.gpu
    if gpu is None or drafts(plan) is None:
        return
    found, longest = needs(plan, gpu), plan.engine.max_model_len or plan.target.context
    if found is None or found.draft is None or not longest:
        return
    if found.sequences(gpu.budget, longest):
        return
    left, alone = found.left(gpu.budget), found.sequences(gpu.budget, longest, drafts=False)
    own, draft, computed = found.target.weights, found.draft.weights, found.room
    kept = "are more than that"
    if left > 0:
        kept = f"leave {left / GIB:.1f} for the KV cache, less than a sequence of {longest} tokens"
    outcome = "without the draft it would fit" if alone else "nor does the target alone fit"
    yield Finding(
        "warning",
        f"GPU_MEMORY_UTILIZATION={gpu.utilization:g}: is {gpu.budget / GIB:.1f} GiB of a GPU; "
        f"about {own / GIB:.1f} GiB of weights, {draft / GIB:.1f} of the draft's and "
        f"{computed / GIB:.1f} to compute in {kept}; {outcome}; "
        "lower MAX_MODEL_LEN, take a smaller draft, or more GPUs",
    )


def cache_of(
    plan: Plan, gpu: GpuFacts, model: Checkpoint, *, shares: int = 1, of_draft: bool = False
) -> Cache | None:
    """What each of `shares` GPUs keeps of a sequence for `model`; heads that draft keep nothing."""
    if of_draft and plan.method in HEAD_A_TOKEN:
        return Cache()
    kind = of_draft and plan.config.get("kv_cache_dtype")
    bits = kv_cache.bits(str(kind or gpu.kv_cache_dtype), model.config or {}, gpu.bits)
    stages = 1 if of_draft else gpu.stages
    windowed = plan.engine.hybrid_kv_cache
    return kv_cache.of(model.language, bits, shares=shares, stages=stages, windowed=windowed)


def _load(
    plan: Plan,
    gpu: GpuFacts,
    model: Checkpoint,
    loaded: Weights | None,
    shares: int,
    *,
    of_draft: bool = False,
) -> Load | None:
    cache = cache_of(plan, gpu, model, shares=shares, of_draft=of_draft)
    if loaded is None or cache is None:
        return None
    stages = 1 if of_draft else gpu.stages  # what drafts is with the last layers
    return Load(loaded.size // (shares * stages), cache)
