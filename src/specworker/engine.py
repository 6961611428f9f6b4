"""The engine: vLLM's AsyncLLM and vLLM's own OpenAI application, in this process."""

import asyncio
import contextlib
import gc
from argparse import Namespace
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import vllm
from starlette.types import ASGIApp
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import (
    propagate_flash_late_interaction,
    validate_parsed_serve_args,
)
from vllm.entrypoints.launchers.launcher import validate_api_server_args
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

from specworker import engine_flags, hub_cache
from specworker.errors import ConfigurationError
from specworker.hub_cache import Found
from specworker.inside_vllm.corrections import CORRECTED_VERSION

#: vLLM's worker class for this platform, with its faults corrected.
WORKER = "specworker.inside_vllm.worker.Worker"
#: Without a size vLLM's CPU backend asks for nearly the whole memory of the machine.
CPU_KV_CACHE_BYTES = 2 * 1024**3


def arguments(
    environment: Mapping[str, str],
    speculative_config: Mapping[str, Any] | None,
    model: Mapping[str, Any],
    target: Found | None = None,
) -> tuple[Namespace, list[str]]:
    """The arguments of `vllm serve` to run with, and notes for the user.

    Args:
        environment: the variables; what they set replaces the worker's own choices.
        speculative_config: what `speculation` decided; None for plain decoding.
        model: options that name the model to serve, where the variables name none.
        target: the model that MODEL_NAME names, and where it is cached.

    Raises:
        ConfigurationError: with one line for every variable that is wrong.
    """
    defaults: dict[str, Any] = {
        **model,
        "speculative_config": speculative_config and dict(speculative_config),
        "per_request_spec_decode_metrics": None,
        "tensor_parallel_size": None,
    }
    if vllm.__version__ == CORRECTED_VERSION:
        defaults["worker_cls"] = WORKER
    if current_platform.is_cpu():
        defaults["enforce_eager"] = True  # compiling takes minutes and gains nothing here
        if "VLLM_CPU_KVCACHE_SPACE" not in environment:
            defaults["kv_cache_memory_bytes"] = CPU_KV_CACHE_BYTES
    args, notes = engine_flags.read(environment, defaults)
    if target is not None:
        hub_cache.serve_from(target, args)
    if args.tensor_parallel_size is None:
        args.tensor_parallel_size = _gpus_each(args)
    if args.api_key:
        args.api_key = None
        notes.append("--api-key: no effect, jobs come through the platform, which has its own keys")
    if args.per_request_spec_decode_metrics is None:
        args.per_request_spec_decode_metrics = "summary" if args.speculative_config else "none"
    if speculative_config and args.speculative_config != defaults["speculative_config"]:
        notes.append("VLLM_EXTRA_ARGS or VLLM_CONFIG_FILE replaced the speculative configuration")
    if args.worker_cls != defaults.get("worker_cls"):
        notes.append(
            f"worker class {args.worker_cls}: the worker's corrections of vLLM "
            f"{vllm.__version__} are not applied"
        )
    try:
        validate_parsed_serve_args(args)
        validate_api_server_args(args)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigurationError([f"vLLM refuses its arguments: {error}"]) from error
    return args, notes


def _gpus_each(args: Namespace) -> int:
    """The visible GPUs that each stage of each replica can have; 1 on a CPU."""
    if current_platform.is_cpu():
        return 1
    shares = args.pipeline_parallel_size * args.data_parallel_size
    return max(1, int(current_platform.device_count() // shares))


class Engine:
    """A loaded model and the application that serves it.

    The constructor blocks until the weights are loaded and needs no event loop; `app`
    completes it in the loop that will use it.
    """

    def __init__(self, args: Namespace) -> None:
        """Load the model.

        Raises:
            ConfigurationError: vLLM refuses the configuration.
        """
        self._args = args
        #: Seconds that the parts of the start took, by name.
        self.started: dict[str, float] = {}
        engine_args = AsyncEngineArgs.from_cli_args(args)
        propagate_flash_late_interaction(args, engine_args)
        try:
            config = engine_args.create_engine_config(UsageContext.OPENAI_API_SERVER)
        except (ValueError, NotImplementedError, OSError) as error:
            raise ConfigurationError([_refusal(error)]) from error
        self.client = AsyncLLM.from_vllm_config(
            config,
            usage_context=UsageContext.OPENAI_API_SERVER,
            enable_log_requests=args.enable_log_requests,
            aggregate_engine_logging=args.aggregate_engine_logging,
            disable_log_stats=args.disable_log_stats,
        )
        self._app: ASGIApp | None = None
        self._opening = asyncio.Lock()
        self._closing = contextlib.AsyncExitStack()

    @property
    def served_name(self) -> str:
        """The model's name in requests and answers."""
        names: list[str] | None = self._args.served_model_name
        return names[0] if names else str(self._args.model)

    async def app(self) -> ASGIApp:
        """vLLM's OpenAI application, started in the running loop at the first call."""
        async with self._opening:
            if self._app is None:
                await self.client.reset_mm_cache()
                tasks = await self.client.get_supported_tasks()
                app = build_app(self._args, tasks, self.client.model_config)
                # Where vLLM's handler of a dead engine says that its server should end.
                app.state.server = SimpleNamespace(should_exit=False)
                await init_app_state(self.client, app.state, self._args, tasks)
                await self._closing.enter_async_context(app.router.lifespan_context(app))
                self._app = app
        return self._app

    async def aclose(self) -> None:
        """Stop the application, then the engine's processes."""
        await self._closing.aclose()
        self.close()

    def close(self) -> None:
        """Stop the engine's processes. The engine cannot be used afterwards."""
        self.client.shutdown(timeout=self.client.vllm_config.shutdown_timeout)
        # vLLM froze the heap while its application ran; what it held goes now, not in the
        # interpreter's last moments, when half of what its destructors call is gone.
        self._app = None
        del self.client
        gc.unfreeze()
        gc.collect()


def _refusal(error: Exception) -> str:
    """vLLM's reason in a line: pydantic's frame and the list of every architecture cut off."""
    text = str(error)
    if "Value error, " in text:
        text = text.split("Value error, ", 1)[1].split(" [type=", 1)[0]
    return f"vLLM refuses the configuration: {' '.join(text.split())[:600]}"
