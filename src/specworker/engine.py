"""The engine: vLLM's AsyncLLM and vLLM's own OpenAI application, in this process."""

import asyncio
import contextlib
import gc
import logging
from argparse import Namespace
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import vllm
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Scope
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

from specworker import (
    engine_flags,
    noted,
    predicted,
    refusals,
    reporting,
    speculation_routes,
)
from specworker.acceptance_rule import DEFAULT_RULE, AcceptanceRule
from specworker.answer_figures import AnswerFigures
from specworker.errors import ConfigurationError
from specworker.inside_vllm import (
    observer,
    possible,
    predictions,
    rule_config,
    steering,
    whole_batch,
)
from specworker.inside_vllm.corrections import CORRECTED_VERSION
from specworker.inside_vllm.steering import Steering
from specworker.job_record import Figures
from specworker.live import Live
from specworker.noted import Noted
from specworker.outgoing import public

if TYPE_CHECKING:
    from fastapi import FastAPI

logger = logging.getLogger(__name__)

#: vLLM's worker class for this platform, with its faults corrected.
WORKER = "specworker.inside_vllm.worker.Worker"
#: Without a size vLLM's CPU backend asks for nearly the whole memory of the machine.
CPU_KV_CACHE_BYTES = 2 * 1024**3


def arguments(
    environment: Mapping[str, str],
    speculative_config: Mapping[str, Any] | None,
    model: Mapping[str, Any],
    rule: AcceptanceRule = DEFAULT_RULE,
) -> tuple[Namespace, list[str]]:
    """The arguments of `vllm serve` to run with, and notes for the user.

    Args:
        environment: the variables; what they set replaces the worker's own choices.
        speculative_config: what `speculation` decided; None for plain decoding.
        model: options that name the model to serve, where the variables name none.
        rule: the rule by which drafted tokens are accepted.

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
    if args.tensor_parallel_size is None:
        args.tensor_parallel_size = _gpus_each(args)
    if args.api_key:
        args.api_key = None
        notes.append("--api-key: no effect; set API_KEY, which guards every route of the server")
    if args.per_request_spec_decode_metrics is None:
        args.per_request_spec_decode_metrics = "summary" if args.speculative_config else "none"
    if speculative_config and args.speculative_config != defaults["speculative_config"]:
        notes.append("VLLM_EXTRA_ARGS or VLLM_CONFIG_FILE replaced the speculative configuration")
    if args.worker_cls != defaults.get("worker_cls"):
        notes.append(
            f"worker class {args.worker_cls}: the worker's corrections of vLLM "
            f"{vllm.__version__} are not applied"
        )
    if args.speculative_config and vllm.__version__ == CORRECTED_VERSION:
        args.scheduler_cls = args.scheduler_cls or observer.SCHEDULER
    rule_config.hand_over(rule, args, WORKER)
    if args.worker_cls != WORKER and _has_mlp_speculator(args):
        raise ConfigurationError(
            [
                "SPECULATIVE_METHOD=mlp_speculator: vLLM has no drafter for it, and the worker's "
                f"own is for vLLM {CORRECTED_VERSION} with the worker class {WORKER}; this is "
                f"vLLM {vllm.__version__} with {args.worker_cls}; allowed: another draft, or that "
                "version and class"
            ]
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

    def __init__(
        self,
        args: Namespace,
        *,
        drops_unsupported: bool = False,
        fallback: str | None = None,
        draft: str | None = None,
        steered: Steering | None = None,
        predicts: bool = True,
    ) -> None:
        """Load the model.

        Args:
            args: the arguments of `vllm serve`.
            drops_unsupported: whether fields that speculation cannot serve are left out of a
                request, in place of refusing it.
            fallback: why speculation that was set is off.
            draft: the draft as the user named it.
            steered: how K is chosen.
            predicts: whether predicted outputs are wanted.

        Raises:
            ConfigurationError: vLLM refuses the configuration.
        """
        self._args = args
        steering.hand_over(possible.steering(steered or Steering(), args), args)
        #: Seconds that the parts of the start took, by name.
        self.started: dict[str, float] = {}
        engine_args = AsyncEngineArgs.from_cli_args(args)
        engine_args.speculative_config = possible.in_vllms_terms(args.speculative_config)
        propagate_flash_late_interaction(args, engine_args)
        try:
            config = engine_args.create_engine_config(UsageContext.OPENAI_API_SERVER)
        except (ValueError, NotImplementedError, OSError) as error:
            raise ConfigurationError([_refusal(error)]) from error
        rule_config.check(config)
        if cost := whole_batch.cost_of_zero(config):
            logger.warning(cost)
        #: Why speculation that was set is off; None where it is on, or was not set.
        self.fallback = None if config.speculative_config else fallback
        self._unsupported = possible.unsupported(config, drops=drops_unsupported)
        method = (args.speculative_config or {}).get("method")
        self._speculation = possible.speculation(config, predicted=predicts, method=method)
        #: What speculation does while the engine runs.
        self.live = Live(observer.setup(config, method, draft, self.fallback))
        self.client = AsyncLLM.from_vllm_config(
            config,
            usage_context=UsageContext.OPENAI_API_SERVER,
            stat_loggers=[observer.stat_logger(self.live)],
            enable_log_requests=args.enable_log_requests,
            aggregate_engine_logging=args.aggregate_engine_logging,
            disable_log_stats=args.disable_log_stats,
        )
        observer.watch_requests(self.client, self.live)
        predictions.watch(self.client)
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
                # In a thread: it imports for a second, in which health checks are answered.
                app = await asyncio.to_thread(
                    build_app, self._args, tasks, self.client.model_config
                )
                self._add_layers(app)
                app.include_router(speculation_routes.router(self.live, self))
                # Where vLLM's handler of a dead engine says that its server should end.
                app.state.server = SimpleNamespace(should_exit=False)
                await init_app_state(self.client, app.state, self._args, tasks)
                await self._closing.enter_async_context(app.router.lifespan_context(app))
                reports = reporting.report(self.live, self.served_name, self.adapting)
                self._closing.callback(asyncio.create_task(reports).cancel)
                self._app = app
        return self._app

    async def set_tokens(self, tokens: int) -> int:
        """Set K, the tokens drafted a step, from the next step on. Returns what it was."""
        return await steering.set_tokens(self.client, tokens)

    async def adapt(self, most: int) -> int:
        """Have K adapt up to `most`, from the next step on. Returns what it was."""
        return await steering.set_tokens(self.client, most, adapts=True)

    async def adapting(self) -> dict[str, Any] | None:
        """What the controller of K knows; None where K does not adapt."""
        return await steering.state(self.client)

    def figures(self, scope: Scope) -> Figures:
        """What a request cost, once vLLM's application has answered it."""
        metadata = scope.get("state", {}).get("request_metadata")
        if metadata is None:
            return Figures()
        name, told = metadata.request_id, metadata.final_usage_info
        named_by_client = b"x-request-id" in dict(scope["headers"])
        usage = told.model_dump() if told else {"completion_tokens": self.live.tokens_of(name)}
        if prediction := scope["state"].get(noted.STATE):
            usage[predicted.DETAILS] = prediction.details()
        return Figures(
            id="" if named_by_client else name,
            usage=usage,
            speculation=self.live.answer(name) or {},
        )

    def _add_layers(self, app: "FastAPI") -> None:
        """Have requests and answers pass the worker's own layers."""
        if self._args.per_request_spec_decode_metrics != "none":
            app.user_middleware.append(Middleware(AnswerFigures, live=self.live))
        # The innermost: what it refuses is still counted, and has vLLM's headers.
        layer = Middleware(
            Noted,
            unsupported=self._unsupported,
            notes=[f"speculation is off: {public(self.fallback)}"] if self.fallback else [],
            speculation=self._speculation,
            tokenize=None if self._speculation.unpredicted else predictions.tokenizer(self.client),
        )
        app.user_middleware.append(layer)
        app.middleware_stack = app.build_middleware_stack()  # vLLM has built it already

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


def _has_mlp_speculator(args: Namespace) -> bool:
    return (args.speculative_config or {}).get("method") == "mlp_speculator"


def _refusal(error: Exception) -> str:
    """vLLM's reason in a line: pydantic's frame and the list of every architecture cut off."""
    text = str(error)
    if line := refusals.translated(text):
        return line
    if "Value error, " in text:
        text = text.split("Value error, ", 1)[1].split(" [type=", 1)[0]
    return f"vLLM refuses the configuration: {' '.join(text.split())[:600]}"
