from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specworker import draft_fit
from specworker.checkpoint import Checkpoint
from specworker.findings import EngineFacts, Finding, Plan
from specworker.vocabulary import Comparison

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
}
SMALL = LLAMA | {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 1376}
SAME, DIFFERING = Comparison(900, 900), Comparison(900, 0, (0, "t0", "u0"))
FEW = Comparison(900, 898, (7, "t7", "<tool>"))
#: A draft model as variables name it.
DRAFTING = {"method": "draft_model", "model": "org/draft", "num_speculative_tokens": 3}


def plan(
    draft: Mapping[str, Any],
    target: Mapping[str, Any] | None = None,
    *,
    tokens: Comparison | None = None,
    tokenizer: bool = True,
    tensors: Mapping[str, tuple[int, ...]] | None = None,
    engine: EngineFacts | None = None,
    source: str = "",
    **config: Any,
) -> Plan:
    """A plan with a draft whose config is `draft`, and whose tokens are the target's so far."""
    folder = Path("/draft")
    return Plan(
        DRAFTING | config,
        Checkpoint("org/target", {**LLAMA, **(target or {})}),
        Checkpoint(
            "org/draft", draft, tensors or {}, folder, tokenizer=folder if tokenizer else None
        ),
        tokens,
        engine or EngineFacts(),
        source,
    )


def found(planned: Plan) -> list[Finding]:
    return list(draft_fit.check(planned))


def only(planned: Plan, severity: str) -> str:
    """The one finding."""
    (finding,) = found(planned)
    assert finding.severity == severity
    assert finding.unfit
    return finding.text


PROBABILISTIC: dict[str, Any] = {"draft_sample_method": "probabilistic"}


def test_a_small_draft_of_the_targets_family_gives_no_finding() -> None:
    planned = plan(SMALL, tokens=SAME)
    assert found(planned) == []
    assert draft_fit.mapped(planned) == (planned, None)


def test_without_a_draft_nothing_is_compared() -> None:
    planned = Plan({"method": "ngram"}, Checkpoint("org/target", LLAMA))
    assert found(planned) == []
    assert draft_fit.mapped(planned) == (planned, None)


def test_of_models_that_could_not_be_read_nothing_is_said() -> None:
    for method in ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "mtp"):
        config = DRAFTING | {"method": method}
        assert found(Plan(config, Checkpoint("org/target"), Checkpoint("org/draft", SMALL))) == []
        unread = Plan(config, Checkpoint("org/target", LLAMA), Checkpoint("org/draft"))
        assert found(unread) == []
        assert draft_fit.mapped(unread) == (unread, None)


# Vocabulary.


def test_padded_embeddings_of_one_tokenizer_are_mapped_and_the_reason_said() -> None:
    padded, reason = draft_fit.mapped(plan(SMALL | {"vocab_size": 1064}, tokens=SAME))
    assert padded.config == DRAFTING | {"use_heterogeneous_vocab": True}
    assert reason == "the draft has the target's tokenizer, and 1064 embeddings for 1000"
    assert found(padded) == []


def test_a_few_special_tokens_do_not_keep_padded_embeddings_from_being_mapped() -> None:
    padded, reason = draft_fit.mapped(plan(SMALL | {"vocab_size": 1064}, tokens=FEW))
    assert reason
    assert found(padded) == []


@pytest.mark.parametrize("size", [1000, 1064])
def test_probabilistic_drafts_are_not_mapped(size: int) -> None:
    planned = plan(SMALL | {"vocab_size": size}, tokens=SAME, **PROBABILISTIC)
    assert draft_fit.mapped(planned) == (planned, None)


def test_probabilistic_drafts_with_padded_embeddings_are_refused() -> None:
    planned = plan(SMALL | {"vocab_size": 1064}, tokens=SAME, **PROBABILISTIC)
    assert only(planned, "error") == (
        "SPECULATIVE_DRAFT_SAMPLE_METHOD=probabilistic: its vocabulary has 1064 entries, the "
        "target's 1000 for the same tokenizer, which vLLM can only bridge for greedy drafts; "
        "allowed: greedy, or a draft whose embedding has the target's size"
    )


@pytest.mark.parametrize("size", [1000, 1064])
def test_a_draft_with_another_tokenizer_is_refused_with_the_ways_out(size: int) -> None:
    planned = plan(SMALL | {"vocab_size": size}, tokens=DIFFERING)
    assert draft_fit.mapped(planned) == (planned, None)
    assert only(planned, "error") == (
        "SPECULATIVE_MODEL=org/draft: 900 of 900 token ids mean another token than the "
        "target's, such as 0: 'u0' for 't0'; allowed: a draft of the target's family, or "
        'SPECULATIVE_CONFIG with "use_heterogeneous_vocab": true (greedy drafts)'
    )


