"""The vLLM worker of this platform, with vLLM's faults corrected (`worker_cls`)."""

from typing import Any

import vllm
from vllm.platforms import current_platform

from specworker.inside_vllm import corrections

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker


class Worker(PlatformWorker):  # type: ignore[misc]
    """vLLM's own worker; the corrections go in before it makes anything."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        corrections.apply(vllm.__version__, on_cpu=current_platform.is_cpu())
        super().__init__(*args, **kwargs)
