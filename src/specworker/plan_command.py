"""What fits which GPU, before one is rented: `python -m specworker plan`.

Target and draft are read, and checked against each other, as a start does it; no weights are
downloaded or loaded.
"""

import json
import sys
from argparse import Namespace
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

from specworker import (
    demo_model,
    draft_fit,
    gpu_memory,
    home,
    logs,
    main,
    misspelt,
    planning,
    weights,
)
from specworker.errors import ConfigurationError
from specworker.findings import GpuFacts, Plan
from specworker.model_size import number
from specworker.planning import GPU_TYPES, Planned
from specworker.settings import Settings
from specworker.values import is_unset
from specworker.weights import Weights


def run(environment: MutableMapping[str, str], *, as_json: bool) -> int:
    """Print the plan of the worker that `environment` describes.

    Returns:
        The exit status: 1 where the draft cannot work with the target, 2 where a variable is
        wrong or the target cannot be read.
    """
    from rich.console import Console

    from specworker import planning_table

    logs.configure(as_json=False)
    home.place(environment)
    if is_unset(environment.get("HF_TOKEN", "")):
        environment.pop("HF_TOKEN", None)
    for name, value in (main.PROCESS_DEFAULTS | main.LOCAL_DEFAULTS).items():
        environment.setdefault(name, value)
    try:
        planned = plan(environment)
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if as_json:
        sys.stdout.write(json.dumps(planned.as_object(), indent=2) + "\n")
    else:
        wide = None if sys.stdout.isatty() else 120
        Console(file=sys.stdout, width=wide, highlight=False).print(planning_table.of(planned))
    for severity, text in planned.findings:
        sys.stderr.write(f"{severity}: {text}\n")
    return 0 if planned.works else 1


def plan(environment: MutableMapping[str, str]) -> Planned:
    """Plan the worker that `environment` describes.

    Raises:
        ConfigurationError: a variable is wrong, or the files do not say enough.
    """
    settings, decided, models = main.configure(environment)
    from specworker import capabilities, engine, engine_flags, inspection, preflight

    named: dict[str, Any] = {}
    if settings.serves_demo:
        named = {"model": str(demo_model.prepare()), "served_model_name": [demo_model.NAME]}
    args, notes = engine.arguments(environment, decided.config, named, decided.rule)
    # Without what this machine decides: how many GPUs it has, or that it has none.
    asked, _ = engine_flags.read(environment, {**named, "tensor_parallel_size": 1})
    args.tensor_parallel_size = asked.tensor_parallel_size
    read = inspection.plan_of(args, settings, decided, models, always_target=True)
    read, reason = draft_fit.mapped(_on_gpus(read, asked))
    reasons = (*decided.reasons, *filter(None, [reason]))
    line = replace(decided, config=dict(read.config) or None, reasons=reasons).line
    findings = [(found.severity, found.text) for found in preflight.check(read) if read.config]
    if decided.fallback:
        findings.insert(0, ("error", decided.fallback))
    said = (*decided.notes, *misspelt.notes(environment), *notes)
    findings += [("warning", note) for note in said]
    _check_shares(read)
    if decided.layers:
        read = replace(read, draft=gpu_memory.of_own_layers(read.target, decided.layers))
    facts = {kind: capabilities.gpu(asked, kind.memory) for kind in GPU_TYPES}
    gpu = next(iter(facts.values()))
    target, draft = _weigh(read, gpu, asked, settings)
    context = read.engine.max_model_len or read.target.context
    unset = replace(
        read.engine,
        max_num_seqs=asked.max_num_seqs or 0,
        max_num_batched_tokens=asked.max_num_batched_tokens or 0,
    )
    of_types = replace(read, engine=unset)
    rows = target and context and planning.rows(of_types, facts, context, target, draft)
    if not target or not context or not rows:
        raise ConfigurationError([_unknown(read, draft, context)])
    drafter, beside = gpu_memory.drafts(read), None
    if drafter and draft:
        beside = planning.model(read, gpu, drafter, draft, of_draft=True)
    return Planned(
        planning.model(read, gpu, read.target, target, of_draft=False),
        beside,
        line,
        context,
        read.engine.tensor_parallel_size * gpu.stages,
        gpu.utilization,
        rows,
        tuple(findings),
    )


def _on_gpus(read: Plan, asked: Namespace) -> Plan:
    """`read` for GPUs, whatever this machine is; vLLM's smallest batches where none is asked."""
    smallest = GPU_TYPES[0]
    facts = replace(
        read.engine,
        on_cpu=False,
        gpu=None,
        hybrid_kv_cache=not asked.disable_hybrid_kv_cache_manager,
        max_num_seqs=asked.max_num_seqs or smallest.max_num_seqs,
        max_num_batched_tokens=asked.max_num_batched_tokens or smallest.max_num_batched_tokens,
    )
    return replace(read, engine=facts)


def _weigh(
    read: Plan, gpu: GpuFacts, asked: Namespace, settings: Settings
) -> tuple[Weights | None, Weights | None]:
    """The weights of target and draft, by the headers of their files where these can be had."""
    tensors = weights.headers(read.target, asked.revision, settings.token)
    target = gpu_memory.weigh(read, gpu, read.target, tensors)
    drafter = gpu_memory.drafts(read)
    if drafter is None:
        return target, None
    if read.draft is None and target and target.drafting:
        return target, Weights(None, target.drafting, source=target.source)
    revision = read.config.get("revision")
    tensors = weights.headers(drafter, revision, settings.token) if drafter.folder else []
    return target, gpu_memory.weigh(read, gpu, drafter, tensors, of_draft=True)


def _check_shares(read: Plan) -> None:
    """Refuse a number of GPUs that the target's heads cannot be divided among.

    Raises:
        ConfigurationError: it is such a number.
    """
    heads = number(read.target.language, "num_attention_heads")
    shares = read.engine.tensor_parallel_size
    if heads % shares:
        raise ConfigurationError(
            [
                f"TENSOR_PARALLEL_SIZE={shares}: {read.target.name} has {heads} attention heads, "
                f"which vLLM divides among the GPUs; allowed: a divisor of {heads}"
            ]
        )


def _unknown(read: Plan, draft: Weights | None, context: int | None) -> str:
    """What keeps a plan from being made, in a line."""
    drafter = gpu_memory.drafts(read)
    if read.target.config is None:
        what = f"MODEL_NAME={read.target.name}: its config.json cannot be read"
    elif not context:
        return (
            f"MODEL_NAME={read.target.name}: its config.json does not say how long a sequence is; "
            "allowed: such a model with MAX_MODEL_LEN set"
        )
    elif drafter and (draft is None or drafter.config is None):
        what = f"SPECULATIVE_MODEL={drafter.name}: its files do not say how large it is"
    else:
        what = f"MODEL_NAME={read.target.name}: its files do not say how large it is"
    return f"{what}; allowed: a folder with its config.json, or a hub id while the hub is in reach"
