"""Predicted outputs in an engine: whether it can take them, and what vLLM has to do with them."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.config import VllmConfig
from vllm.renderers.params import TokenizeParams
from vllm.v1.engine.async_llm import AsyncLLM

from specworker import predicted
from specworker.inside_vllm.observer import SCHEDULER
from specworker.noted import Tokenize

#: Bounds of a lookup that never finds anything: no text is so long.
NEVER = 2**31 - 1


def obstacle(config: VllmConfig, *, wanted: bool = True) -> str | None:
    """Why an engine of this configuration takes no predictions; None where it does.

    A prediction takes the place of a request's drafts after they are made and before they are
    verified. The scheduler must hold them then, as token ids; and they must be verified as
    what they are, tokens that nothing was sampled for.
    """
    speculative = config.speculative_config
    if speculative is None:
        return "speculation is off"
    reasons = {
        "SPECULATIVE_PREDICTION is false": not wanted,
        "there is no tokenizer (SKIP_TOKENIZER_INIT)": config.model_config.skip_tokenizer_init,
        f"the scheduler is {config.scheduler_config.scheduler_cls}, not the worker's own": (
            config.scheduler_config.scheduler_cls != SCHEDULER
        ),
        "vLLM's V2 model runner keeps drafts on the GPU; with VLLM_USE_V2_MODEL_RUNNER=0 and "
        "ASYNC_SCHEDULING=false they can be replaced": config.use_v2_model_runner,
        "asynchronous scheduling keeps drafts on the GPU; with ASYNC_SCHEDULING=false they can be "
        "replaced": config.scheduler_config.async_scheduling,
        "drafts are probabilistic; with SPECULATIVE_DRAFT_SAMPLE_METHOD=greedy they can be "
        "replaced": speculative.draft_sample_method == "probabilistic",
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def prefers_v1(args: Namespace) -> bool:
    """Whether vLLM's V1 model runner should serve these arguments, where it is not said.

    For lookups its V2 runner takes no predictions, lets no request have drafts of its own number,
    and verifies K tokens in every step, of nothing where nothing was found. A few other options
    of vLLM need V2.
    """
    config = args.speculative_config or {}
    if config.get("method") != "ngram":
        return config.get("method") == "prediction"
    return not (
        config.get("rejection_sample_method") == "block"
        or args.prefill_context_parallel_size > 1
        or args.enable_batch_sharded_sampling
        or args.watermark_config
    )


def as_lookup(config: Mapping[str, Any]) -> dict[str, Any]:
    """A speculative config of method `prediction`, of which vLLM knows nothing, in its terms."""
    bounds = {"prompt_lookup_min": NEVER, "prompt_lookup_max": NEVER}
    return {**config, "method": "ngram", **bounds}


def tokenizer(client: AsyncLLM) -> Tokenize:
    """Gives the token ids of a text as the engine's model would write it, in vLLM's own threads.

    Of a longer text than the model can write, those of its beginning.
    """
    longest = client.model_config.max_model_len
    params = TokenizeParams(
        max_total_tokens=longest,
        truncate_prompt_tokens=longest,
        truncation_side="right",
        add_special_tokens=False,
    )

    async def ids(text: str) -> Sequence[int]:
        text = text.encode(errors="replace").decode()  # JSON can name halves of characters
        prompt = await client.renderer.tokenize_prompt_async({"prompt": text}, params)
        found: Sequence[int] = prompt["prompt_token_ids"]
        return found

    return ids


def watch(client: AsyncLLM) -> None:
    """Have every prediction know what is written for its request, choice by choice."""
    processor = client.output_processor
    add = processor.add_request

    def added(request: Any, *args: Any, **kwargs: Any) -> None:
        add(request, *args, **kwargs)
        if (prediction := predicted.current.get()) is not None:
            state = processor.request_states[request.request_id]
            detokenizer = state.detokenizer
            prediction.watch(state.request_index, lambda: detokenizer.output_token_ids)

    processor.add_request = added
