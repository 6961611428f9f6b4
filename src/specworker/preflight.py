"""What cannot work or will not pay, said before anything is downloaded or loaded. Pure."""

from collections.abc import Iterator, Sequence
from itertools import chain

from specworker import draft_fit, gpu_memory, misspelt
from specworker.drafting import HEAD_A_TOKEN
from specworker.findings import WITHOUT_DRAFT, Finding, Plan

#: Keys of vLLM's config that a draft model reads, and nothing else.
OF_A_DRAFT = (
    "attention_backend",
    "code_revision",
    "disable_padded_drafter_batch",
    "draft_load_config",
    "draft_sample_method",
    "draft_tensor_parallel_size",
    "enforce_eager",
    "kv_cache_dtype",
    "max_model_len",
    "model",
    "moe_backend",
    "parallel_drafting",
    "quantization",
    "revision",
)


def check(plan: Plan) -> list[Finding]:
    """What is found about `plan`, errors first.

    Covers what files and options tell: what vLLM refuses once it builds its config, what
    it finds out when the weights are loaded or a request comes, and what it drops.
    """
    found = chain(
        _keys(plan),
        _method(plan),
        draft_fit.check(plan),
        _tokens(plan),
        _parallel(plan),
        _schedule(plan),
        _budget(plan),
        gpu_memory.check(plan),
    )
    return sorted(found, key=lambda finding: finding.severity != "error")


def _keys(plan: Plan) -> Iterator[Finding]:
    """Keys that vLLM does not know, or that nothing reads."""
    known = plan.engine.keys
    for key in plan.config:
        if known and key.replace("-", "_") not in known:
            hint = misspelt.hint(key, known)
            yield Finding("error", f"{plan.set_by(key)}: vLLM has no such key{hint}", unfit=False)
    if plan.config.get(draft_fit.MAPPING) and plan.method != "draft_model":
        yield Finding(
            "error",
            f"{plan.set_by(draft_fit.MAPPING)}=True: is for draft models, and the method is "
            f"{plan.method}; allowed: false",
            unfit=False,
        )
    if plan.method in WITHOUT_DRAFT and plan.method != "custom_class":
        idle = [key for key in OF_A_DRAFT if key in plan.config]
        if idle:
            named = ", ".join(map(plan.set_by, idle))
            yield Finding("warning", f"{named}: no effect, method {plan.method} has no draft model")
    elif plan.method in HEAD_A_TOKEN and plan.config.get("draft_sample_method") == "probabilistic":
        named = f"{plan.set_by('draft_sample_method')}=probabilistic"
        yield Finding("warning", f"{named}: no effect, method {plan.method} drafts greedily")


def _method(plan: Plan) -> Iterator[Finding]:
    """Methods that this engine, or this target, does not serve."""
    engine, config, target = plan.engine, plan.config, plan.target.name
    named = f"{plan.set_by('method')}={plan.method}"
    if plan.method == "mtp" and engine.mtp_layers == 0:
        whose = plan.draft.name if plan.draft else target
        yield Finding(
            "error",
            f"{named}: vLLM finds no layers of multi-token prediction in {whose}; "
            "allowed: a model that has them, or another method",
        )
    if plan.method == "eagle3" and engine.eagle3 is False:
        yield Finding(
            "error",
            f"{named}: vLLM cannot read the hidden states of {target} that EAGLE-3 needs; "
            "allowed: another method, such as eagle, draft_model or ngram",
        )
    if plan.method == "suffix" and not engine.suffix:
        yield Finding(
            "error",
            f"{named}: needs the package arctic-inference, which is not installed; "
            "allowed: another method, such as ngram",
        )
    if plan.method == "ngram_gpu" and engine.on_cpu:
        yield Finding("error", f"{named}: needs a GPU; allowed: ngram")
    key = "disable_padded_drafter_batch"
    if config.get(key) and (plan.method == "draft_model" or config.get("parallel_drafting")):
        yield Finding(
            "error",
            f"{plan.set_by(key)}=True: draft models and parallel drafting need the padded batch; "
            "allowed: false",
        )


def _tokens(plan: Plan) -> Iterator[Finding]:
    """K against the number of layers that draft."""
    tokens = plan.integer("num_speculative_tokens")
    declared = plan.draft and plan.draft.config and plan.draft.config.get("n_predict")
    layers = plan.engine.mtp_layers if plan.method == "mtp" else declared
    if not tokens or not isinstance(layers, int) or layers < 1:
        return
    if tokens > layers and tokens % layers:
        yield Finding(
            "error",
            f"{plan.set_by('num_speculative_tokens')}={tokens}: the draft has {layers} layers, "
            f"which are run as a whole; allowed: 1 to {layers}, or a multiple of {layers}",
        )


