from types import SimpleNamespace
from typing import Any

import pytest

from specworker.inside_vllm import whole_batch


def config(method: str | None = "draft_model", *, schedule: bool = True, **changed: Any) -> Any:
    """A configuration under which drafting is decided request by request, but for `changed`."""
    speculative = SimpleNamespace(
        method=method,
        parallel_drafting=False,
        disable_padded_drafter_batch=False,
        uses_dynamic_speculative_decoding=lambda: schedule,
    )
    parts = {
        "": SimpleNamespace(
            use_v2_model_runner=False,
            kv_transfer_config=None,
            speculative_config=speculative if method else None,
        ),
        "scheduler_config": SimpleNamespace(async_scheduling=False),
        "parallel_config": SimpleNamespace(
            data_parallel_size=1, pipeline_parallel_size=1, decode_context_parallel_size=1
        ),
        "model_config": SimpleNamespace(
            supports_multimodal_inputs=False, enable_prompt_embeds=False, uses_mrope=False
        ),
    }
    owners = [*parts.values(), speculative]
    for name, value in changed.items():
        (owner,) = (owner for owner in owners if hasattr(owner, name))
        setattr(owner, name, value)
    whole = parts.pop("")
    vars(whole).update(parts)
    return whole


def test_nothing_keeps_a_plain_configuration_from_drafting_row_by_row() -> None:
    assert whole_batch.reason(config()) is None
    assert whole_batch.reason(config(None)) is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("use_v2_model_runner", True, "vLLM's V2 model runner"),
        ("async_scheduling", True, "asynchronous scheduling"),
        ("data_parallel_size", 2, "data parallelism"),
        ("pipeline_parallel_size", 2, "pipeline parallelism"),
        ("decode_context_parallel_size", 2, "context parallelism"),
        ("supports_multimodal_inputs", True, "a multimodal model"),
        ("enable_prompt_embeds", True, "prompts given as embeddings"),
        ("uses_mrope", True, "M-RoPE positions"),
        ("kv_transfer_config", object(), "a KV transfer"),
        ("parallel_drafting", True, "parallel drafting"),
        ("disable_padded_drafter_batch", True, "an unpadded drafter batch"),
    ],
)
def test_what_does_is_named(name: str, value: Any, said: str) -> None:
    changed = config(**{name: value})
    assert whole_batch.reason(changed) == said
    cost = whole_batch.cost_of_zero(changed)
    assert cost is not None
    assert f"under {said};" in cost


@pytest.mark.parametrize("method", ["draft_model", "ngram", "suffix", "medusa", None])
def test_zero_tokens_cost_nothing_where_the_draft_can_rest(method: str | None) -> None:
    assert whole_batch.cost_of_zero(config(method)) is None


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp"])
def test_a_head_costs_its_layer(method: str) -> None:
    cost = whole_batch.cost_of_zero(config(method))
    assert cost is not None
    assert f"{method} still runs its layer once a step" in cost


@pytest.mark.parametrize("method", ["eagle", "draft_model"])
def test_without_a_schedule_there_is_nothing_to_say(method: str) -> None:
    assert whole_batch.cost_of_zero(config(method, schedule=False, async_scheduling=True)) is None
