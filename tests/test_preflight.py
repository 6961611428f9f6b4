from dataclasses import replace
from typing import Any

import pytest

from specworker import preflight
from specworker.checkpoint import Checkpoint
from specworker.findings import EngineFacts, Finding, Plan, unusable

TARGET = Checkpoint("org/target", {"hidden_size": 64, "vocab_size": 100})
NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
SCHEDULE = "num_speculative_tokens_per_batch_size"


def found(
    method: str = "draft_model",
    *,
    engine: EngineFacts | None = None,
    draft: Checkpoint | None = None,
    source: str = "",
    **config: Any,
) -> list[Finding]:
    given = {"method": method, "num_speculative_tokens": 3} | config
    return preflight.check(Plan(given, TARGET, draft, None, engine or EngineFacts(), source))


def only(severity: str, method: str = "draft_model", *, unfit: bool = True, **given: Any) -> str:
    """The one finding."""
    (finding,) = found(method, **given)
    assert (finding.severity, finding.unfit) == (severity, unfit), finding
    return finding.text


@pytest.mark.parametrize(
    "method", ["draft_model", "ngram", "suffix", "eagle", "eagle3", "medusa", "mtp", "self"]
)
def test_a_plan_that_works_gives_no_finding(method: str) -> None:
    assert found(method) == []


def test_every_finding_is_given_at_once_errors_first() -> None:
    engine = EngineFacts(max_num_seqs=1000, data_parallel_size=2)
    given: dict[str, Any] = {
        SCHEDULE: [[2, 8, 3]],
        "disable_padded_drafter_batch": True,
        "draft_tensor_parallel_size": 2,
    }
    findings = found(engine=engine, **given)
    assert [finding.severity for finding in findings] == ["error"] * 3 + ["warning"] * 2


def test_errors_of_the_draft_can_be_told_from_those_of_the_settings() -> None:
    engine = EngineFacts(keys=frozenset({"method", "num_speculative_tokens"}), max_num_seqs=1000)
    findings = found("mtp", engine=engine, depth=4)
    findings += found("mtp", engine=EngineFacts(mtp_layers=0))
    texts = [finding.text for finding in unusable(findings)]
    assert len(texts) == 1
    assert "no layers of multi-token prediction" in texts[0]


# Keys.

KEYS = EngineFacts(
    keys=frozenset({"method", "num_speculative_tokens", "prompt_lookup_max", "draft_sample_method"})
)


def test_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    findings = found(
        "ngram",
        engine=KEYS,
        source="SPECULATIVE_CONFIG",
        prompt_lookup_maximum=4,
        zzz=1,
    )
    assert [finding.text for finding in findings] == [
        "SPECULATIVE_CONFIG: prompt_lookup_maximum: vLLM has no such key; "
        "did you mean prompt_lookup_max?",
        "SPECULATIVE_CONFIG: zzz: vLLM has no such key",
    ]
    assert unusable(findings) == []


def test_keys_may_be_written_with_hyphens_as_vllm_takes_them() -> None:
    hyphened: dict[str, Any] = {"prompt-lookup-max": 4}
    assert found("ngram", engine=KEYS, **hyphened) == []


def test_keys_of_a_draft_are_named_where_there_is_none() -> None:
    given: dict[str, Any] = {
        "draft_tensor_parallel_size": 2,
        "max_model_len": 64,
        "model": "org/draft",
    }
    for method in ("ngram", "suffix", "ngram_gpu"):
        text = only("warning", method, source="SPECULATIVE_CONFIG", **given)
        assert text == (
            "SPECULATIVE_CONFIG: draft_tensor_parallel_size, SPECULATIVE_CONFIG: max_model_len, "
            f"SPECULATIVE_CONFIG: model: no effect, method {method} has no draft model"
        )
    assert found("custom_class", model="package.Proposer") == []


def test_mapped_vocabularies_are_for_draft_models_only() -> None:
    text = only("error", "ngram", unfit=False, use_heterogeneous_vocab=True)
    assert text == (
        "SPECULATIVE_CONFIG: use_heterogeneous_vocab=True: is for draft models, and the method is "
        "ngram; allowed: false"
    )
    assert found(use_heterogeneous_vocab=True) == []


def test_heads_that_each_draft_a_token_do_not_sample() -> None:
    for method in ("medusa", "mlp_speculator"):
        assert only("warning", method, draft_sample_method="probabilistic") == (
            "SPECULATIVE_DRAFT_SAMPLE_METHOD=probabilistic: no effect, "
            f"method {method} drafts greedily"
        )
    assert found("eagle", draft_sample_method="probabilistic") == []


# Methods.


