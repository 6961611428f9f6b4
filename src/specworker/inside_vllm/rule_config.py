"""The acceptance rule on its way into vLLM: handed to its processes, or refused by name."""

from argparse import Namespace
from dataclasses import asdict
from typing import Any, NoReturn

import vllm
from vllm.platforms import current_platform

from specworker.acceptance_rule import AcceptanceRule
from specworker.errors import ConfigurationError
from specworker.inside_vllm.corrections import CORRECTED_VERSION

#: The worker's own key in vLLM's additional_config, which reaches every process of the engine.
KEY = "specworker"


def hand_over(rule: AcceptanceRule, args: Namespace, worker: str) -> None:
    """Put the rule into the arguments of the engine, where it is not vLLM's own default.

    Args:
        rule: the rule.
        args: the arguments of `vllm serve`.
        worker: the worker class that installs rules.

    Raises:
        ConfigurationError: the rule cannot be installed.
    """
    others = args.additional_config or {}
    if not isinstance(others, dict):
        raise ConfigurationError(["ADDITIONAL_CONFIG: is not an object; allowed: a JSON object"])
    if KEY in others:
        raise ConfigurationError(
            [f"ADDITIONAL_CONFIG: {KEY} is a key of the worker's own; allowed: any other key"]
        )
    if not rule.reason:
        return
    if rule.is_typical and vllm.__version__ != CORRECTED_VERSION:
        _refuse(rule, f"is made for vLLM {CORRECTED_VERSION}, and this is vLLM {vllm.__version__}")
    if rule.is_typical and args.worker_cls != worker:
        _refuse(
            rule,
            f"{worker} installs it, and WORKER_CLS={args.worker_cls} takes that one's place",
            "WORKER_CLS unset, or rejection_sampler",
        )
    args.additional_config = {**others, KEY: {"rule": asdict(rule)}}


def handed_over(config: Any) -> AcceptanceRule:
    """The rule in vLLM's config; the default one where there is none."""
    return AcceptanceRule(**config.additional_config.get(KEY, {}).get("rule", {}))


def check(config: Any) -> None:
    """Find out before the weights load whether the engine can verify as it is told to.

    Args:
        config: vLLM's whole config.

    Raises:
        ConfigurationError: it would ignore the rule, or fail at the first request.
    """
    if config.speculative_config is None:
        return
    rule, method = handed_over(config), config.speculative_config.rejection_sample_method
    if rule.is_typical and method != "standard":
        _refuse(rule, f"the speculative config sets rejection_sample_method={method}")
    if method == "block" and not config.use_v2_model_runner:
        why = "only vLLM's V2 model runner verifies by block, and here its V1 runner serves"
        if rule.name == "block":
            _refuse(rule, why)
        _refuse_method(method, why)
    if method == "synthetic" and current_platform.is_cpu():
        _refuse_method(method, "vLLM's CPU backend cannot, and would end at the first request")


def _refuse(rule: AcceptanceRule, why: str, allowed: str = "rejection_sampler") -> NoReturn:
    raise ConfigurationError(
        [f"SPEC_DECODING_ACCEPTANCE_METHOD={rule.name}: {why}; allowed: {allowed}"]
    )


def _refuse_method(method: str, why: str) -> NoReturn:
    raise ConfigurationError(
        [f"SPECULATIVE_CONFIG: rejection_sample_method={method}: {why}; allowed: standard"]
    )