def test_a_few_special_tokens_that_differ_are_a_warning() -> None:
    assert only(plan(SMALL, tokens=FEW), "warning") == (
        "SPECULATIVE_MODEL=org/draft: 2 of 900 token ids mean another token than the target's, "
        "such as 7: '<tool>' for 't7'; drafts of these are rejected"
    )


def test_another_size_alone_is_refused_for_a_draft_model() -> None:
    planned = plan(SMALL | {"vocab_size": 1064})
    assert draft_fit.mapped(planned) == (planned, None)
    text = only(planned, "error")
    assert text.startswith("SPECULATIVE_MODEL=org/draft: its vocabulary has 1064 entries, the ")
    assert "use_heterogeneous_vocab" in text


def test_a_user_who_asks_for_no_mapping_gets_none() -> None:
    refused = plan(SMALL | {"vocab_size": 1064}, tokens=SAME, use_heterogeneous_vocab=False)
    assert draft_fit.mapped(refused) == (refused, None)
    assert "use_heterogeneous_vocab" in only(refused, "error")


@pytest.mark.parametrize("tokens", [SAME, DIFFERING])
def test_with_mapping_vocabularies_may_differ(tokens: Any) -> None:
    planned = plan(SMALL | {"vocab_size": 1064}, tokens=tokens, use_heterogeneous_vocab=True)
    assert found(planned) == []


def test_mapping_probabilistic_drafts_is_refused() -> None:
    given = PROBABILISTIC | {"use_heterogeneous_vocab": True}
    text = only(plan(SMALL, tokens=SAME, source="SPECULATIVE_CONFIG", **given), "error")
    assert text.startswith("SPECULATIVE_CONFIG: draft_sample_method=probabilistic: use_hetero")


def test_mapping_to_a_draft_without_a_tokenizer_is_refused() -> None:
    text = only(plan(SMALL, tokenizer=False, use_heterogeneous_vocab=True), "error")
    assert text.startswith("SPECULATIVE_MODEL=org/draft: has no tokenizer, which")


def test_heads_for_another_vocabulary() -> None:
    """vLLM loads the output layers of some as large as the target's; EAGLE shares the target's."""
    other = LLAMA | {"vocab_size": 1064}
    for method in ("medusa", "mlp_speculator"):
        heads = plan(other | {"emb_dim": other["hidden_size"]}, method=method)
        assert "loads heads of the target's size" in only(heads, "error")
    for method in ("eagle", "eagle3"):
        assert "was it made for this target?" in only(plan(other, method=method), "warning")


def test_a_tokenizer_beside_a_head_is_only_a_sign() -> None:
    assert "mean another token" in only(plan(LLAMA, tokens=DIFFERING, method="eagle"), "warning")


# Hidden size.

FC, FC3 = (
    {"fc.weight": (4096, 2 * 4096)},
    {"model.fc.weight": (512, 3 * 4096)},
)


@pytest.mark.parametrize(
    ("method", "head", "tensors"),
    [
        ("eagle", LLAMA, {}),
        ("eagle", LLAMA, FC),
        ("eagle3", LLAMA, {}),
        ("eagle3", LLAMA, {"fc.weight": (4096, 3 * 4096)}),
        ("eagle3", SMALL | {"target_hidden_size": 4096}, FC3),
        ("eagle3", {"transformer_layer_config": LLAMA, "draft_vocab_size": 10}, {}),
        ("eagle3", LLAMA | {"num_aux_hidden_states": 2}, {"fc.weight": (4096, 2 * 4096)}),
        (
            "eagle3",
            LLAMA | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}},
            {"fc.weight": (4096, 4 * 4096)},
        ),
        ("medusa", {"hidden_size": 4096}, {}),
        ("medusa", {"medusa_num_heads": 5}, {}),
        ("mlp_speculator", {"emb_dim": 4096, "inner_dim": 3072}, {}),
        ("mlp_speculator", {"inner_dim": 3072}, {}),
        ("mtp", SMALL, {}),
    ],
)
def test_a_head_for_the_targets_hidden_size_gives_no_finding(
    method: str, head: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]
) -> None:
    assert found(plan(head, method=method, tensors=tensors)) == []


@pytest.mark.parametrize(
    ("method", "head", "tensors", "made_for"),
    [
        ("eagle", SMALL, {}, 512),
        ("eagle", LLAMA, {"fc.weight": (4096, 2 * 5120)}, 5120),
        ("eagle3", SMALL, {}, 512),
        ("eagle3", LLAMA | {"target_hidden_size": 8192}, {}, 8192),
        ("eagle3", LLAMA, {"fc.weight": (4096, 3 * 2048)}, 2048),
        ("eagle3", {"transformer_layer_config": SMALL}, {}, 512),
        ("medusa", {"hidden_size": 5120}, {}, 5120),
        ("mlp_speculator", {"emb_dim": 8192}, {}, 8192),
    ],
)
def test_a_head_for_another_hidden_size_is_refused(
    method: str, head: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], made_for: int
) -> None:
    assert only(plan(head, method=method, tensors=tensors), "error") == (
        "SPECULATIVE_MODEL=org/draft: is made for a target of hidden size "
        f"{made_for}, and org/target has 4096; allowed: a draft made for it"
    )