@pytest.mark.parametrize("method", ["mtp", "deepseek_mtp"])
def test_multi_token_prediction_of_a_target_that_has_none_is_refused(method: str) -> None:
    assert only("error", method, engine=EngineFacts(mtp_layers=0)) == (
        "SPECULATIVE_METHOD=mtp: vLLM finds no layers of multi-token prediction in org/target; "
        "allowed: a model that has them, or another method"
    )
    assert found(method, engine=EngineFacts(mtp_layers=None)) == []
    assert found(method, engine=EngineFacts(mtp_layers=1)) == []


def test_the_checkpoint_that_should_have_them_is_named() -> None:
    head = Checkpoint("org/head", {})
    text = only("error", "mtp", engine=EngineFacts(mtp_layers=0), draft=head, model="org/head")
    assert "in org/head;" in text


def test_eagle_3_beside_a_target_that_does_not_serve_it_is_refused() -> None:
    text = only("error", "eagle3", engine=EngineFacts(eagle3=False))
    assert text.startswith("SPECULATIVE_METHOD=eagle3: vLLM cannot read the hidden states of org/t")
    for known in (True, None):
        assert found("eagle3", engine=EngineFacts(eagle3=known)) == []
    assert found("eagle", engine=EngineFacts(eagle3=False)) == []


def test_suffix_decoding_without_its_package_is_refused() -> None:
    assert "arctic-inference" in only("error", "suffix", engine=EngineFacts(suffix=False))


def test_lookup_on_a_gpu_is_refused_on_a_cpu() -> None:
    assert only("error", "ngram_gpu", engine=EngineFacts(on_cpu=True)) == (
        "SPECULATIVE_METHOD=ngram_gpu: needs a GPU; allowed: ngram"
    )
    assert found("ngram_gpu") == []


def test_a_draft_model_needs_the_padded_batch() -> None:
    given: dict[str, Any] = {"disable_padded_drafter_batch": True}
    assert only("error", source="SPECULATIVE_CONFIG", **given) == (
        "SPECULATIVE_CONFIG: disable_padded_drafter_batch=True: draft models and parallel "
        "drafting need the padded batch; allowed: false"
    )
    assert only("error", "eagle", parallel_drafting=True, **given)
    assert found("eagle", **given) == []
    assert found(disable_padded_drafter_batch=False) == []


# K.


@pytest.mark.parametrize(
    ("tokens", "layers", "refused"),
    [(3, 2, True), (4, 2, False), (1, 2, False), (2, 2, False), (3, 1, False), (3, None, False)],
)
def test_layers_of_multi_token_prediction_are_run_as_a_whole(
    tokens: int, layers: int | None, refused: bool
) -> None:
    engine = EngineFacts(mtp_layers=layers)
    findings = found("mtp", engine=engine, num_speculative_tokens=tokens)
    assert [finding.severity for finding in findings] == ["error"] * refused
    if refused:
        assert findings[0].text == (
            "NUM_SPECULATIVE_TOKENS=3: the draft has 2 layers, which are run as a whole; "
            "allowed: 1 to 2, or a multiple of 2"
        )


def test_a_head_that_declares_how_many_it_predicts_is_held_to_it() -> None:
    head = Checkpoint("org/head", {"n_predict": 2})
    text = only("error", "eagle", draft=head, source="SPECULATIVE_CONFIG")
    assert text.startswith("SPECULATIVE_CONFIG: num_speculative_tokens=3: the draft has 2 layers")


# Parallelism.


@pytest.mark.parametrize("target", [1, 2, 4])
def test_a_draft_model_is_spread_as_its_target_is(target: int) -> None:
    engine = EngineFacts(tensor_parallel_size=target)
    assert found(engine=engine, draft_tensor_parallel_size=target) == []
    other = {1: 2}.get(target, 1)
    assert only("error", engine=engine, draft_tensor_parallel_size=other) == (
        f"SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE={other}: vLLM's draft models are spread as the "
        f"target is, TENSOR_PARALLEL_SIZE={target}; allowed: {target}, or unset"
    )


def test_a_head_is_spread_as_its_target_is_or_not_at_all() -> None:
    engine = EngineFacts(tensor_parallel_size=4)
    for size in (1, 4):
        assert found("eagle", engine=engine, draft_tensor_parallel_size=size) == []
    assert only("error", "eagle", engine=engine, draft_tensor_parallel_size=2) == (
        "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE=2: TENSOR_PARALLEL_SIZE is 4; allowed: 1 or 4"
    )
    assert only("error", "eagle", draft_tensor_parallel_size=2).endswith("is 1; allowed: 1")


def test_a_schedule_beside_replicas_is_without_effect() -> None:
    rows: dict[str, Any] = {SCHEDULE: [[1, 2, 3], [3, 64, 0]]}
    engine = EngineFacts(data_parallel_size=2)
    text = only("warning", "ngram", engine=engine, **rows)
    assert text.startswith(
        "SPECULATIVE_DISABLE_BY_BATCH_SIZE: no effect, vLLM drops it with DATA_PARALLEL_SIZE=2"
    )
    assert found("ngram", engine=engine) == []
    assert found("ngram", **rows) == []


