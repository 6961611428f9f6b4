"""The vLLM worker of this platform, with vLLM's faults corrected (`worker_cls`)."""

from typing import Any

import vllm
from vllm.platforms import current_platform

from specworker.inside_vllm import corrections, mlp_speculator, row_by_row, rule_config

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker


class Worker(PlatformWorker):  # type: ignore[misc]
    """vLLM's own worker; the corrections go in before it makes anything."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        corrections.apply(vllm.__version__, on_cpu=current_platform.is_cpu())
        super().__init__(*args, **kwargs)

    def load_model(self, **kwargs: Any) -> None:
        """Load target and draft, with what the worker puts in the place of vLLM's parts."""
        mlp_speculator.install(self.model_runner)
        row_by_row.install(self.model_runner)
        super().load_model(**kwargs)
        rule = rule_config.handed_over(self.vllm_config)
        if rule.is_typical:
            from specworker.inside_vllm import typical_acceptance  # for those who asked for it

            typical_acceptance.install(self.model_runner, rule)
