"""What an engine can do with what it is asked for, by its arguments or vLLM's configuration."""

import logging
from argparse import Namespace
from dataclasses import replace
from typing import Any

from vllm.config import VllmConfig

from specworker.errors import ConfigurationError
from specworker.inside_vllm import predictions
from specworker.inside_vllm.observer import REPLICAS, SCHEDULER
from specworker.inside_vllm.steering import Steering
from specworker.request_speculation import RequestSpeculation
from specworker.unsupported import Unsupported

logger = logging.getLogger(__name__)


def unsupported(config: VllmConfig, *, drops: bool) -> Unsupported | None:
    """What becomes of fields that vLLM refuses while it speculates; None where it does not.

    Where they are dropped, a default of the model's is too.
    """
    if config.speculative_config is None:
        return None
    model = config.model_config
    fields = Unsupported.of(model.get_diff_sampling_param(), drops=drops)
    if fields.note:
        logger.warning("%s", fields.note)
    if drops and fields.default_is_refused:
        model.override_generation_config = {**model.override_generation_config, "min_p": 0.0}
        fields = replace(fields, min_p=0.0)
    return fields


def speculation(
    config: VllmConfig, *, predicted: bool, method: str | None = None
) -> RequestSpeculation:
    """What requests may say about their own speculation; told at the start where it is on.

    Args:
        config: vLLM's whole configuration.
        predicted: whether predictions are wanted.
        method: the method that was asked for, by its own name.

    Raises:
        ConfigurationError: nothing can be predicted, and nothing else drafts.
    """
    if config.speculative_config is None:
        return RequestSpeculation()
    unbounded = None
    if (named := config.scheduler_config.scheduler_cls) != SCHEDULER:
        unbounded = f"only the worker's own scheduler does it, and the engine has {named}"
    unpredicted = predictions.obstacle(config, wanted=predicted)
    if method == "prediction" and unpredicted:
        raise ConfigurationError(
            [f"SPECULATIVE_METHOD=prediction: takes no predictions: {unpredicted}"]
        )
    logger.info("predicted outputs: %s", f"refused, {unpredicted}" if unpredicted else "taken")
    most = config.speculative_config.num_speculative_tokens
    return RequestSpeculation(most, unbounded, unpredicted)


def steering(steered: Steering, args: Namespace) -> Steering:
    """`steered`, without what an engine of these arguments cannot do."""
    if not args.speculative_config:
        return Steering()
    why = None
    if args.data_parallel_size > 1:
        why = REPLICAS
    elif args.scheduler_cls != SCHEDULER:
        why = f"only the worker's own scheduler does it, and the engine has {args.scheduler_cls}"
    if why is None:
        return steered
    given = {
        "SPECULATIVE_ADAPTIVE": steered.adaptive,
        "SPECULATIVE_MAX_PROMPT_LEN": steered.max_prompt_len is not None,
    }
    if named := [name for name, is_set in given.items() if is_set]:
        logger.warning("%s: no effect, %s", ", ".join(named), why)
    return Steering(only_predictions=steered.only_predictions)


def in_vllms_terms(config: dict[str, Any] | None) -> dict[str, Any] | None:
    """A speculative config without the methods that are the worker's own."""
    method = (config or {}).get("method")
    if config and method == "mlp_speculator":
        from specworker.inside_vllm import mlp_speculator

        return mlp_speculator.as_medusa(config)
    return predictions.as_lookup(config) if config and method == "prediction" else config