def test_a_medusa_head_that_names_no_hidden_size_is_loaded_as_one_for_4096() -> None:
    text = only(plan({"medusa_num_heads": 5}, {"hidden_size": 5120}, method="medusa"), "error")
    assert "of hidden size 4096, and org/target has 5120" in text


# Context.


def test_sequences_beyond_the_drafts_context_are_a_warning() -> None:
    assert only(plan(SMALL | {"max_position_embeddings": 2048}), "warning") == (
        "SPECULATIVE_MODEL=org/draft: drafts for sequences of up to 2048 tokens, and the target "
        "takes 8192; longer ones are served without drafts; set MAX_MODEL_LEN=2048 where that "
        "is enough, or take a draft for longer ones"
    )


@pytest.mark.parametrize(
    ("draft", "served", "warns"),
    [(8192, None, False), (2048, 2048, False), (2048, 2049, True), (None, None, False)],
)
def test_the_context_that_is_served_counts(
    draft: int | None, served: int | None, warns: bool
) -> None:
    shorter = SMALL | {"max_position_embeddings": draft}
    planned = plan(shorter, engine=EngineFacts(max_model_len=served))
    assert bool(found(planned)) == warns


def test_a_length_for_the_draft_is_named_by_its_variable() -> None:
    assert only(plan(SMALL, max_model_len=1024), "warning").startswith(
        "SPECULATIVE_MAX_MODEL_LEN=1024: drafts for sequences of up to 1024 tokens, and the target"
    )


def test_a_length_above_the_targets_is_refused() -> None:
    assert only(plan(SMALL, max_model_len=8193), "error") == (
        "SPECULATIVE_MAX_MODEL_LEN=8193: is above the target's; allowed: 1 to 8192"
    )
    engine = EngineFacts(max_model_len=1024)
    assert "allowed: 1 to 1024" in only(plan(SMALL, max_model_len=1025, engine=engine), "error")


def test_a_length_above_the_drafts_own_is_refused_unless_vllm_is_told_to_take_it() -> None:
    shorter = SMALL | {"max_position_embeddings": 2048}
    assert only(plan(shorter, max_model_len=4096), "error") == (
        "SPECULATIVE_MAX_MODEL_LEN=4096: is above the draft's own; allowed: 1 to 2048"
    )
    told = EngineFacts(lengthens=True)
    assert found(plan(shorter, max_model_len=8192, engine=told)) == []


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_a_head_of_eagle_takes_the_targets_length_but_on_a_cpu(method: str) -> None:
    head = LLAMA | {"max_position_embeddings": 2048}
    assert found(plan(head, method=method)) == []
    on_cpu = plan(head, method=method, engine=EngineFacts(on_cpu=True))
    assert "longer ones are served without drafts" in only(on_cpu, "warning")


# Size.


def test_a_draft_above_a_tenth_of_its_target_is_a_warning() -> None:
    half = LLAMA | {"num_hidden_layers": 16}
    assert only(plan(half), "warning") == (
        "SPECULATIVE_MODEL=org/draft: has about 3.2B parameters, 50% of the target's 6.5B; "
        "drafts above 10% mostly make decoding slower; take a smaller draft"
    )


@pytest.mark.parametrize(("own", "warns"), [(10, False), (11, True)])
def test_a_tenth_is_not_above_a_tenth(own: int, warns: bool) -> None:
    unknown: dict[str, Any] = {"vocab_size": 1000}
    planned = Plan(
        DRAFTING,
        Checkpoint("org/target", unknown, weight_bytes=200),
        Checkpoint("org/draft", unknown, weight_bytes=2 * own),
    )
    assert bool(found(planned)) == warns


def test_the_size_of_a_head_is_not_compared() -> None:
    assert found(plan(LLAMA, method="eagle")) == []


# Layers that attend in several ways.

MIXED = {"layer_types": ["full_attention", "sliding_attention"] * 2}


def test_a_draft_whose_layers_attend_in_several_ways_is_refused() -> None:
    text = only(plan(SMALL | MIXED, engine=EngineFacts(hybrid_kv_cache=True)), "error")
    assert "full_attention, sliding_attention" in text
    assert "DISABLE_HYBRID_KV_CACHE_MANAGER=true" in text


@pytest.mark.parametrize(
    ("draft", "hybrid"),
    [(MIXED, False), ({"layer_types": ["full_attention"] * 4}, True), ({}, True)],
)
def test_a_draft_drafts_where_its_keys_and_values_are_kept_together(
    draft: Mapping[str, Any], *, hybrid: bool
) -> None:
    assert found(plan({**SMALL, **draft}, engine=EngineFacts(hybrid_kv_cache=hybrid))) == []
