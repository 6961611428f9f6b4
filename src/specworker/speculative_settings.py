"""The variables of speculation, each declared once."""

from typing import Annotated, Literal

from pydantic_settings import BaseSettings

from specworker.variables import CASELESS, Boolean, Integer, JsonObject, speculative

Method = Literal[
    "ngram",
    "draft_model",
    "suffix",
    "eagle",
    "eagle3",
    "medusa",
    "mlp_speculator",
    "mtp",
    "self",
    "prediction",
]
AcceptanceMethod = Literal["rejection_sampler", "typical_acceptance_sampler", "block"]


class SpeculativeSettings(BaseSettings):
    """What a user sets about speculation."""

    speculative_config: JsonObject | None = speculative(
        None,
        "vLLM's whole speculative_config as a JSON object; wins over the other variables.",
        label="vLLM's config",
    )
    speculative_method: Annotated[Method, CASELESS] | None = speculative(
        None,
        "How tokens are drafted; inferred from the draft when unset.",
        place="first",
        label="method",
    )
    speculative_model: str | None = speculative(
        None,
        "The draft: a hub id or folder, or [ngram] for prompt lookup.",
        place="first",
        label="draft",
    )
    num_speculative_tokens: Integer | None = speculative(
        None,
        "K, the tokens drafted per step; what the draft declares, or 3 (suffix 24, prediction 32, "
        "self 1), when unset.",
        place="first",
        label="tokens drafted per step (K)",
        ge=1,
        le=128,
    )
    speculative_self_layers: str | None = speculative(
        None,
        "Method self: how many of the target's layers draft, or which: 0-9,25-29; 4 of 5, without "
        "a block in the middle, when unset.",
    )
    speculative_draft_sample_method: (
        Annotated[Literal["greedy", "probabilistic"], CASELESS] | None
    ) = speculative(None, "How the draft picks its tokens; greedy when unset.")
    ngram_prompt_lookup_min: Integer | None = speculative(
        None,
        "Shortest n-gram to look up in the prompt and output; 2 when unset.",
        place="first",
        label="shortest n-gram",
        ge=1,
    )
    ngram_prompt_lookup_max: Integer | None = speculative(
        None,
        "Longest n-gram to look up in the prompt and output; 4 when unset. Either bound alone "
        "switches prompt lookup on.",
        place="first",
        label="longest n-gram",
        ge=1,
    )
    speculative_disable_by_batch_size: Integer | None = speculative(
        None,
        "Draft for up to this many running requests, and not above.",
        place="first",
        label="largest batch that drafts",
        ge=1,
        le=1_000_000,
    )
    speculative_max_prompt_len: Integer | None = speculative(
        None,
        "Longest prompt, in tokens, that is drafted for; any when unset.",
        label="longest prompt that drafts",
        ge=1,
    )
    speculative_adaptive: Boolean = speculative(
        False,
        "Choose K, up to NUM_SPECULATIVE_TOKENS, by the goodput that is measured.",
        label="adaptive K",
    )
    speculative_prediction: Boolean = speculative(
        True,
        "Take predicted outputs, the field prediction of chat completions, where these can be.",
        label="predicted outputs",
    )
    speculative_draft_tensor_parallel_size: Integer | None = speculative(
        None, "Tensor parallelism of the draft: 1 or the target's.", ge=1
    )
    speculative_max_model_len: Integer | None = speculative(
        None,
        "Longest sequence, in tokens, that the draft model drafts for.",
        label="longest sequence that drafts",
        ge=1,
    )
    speculative_model_revision: str | None = speculative(
        None, "Branch, tag or commit of the draft."
    )
    speculative_quantization: str | None = speculative(
        None, "Quantization method of the draft's weights."
    )
    speculative_enforce_eager: Boolean | None = speculative(
        None, "Run the draft without CUDA graphs."
    )
    spec_decoding_acceptance_method: Annotated[AcceptanceMethod, CASELESS] = speculative(
        "rejection_sampler",
        "The rule by which drafted tokens are accepted; typical_acceptance_sampler is lossy.",
        label="acceptance rule",
    )
    typical_acceptance_sampler_posterior_threshold: float | None = speculative(
        None,
        "Typical acceptance: the bound on the target's probability; 0.09 when unset.",
        label="typical acceptance, threshold",
        gt=0,
        le=1,
    )
    typical_acceptance_sampler_posterior_alpha: float | None = speculative(
        None,
        "Typical acceptance: factor of the bound by entropy; 0.3 when unset.",
        label="typical acceptance, alpha",
        gt=0,
        le=1,
    )
    typical_acceptance_recovery: Annotated[Literal["argmax", "sample"], CASELESS] | None = (
        speculative(
            None,
            "Typical acceptance: the token after a rejection; argmax when unset.",
            label="typical acceptance, recovery",
        )
    )
    preflight: Annotated[Literal["error", "warn"], CASELESS] = speculative(
        "error",
        "What a draft that cannot work does to the start: stop it, or a warning.",
        label="a draft that cannot work",
    )
    speculative_fallback: Annotated[Literal["off", "on"], CASELESS] = speculative(
        "off",
        "Decode without speculation where it cannot be set up, in place of stopping.",
        label="plain decoding in place of a failed start",
    )
    speculative_unsupported: Annotated[Literal["reject", "drop"], CASELESS] = speculative(
        "reject",
        "Fields of a request that speculation cannot serve: refuse it, or drop them.",
        label="requests with min_p or logit_bias",
    )
    disable_logprobs_during_spec_decoding: Boolean | None = speculative(
        None, "Has no effect: logprobs are right under speculation.", place="absent"
    )
    num_lookahead_slots: Integer | None = speculative(
        None, "Has no effect: vLLM sizes its look-ahead itself.", place="absent", ge=1
    )
