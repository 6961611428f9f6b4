"""Configurations under which vLLM drafts for the whole batch or for none of it.

Drafts for some requests alone, and a draft model that rests, need a host that knows each
step's tokens before the next step is made, and a batch whose rows can be taken apart.
"""

from vllm.config import VllmConfig

#: Methods whose draft runs a forward pass in every step, at K = 0 too.
ALWAYS_RUN = ("eagle", "eagle3", "mtp", "dflash")


def reason(config: VllmConfig) -> str | None:
    """What keeps drafting from being decided for each request; None where nothing does."""
    parallel = config.parallel_config
    speculative = config.speculative_config
    reasons = {
        "vLLM's V2 model runner": config.use_v2_model_runner,
        "asynchronous scheduling": config.scheduler_config.async_scheduling,
        "data parallelism": parallel.data_parallel_size > 1,
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "context parallelism": parallel.decode_context_parallel_size > 1,
        "a multimodal model": config.model_config.supports_multimodal_inputs,
        "prompts given as embeddings": config.model_config.enable_prompt_embeds,
        "M-RoPE positions": config.model_config.uses_mrope,
        "a KV transfer": config.kv_transfer_config is not None,
        "parallel drafting": speculative is not None and speculative.parallel_drafting,
        "an unpadded drafter batch": speculative is not None
        and speculative.disable_padded_drafter_batch,
    }
    return next((name for name, holds in reasons.items() if holds), None)


def at_zero(config: VllmConfig) -> str | None:
    """What a step at K = 0 still does for the draft, where that is not nothing."""
    speculative = config.speculative_config
    if speculative is None:
        return None
    if speculative.method in ALWAYS_RUN:
        return f"{speculative.method} still runs its layer once a step: it cannot catch up later"
    if speculative.method == "draft_model" and (why := reason(config)):
        return (
            f"the draft model still runs once a step, since it cannot rest under {why}; with "
            "VLLM_USE_V2_MODEL_RUNNER=0 and ASYNC_SCHEDULING=false it can"
        )
    return None


def cost_of_zero(config: VllmConfig) -> str | None:
    """What a schedule that ends in K = 0 does not spare; None where it spares all."""
    speculative = config.speculative_config
    if speculative is None or not speculative.uses_dynamic_speculative_decoding():
        return None
    cost = at_zero(config)
    return cost and f"above the batch size at which drafting stops, {cost}"
