"""What the pinned vLLM can do, asked of vLLM itself before it builds its config."""

from argparse import Namespace
from dataclasses import fields
from typing import Any, get_args

from vllm import envs
from vllm.config.speculative import MTPModelTypes, SpeculativeConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model_executor.models.interfaces import supports_eagle3
from vllm.model_executor.models.registry import ModelRegistry
from vllm.platforms import current_platform
from vllm.third_party.pynvml import NVMLError
from vllm.transformers_utils.config import get_config
from vllm.usage.usage_lib import UsageContext
from vllm.utils.import_utils import has_arctic_inference

from specworker.checkpoint import Checkpoint
from specworker.findings import EngineFacts, GpuFacts

#: Keys of the speculative config that vLLM fills in itself, or has to refuse.
NOT_FOR_USERS = (
    "draft_parallel_config",
    "target_model_config",
    "target_parallel_config",
    "tensor_parallel_size",
)
#: What reading a config that is not as it should be ends in.
_UNREADABLE = (OSError, ValueError, TypeError, AttributeError, LookupError, ImportError)
#: What asking a GPU for its memory ends in where it cannot be asked.
_NO_MEMORY = (NVMLError, NotImplementedError, RuntimeError, AssertionError)


def of(args: Namespace, target: Checkpoint, draft: Checkpoint | None) -> EngineFacts:
    """What the engine with the arguments `args` can do with `target` and `draft`."""
    config: dict[str, Any] = args.speculative_config or {}
    method = config.get("method")
    shares = args.tensor_parallel_size * args.pipeline_parallel_size
    tokens, requests = AsyncEngineArgs.get_batch_defaults(shares)
    usage = UsageContext.OPENAI_API_SERVER
    remote = bool(args.trust_remote_code)
    own = args.max_model_len
    return EngineFacts(
        tensor_parallel_size=args.tensor_parallel_size,
        data_parallel_size=args.data_parallel_size,
        max_num_seqs=args.max_num_seqs or requests[usage],
        max_num_batched_tokens=args.max_num_batched_tokens or tokens[usage],
        max_model_len=own if isinstance(own, int) and own > 0 else None,
        lora=bool(args.enable_lora),
        on_cpu=current_platform.is_cpu(),
        hybrid_kv_cache=not (current_platform.is_cpu() or args.disable_hybrid_kv_cache_manager),
        keys=frozenset(field.name for field in fields(SpeculativeConfig)) - {*NOT_FOR_USERS},
        lengthens=envs.VLLM_ALLOW_LONG_MAX_MODEL_LEN,
        suffix=has_arctic_inference(),
        eagle3=takes_eagle3(target, args.model_impl) if method == "eagle3" else None,
        mtp_layers=mtp_layers(draft or target, trust_remote_code=remote)
        if str(method).endswith("mtp")
        else None,
        gpu=_gpu(args),
    )


def gpu(args: Namespace, memory: int) -> GpuFacts:
    """What the engine with the arguments `args` may take of GPUs with so many bytes each."""
    return GpuFacts(
        memory=memory,
        utilization=args.gpu_memory_utilization,
        stages=args.pipeline_parallel_size,
        dtype=str(args.dtype),
        kv_cache_dtype=str(args.kv_cache_dtype),
        quantization=args.quantization,
        eager=bool(args.enforce_eager),
    )


def takes_eagle3(target: Checkpoint, implementation: str = "auto") -> bool | None:
    """Whether vLLM can read hidden states of `target` between its layers; None for unknown."""
    if implementation not in ("auto", "vllm"):
        return None
    architectures = (target.config or {}).get("architectures") or ()
    known = [name for name in architectures if name in ModelRegistry.models]
    try:
        return bool(supports_eagle3(ModelRegistry.models[known[0]].load_model_cls()))
    except _UNREADABLE:
        return None


def mtp_layers(model: Checkpoint, *, trust_remote_code: bool = False) -> int | None:
    """How many layers of multi-token prediction vLLM finds in `model`; None for unknown."""
    if model.folder is None:
        return None
    try:
        config = get_config(str(model.folder), trust_remote_code=trust_remote_code)
        config = SpeculativeConfig.hf_config_override(config)
    except _UNREADABLE:
        return None
    if config.model_type not in get_args(MTPModelTypes):
        return 0
    layers = getattr(config, "n_predict", None)
    return layers if isinstance(layers, int) else None


def _gpu(args: Namespace) -> GpuFacts | None:
    """The GPUs of this machine; None where the utilization does not say what is taken of them.

    vLLM itself asks for their memory in this process, for the sizes of its batches.
    """
    if current_platform.is_cpu() or args.kv_cache_memory_bytes or args.cpu_offload_gb:
        return None
    try:
        return gpu(args, current_platform.get_device_total_memory())
    except _NO_MEMORY:  # vLLM says what is wrong with it
        return None