# The schedule.


@pytest.mark.parametrize(
    "rows",
    [
        [],
        "1-8",
        [[1, 8]],
        [[1, 8, 3.5]],
        [8, 3],
        [[2, 8, 3]],
        [[1, 8, 3], [8, 16, 1]],
        [[8, 1, 3]],
        [[1, 8, -1]],
    ],
)
def test_a_schedule_that_vllm_would_refuse_once_it_serves_is_refused_now(rows: Any) -> None:
    given: dict[str, Any] = {SCHEDULE: rows, "source": "SPECULATIVE_CONFIG"}
    text = only("error", "ngram", unfit=False, **given)
    assert text.startswith(f"SPECULATIVE_CONFIG: {SCHEDULE}: is no list of")


def test_more_tokens_in_a_schedule_than_k_are_without_effect() -> None:
    given: dict[str, Any] = {SCHEDULE: [[1, 8, 5], [9, 64, 0]], "source": "SPECULATIVE_CONFIG"}
    assert only("warning", "ngram", **given) == (
        f"SPECULATIVE_CONFIG: {SCHEDULE}: K=5 has no effect, SPECULATIVE_CONFIG: "
        "num_speculative_tokens is 3; set that to 5"
    )


# The budget.


def test_more_tokens_than_a_step_takes_are_a_warning() -> None:
    engine = EngineFacts(max_num_seqs=256, max_num_batched_tokens=1023)
    assert only("warning", "ngram", engine=engine) == (
        "MAX_NUM_BATCHED_TOKENS=1023: 256 running requests with K=3 need 1024 tokens a step; "
        "from 256 on some wait a step; set it to 1024, or lower MAX_NUM_SEQS"
    )
    assert found("ngram", engine=EngineFacts(max_num_seqs=256, max_num_batched_tokens=1024)) == []


def test_suffix_decoding_seldom_drafts_as_many_as_it_may() -> None:
    short = EngineFacts(max_num_seqs=256, max_num_batched_tokens=1023)
    assert found("suffix", engine=short) == []
    assert only("error", "suffix", engine=replace(short, lora=True))


def test_with_adapters_they_are_refused() -> None:
    engine = EngineFacts(max_num_seqs=256, max_num_batched_tokens=1023, lora=True)
    assert "with LoRA vLLM refuses less" in only("error", "ngram", engine=engine)
    # vLLM goes by K, whatever the schedule.
    given: dict[str, Any] = {SCHEDULE: [[1, 8, 3], [9, 256, 0]]}
    assert "need 1024 tokens a step" in only("error", "ngram", engine=engine, **given)


@pytest.mark.parametrize(
    ("rows", "needed"),
    [
        ([[1, 8, 3], [9, 64, 0]], 256),
        ([[1, 128, 3], [129, 256, 0]], 512),
        ([[129, 256, 0], [1, 128, 3]], 512),
        ([[1, 8, 3], [129, 256, 0]], 512),  # vLLM goes on with the row before in a gap
        ([[1, 8, 3]], 1024),  # and after the last
        ([[1, 8, 0], [257, 512, 3]], 256),  # more than may run
        ([[1, 256, 0], [300, 512, 3]], 256),
    ],
)
def test_a_schedule_counts_in_the_budget(rows: Any, needed: int) -> None:
    engine = EngineFacts(max_num_seqs=256, max_num_batched_tokens=10)
    given: dict[str, Any] = {SCHEDULE: rows}
    assert f" need {needed} tokens a step" in only("warning", "ngram", engine=engine, **given)


def test_k_bounds_what_a_schedule_counts() -> None:
    engine = EngineFacts(max_num_seqs=256, max_num_batched_tokens=1023)
    given: dict[str, Any] = {SCHEDULE: [[1, 256, 9]]}
    findings = found("ngram", engine=engine, **given)
    assert [finding.text for finding in findings if " need 1024 tokens a step" in finding.text]


def test_a_schedule_that_vllm_drops_does_not_count() -> None:
    engine = EngineFacts(max_num_seqs=256, max_num_batched_tokens=1023, data_parallel_size=2)
    given: dict[str, Any] = {SCHEDULE: [[1, 8, 3], [9, 256, 0]]}
    assert any(
        "need 1024 tokens" in finding.text for finding in found("ngram", engine=engine, **given)
    )


def test_a_value_of_another_kind_is_left_to_vllm() -> None:
    wrong: dict[str, Any] = {
        "num_speculative_tokens": "3",
        "draft_tensor_parallel_size": "2",
        "max_model_len": "9",
    }
    assert found(**wrong) == []
    assert preflight.check(Plan({"method": 3}, TARGET)) == []