def _parallel(plan: Plan) -> Iterator[Finding]:
    """How many GPUs the draft is spread over."""
    target, given = plan.engine.tensor_parallel_size, plan.integer("draft_tensor_parallel_size")
    if given is None or plan.method in WITHOUT_DRAFT or given == target:
        return
    named = f"{plan.set_by('draft_tensor_parallel_size')}={given}"
    if plan.method == "draft_model":
        yield Finding(
            "error",
            f"{named}: vLLM's draft models are spread as the target is, "
            f"TENSOR_PARALLEL_SIZE={target}; allowed: {target}, or unset",
        )
    elif given != 1:
        allowed = f"1 or {target}" if target > 1 else "1"
        yield Finding("error", f"{named}: TENSOR_PARALLEL_SIZE is {target}; allowed: {allowed}")


def _schedule(plan: Plan) -> Iterator[Finding]:
    """The schedule of K by batch size."""
    key = "num_speculative_tokens_per_batch_size"
    rows, named = plan.config.get(key), plan.set_by(key)
    if rows is None:
        return
    if plan.engine.data_parallel_size > 1:
        yield Finding(
            "warning",
            f"{named}: no effect, vLLM drops it with DATA_PARALLEL_SIZE="
            f"{plan.engine.data_parallel_size}; run more workers in place of replicas",
        )
    parsed = rows_of(rows)
    if parsed is None:
        yield Finding(
            "error",
            f"{named}: is no list of [first batch size, last, K]; allowed: such as "
            "[[1, 8, 3], [9, 64, 0]], which starts at 1 and does not overlap",
            unfit=False,
        )
        return
    highest = plan.integer("num_speculative_tokens")
    asked = max(tokens for *_, tokens in parsed)
    if highest and asked > highest:
        tokens = plan.set_by("num_speculative_tokens")
        yield Finding(
            "warning",
            f"{named}: K={asked} has no effect, {tokens} is {highest}; set that to {asked}",
        )


def _budget(plan: Plan) -> Iterator[Finding]:
    """The tokens of a step in which every request that may run is verified."""
    engine, tokens = plan.engine, plan.integer("num_speculative_tokens") or 0
    rows = rows_of(plan.config.get("num_speculative_tokens_per_batch_size"))
    requests = engine.max_num_seqs
    if rows and engine.data_parallel_size == 1 and not engine.lora:
        ends = [*(first - 1 for first, _, _ in rows[1:]), requests]
        steps = [
            (min(end, requests), min(k, tokens))
            for end, (first, _, k) in zip(ends, rows, strict=True)
            if first <= requests
        ]
        requests, tokens = max(steps, key=lambda step: step[0] * (step[1] + 1))
    needed, limit = requests * (tokens + 1), engine.max_num_batched_tokens
    if needed <= limit:
        return
    what = (
        f"MAX_NUM_BATCHED_TOKENS={limit}: {requests} running requests with K={tokens} need "
        f"{needed} tokens a step"
    )
    if engine.lora:
        yield Finding(
            "error",
            f"{what}, and with LoRA vLLM refuses less; allowed: at least {needed}, or "
            "a lower MAX_NUM_SEQS or NUM_SPECULATIVE_TOKENS",
        )
    elif plan.method not in ("suffix", "prediction"):  # which seldom draft as many as they may
        yield Finding(
            "warning",
            f"{what}; from {limit // (tokens + 1) + 1} on some wait a step; set it to {needed}, or "
            "lower MAX_NUM_SEQS",
        )


def rows_of(given: object) -> list[Sequence[int]] | None:
    """The rows of a schedule as vLLM takes them, by batch size; None where it does not."""
    if not isinstance(given, list) or not given:
        return None
    for row in given:
        whole = isinstance(row, list | tuple) and len(row) == 3
        if not whole or not all(isinstance(value, int) for value in row):
            return None
    rows = sorted(given)
    ends = [0, *(last for _, last, _ in rows)]
    ordered = all(end < first <= last for end, (first, last, _) in zip(ends, rows, strict=False))
    return rows if ordered and rows[0][0] == 1 and min(k for *_, k in rows) >= 0 else None
