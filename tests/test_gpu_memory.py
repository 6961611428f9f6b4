from dataclasses import replace
from typing import Any

import pytest

from specworker import gpu_memory, preflight
from specworker.checkpoint import Checkpoint
from specworker.findings import EngineFacts, GpuFacts, Plan
from specworker.gpu_memory import GIB, Load, Needs
from specworker.kv_cache import Cache
from specworker.weights import Weights
from tests.published import CONFIGS

LLAMA = Checkpoint("org/llama", CONFIGS["llama-3.1-8b"])
QWEN = Checkpoint("org/qwen", CONFIGS["qwen2.5-72b"])
DEEPSEEK = Checkpoint("org/deepseek", CONFIGS["deepseek-v3"])
H200 = GpuFacts(140 * GIB)


def plan(
    target: Checkpoint, draft: Checkpoint | None = None, method: str = "ngram", **engine: Any
) -> Plan:
    facts = EngineFacts(**{"hybrid_kv_cache": True, **engine})
    return Plan({"method": method, "num_speculative_tokens": 3}, target, draft, engine=facts)


def needs(*given: Any, gpu: GpuFacts = H200, **engine: Any) -> Needs:
    found = gpu_memory.needs(plan(*given, **engine), gpu)
    assert found is not None
    return found


def test_sequences_fill_what_weights_and_room_leave() -> None:
    found = Needs(Load(100, Cache(2)), Load(10, Cache(1)), room=50)
    assert found.left(1000) == 840
    assert found.sequences(1000, 16) == 840 // (3 * 16)
    assert found.sequences(1000, 16, drafts=False) == 850 // (2 * 16)
    assert found.sequences(100, 16) == 0


def test_a_draft_model_is_spread_as_its_target_is() -> None:
    one, four = (needs(QWEN, LLAMA, "draft_model", tensor_parallel_size=n) for n in (1, 4))
    assert one.draft
    assert four.draft
    assert four.target.weights == pytest.approx(one.target.weights / 4, abs=4)
    assert four.draft.weights == pytest.approx(one.draft.weights / 4, abs=4)
    assert four.draft.cache.per_token == one.draft.cache.per_token / 4


def test_a_head_is_spread_as_it_is_told() -> None:
    head = Checkpoint("org/head", {**CONFIGS["llama-3.1-8b"], "num_hidden_layers": 1})
    spread = plan(LLAMA, head, "eagle", tensor_parallel_size=4)
    whole = replace(spread, config={**spread.config, "draft_tensor_parallel_size": 1})
    found, alone = (gpu_memory.needs(given, H200) for given in (spread, whole))
    assert found
    assert found.draft
    assert alone
    assert alone.draft
    assert alone.draft.weights == pytest.approx(found.draft.weights * 4, abs=4)


def test_heads_that_each_draft_a_token_keep_nothing_of_a_sequence() -> None:
    head = Checkpoint("org/head", {"num_hidden_layers": 1}, weight_bytes=GIB)
    found = needs(LLAMA, head, "medusa")
    assert found.draft == Load(GIB, Cache())


def test_lookups_take_no_memory() -> None:
    assert needs(LLAMA).draft is None


def test_layers_of_multi_token_prediction_keep_what_one_layer_does() -> None:
    found = needs(DEEPSEEK, None, "mtp")
    assert found.draft
    assert found.draft.cache.per_token == 576 * 2
    # 14B with embedding and head, as published, in 8 bits but for these.
    assert found.draft.weights == pytest.approx(11.5e9 + 2 * 1.85e9, rel=0.05)
    given = gpu_memory.needs(plan(DEEPSEEK, None, "mtp"), H200, draft=Weights(None, 123))
    assert given
    assert given.draft
    assert given.draft.weights == 123


def test_a_draft_of_the_targets_own_layers_is_as_large_as_they_are() -> None:
    own = gpu_memory.of_own_layers(LLAMA, (0, 1, 2, 3))
    found = needs(LLAMA, own, "draft_model")
    assert found.draft
    assert found.draft.cache.per_token == found.target.cache.per_token / 8


def test_the_room_grows_with_the_batch_and_without_graphs_it_shrinks() -> None:
    small, large = (
        gpu_memory.room(plan(LLAMA, max_num_batched_tokens=n), H200) for n in (8192, 16384)
    )
    assert small < large
    many = gpu_memory.room(plan(LLAMA, max_num_seqs=2048), H200)
    assert many > gpu_memory.room(plan(LLAMA, max_num_seqs=256), H200)
    eager = gpu_memory.room(plan(LLAMA), replace(H200, eager=True))
    assert gpu_memory.room(plan(LLAMA), H200) - eager == gpu_memory.GRAPHS


def test_a_cache_in_8_bits_is_half_as_large() -> None:
    half = needs(QWEN, LLAMA, "draft_model", gpu=replace(H200, kv_cache_dtype="fp8"))
    full = needs(QWEN, LLAMA, "draft_model")
    assert half.draft
    assert full.draft
    assert half.target.cache.per_token == full.target.cache.per_token / 2
    assert half.draft.cache.per_token == full.draft.cache.per_token / 2


# What a start says.


def found(*given: Any, **engine: Any) -> list[str]:
    """What is found of memory, among all that is found."""
    findings = preflight.check(plan(*given, **{"max_model_len": 8192, **engine}))
    memory = [finding for finding in findings if "GPU_MEMORY_UTILIZATION" in finding.text]
    assert [finding.severity for finding in memory] == ["warning"] * len(memory)
    return [finding.text for finding in memory]


def test_a_draft_for_which_there_is_no_memory_is_a_warning() -> None:
    (text,) = found(QWEN, LLAMA, "draft_model", gpu=GpuFacts(160 * GIB))
    assert text.startswith("GPU_MEMORY_UTILIZATION=0.92: is 147.2 GiB of a GPU; about 135.4 GiB")
    assert "15.0 of the draft's" in text
    assert "without the draft it would fit" in text
    assert "to compute in are more than that; " in text
    (text,) = found(QWEN, LLAMA, "draft_model", gpu=GpuFacts(167 * GIB))
    assert " for the KV cache, less than a sequence of 8192 tokens; " in text
    (text,) = found(QWEN, LLAMA, "draft_model", gpu=GpuFacts(80 * GIB))
    assert "nor does the target alone fit" in text


def test_nothing_is_said_where_both_fit_or_nothing_is_known() -> None:
    fits = {"gpu": GpuFacts(180 * GIB)}
    small = {"gpu": GpuFacts(80 * GIB)}
    assert found(QWEN, LLAMA, "draft_model", **fits) == []
    assert found(QWEN, LLAMA, "draft_model", gpu=None) == []
    assert found(QWEN, **small) == []  # vLLM says it of a target alone
    assert found(Checkpoint("org/x"), LLAMA, "draft_model", **small) == []
    assert found(QWEN, Checkpoint("org/x"), "draft_model", **small) == []
    assert found(QWEN, LLAMA, "draft_model", tensor_parallel_size=4, **small) == []
