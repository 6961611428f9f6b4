"""Whether a draft fits its target: vocabulary, hidden size, context, size. Pure."""

from collections.abc import Iterator
from dataclasses import replace

from specworker import layer_layout, model_size
from specworker.checkpoint import Checkpoint
from specworker.drafting import HEAD_A_TOKEN
from specworker.findings import Finding, Plan
from specworker.vocabulary import Comparison

#: Draft models above this share of their target's size are mostly slower than no draft.
LARGEST_SHARE = 1 / 10
#: Methods whose draft reads the target's hidden states.
HEADS = ("eagle", "eagle3", "medusa", "mlp_speculator")
EAGLE = ("eagle", "eagle3")
#: Has vLLM map ids between two vocabularies.
MAPPING = "use_heterogeneous_vocab"
#: The ways out for a draft model with another vocabulary.
FAMILY = (
    f'a draft of the target\'s family, or SPECULATIVE_CONFIG with "{MAPPING}": true (greedy drafts)'
)
#: What vLLM takes for the hidden size of a Medusa head whose config names none.
MEDUSA_HIDDEN_SIZE = 4096
#: Of how many layers of the target an EAGLE-3 head reads the hidden state, by default.
EAGLE3_LAYERS = 3


def check(plan: Plan) -> Iterator[Finding]:
    """What is found about the draft of `plan` beside its target."""
    if plan.draft is None:
        return
    yield from _vocabulary(plan, plan.draft)
    yield from _context(plan, plan.draft)
    if plan.method in HEADS:
        yield from _hidden_size(plan, plan.draft)
    if plan.method == "draft_model":
        yield from _size(plan, plan.draft)
        yield from _attention(plan, plan.draft)


def mapped(plan: Plan) -> tuple[Plan, str | None]:
    """`plan`, with ids mapped where the draft's embedding is padded to another size, and why.

    vLLM compares nothing but the sizes, and refuses a draft of the target's own family
    whose size is rounded up differently, unless it is told to map ids between the two.
    """
    sizes, compared = _sizes(plan), plan.vocabularies
    differ = sizes is not None and sizes[0] != sizes[1]
    is_set = plan.config.get(MAPPING) is not None
    if plan.method != "draft_model" or is_set or not differ or _is_probabilistic(plan):
        return plan, None
    if sizes is None or compared is None or not compared.alike:
        return plan, None
    reason = f"the draft has the target's tokenizer, and {sizes[1]} embeddings for {sizes[0]}"
    return replace(plan, config={**plan.config, MAPPING: True}), reason


def _vocabulary(plan: Plan, draft: Checkpoint) -> Iterator[Finding]:
    compared, sizes = plan.vocabularies, _sizes(plan)
    named = f"{plan.set_by('model')}={draft.name}"
    if plan.method == "draft_model" and plan.config.get(MAPPING) is True:
        yield from _mapping(plan, draft)
        return
    if compared and compared.example:
        yield _differing(plan, named, compared)
        if not compared.alike:
            return
    if sizes and sizes[0] != sizes[1]:
        yield from _other_size(plan, named, *sizes, alike=compared is not None)


def _differing(plan: Plan, named: str, compared: Comparison) -> Finding:
    """Ids that mean other tokens: a few special ones, or nearly all."""
    assert compared.example is not None
    index, target, draft = compared.example
    what = (
        f"{compared.common - compared.shared} of {compared.common} token ids mean another token "
        f"than the target's, such as {index}: {draft!r} for {target!r}"
    )
    if plan.method == "draft_model" and not compared.alike:
        return Finding("error", f"{named}: {what}; allowed: {FAMILY}")
    return Finding("warning", f"{named}: {what}; drafts of these are rejected")


def _other_size(
    plan: Plan, named: str, target: int, draft: int, *, alike: bool
) -> Iterator[Finding]:
    what = f"its vocabulary has {draft} entries, the target's {target}"
    if plan.method == "draft_model" and alike and _is_probabilistic(plan):
        yield Finding(
            "error",
            f"{plan.set_by('draft_sample_method')}=probabilistic: {what} for the same tokenizer, "
            "which vLLM can only bridge for greedy drafts; allowed: greedy, or a draft whose "
            "embedding has the target's size",
        )
    elif plan.method == "draft_model":
        yield Finding(
            "error",
            f"{named}: {what}, which vLLM refuses; allowed: {FAMILY}",
        )
    elif plan.method in HEAD_A_TOKEN:
        yield Finding(
            "error",
            f"{named}: {what}, and vLLM loads heads of the target's size; allowed: "
            "heads made for this target",
        )
    elif plan.method in HEADS:
        yield Finding("warning", f"{named}: {what}; was it made for this target?")


def _mapping(plan: Plan, draft: Checkpoint) -> Iterator[Finding]:
    """What vLLM needs to map ids between two vocabularies."""
    if _is_probabilistic(plan):
        yield Finding(
            "error",
            f"{plan.set_by('draft_sample_method')}=probabilistic: use_heterogeneous_vocab is for "
            "greedy drafts only; allowed: greedy",
        )
    if draft.folder is not None and draft.tokenizer is None:
        yield Finding(
            "error",
            f"{plan.set_by('model')}={draft.name}: has no tokenizer, which "
            "use_heterogeneous_vocab needs; allowed: a draft with its tokenizer files",
        )


def _hidden_size(plan: Plan, draft: Checkpoint) -> Iterator[Finding]:
    """Heads made for another hidden size: vLLM finds out when it loads or runs them."""
    target = plan.target.hidden_size
    if not target or draft.config is None:
        return
    made_for = _declared(plan.method, draft)
    if made_for in (None, target):
        made_for = _by_shape(plan.method, draft, target)
    if made_for not in (None, target):
        yield Finding(
            "error",
            f"{plan.set_by('model')}={draft.name}: is made for a target of hidden size "
            f"{made_for}, and {plan.target.name} has {target}; allowed: a draft made for it",
        )


def _declared(method: str | None, draft: Checkpoint) -> int | None:
    """The hidden size of the target that a head was made for, by its config."""
    config = draft.config or {}
    if method == "mlp_speculator":
        named = config.get("emb_dim")
        return named if isinstance(named, int) else None
    if method == "medusa":
        return draft.hidden_size or MEDUSA_HIDDEN_SIZE
    wider = config.get("target_hidden_size") if method == "eagle3" else None
    return wider if isinstance(wider, int) else draft.hidden_size


def _by_shape(method: str | None, draft: Checkpoint, target: int) -> int | None:
    """The same, by the layer of an EAGLE head that joins what it reads.

    That is an embedding and a hidden state, or, of EAGLE-3, the states of several layers.
    """
    shapes = (draft.tensors.get(name, ()) for name in ("fc.weight", "model.fc.weight"))
    width = next((shape[1] for shape in shapes if len(shape) == 2), None)
    if width is None or method not in ("eagle", "eagle3"):
        return None
    joined = _layers_read(draft) if method == "eagle3" else {2}
    return target if any(width == count * target for count in joined) else width // max(joined)


def _layers_read(draft: Checkpoint) -> set[int]:
    config = draft.config or {}
    inner = config.get("eagle_config")
    places = (config, inner if isinstance(inner, dict) else {})
    named = [place.get("eagle_aux_hidden_state_layer_ids") for place in places]
    counts = {len(layers) for layers in named if isinstance(layers, list)}
    count = config.get("num_aux_hidden_states")
    return counts | {count if isinstance(count, int) else EAGLE3_LAYERS}


def _context(plan: Plan, draft: Checkpoint) -> Iterator[Finding]:
    """Sequences longer than the draft takes. On a GPU, EAGLE heads take the target's."""
    if plan.method != "draft_model" and not (plan.method in EAGLE and plan.engine.on_cpu):
        return
    given, own = plan.integer("max_model_len"), draft.context
    longest = plan.engine.max_model_len or plan.target.context
    by = plan.set_by("max_model_len" if given else "model")
    if given and longest and given > longest:
        yield Finding("error", f"{by}={given}: is above the target's; allowed: 1 to {longest}")
    elif given and own and given > own and not plan.engine.lengthens:
        yield Finding("error", f"{by}={given}: is above the draft's own; allowed: 1 to {own}")
    elif (limit := given or own) and longest and limit < longest:
        yield Finding(
            "warning",
            f"{by}={given or draft.name}: drafts for sequences of up to {limit} tokens, and the "
            f"target takes {longest}; longer ones are served without drafts; set "
            f"MAX_MODEL_LEN={limit} where that is enough, or take a draft for longer ones",
        )


def _size(plan: Plan, draft: Checkpoint) -> Iterator[Finding]:
    own, targets = draft.parameters, plan.target.parameters
    if own and targets and own > targets * LARGEST_SHARE:
        yield Finding(
            "warning",
            f"{plan.set_by('model')}={draft.name}: has about {model_size.shown(own)} parameters, "
            f"{own / targets:.0%} of the target's {model_size.shown(targets)}; drafts above "
            f"{LARGEST_SHARE:.0%} mostly make decoding slower; take a smaller draft",
        )


def _attention(plan: Plan, draft: Checkpoint) -> Iterator[Finding]:
    """Layers that attend in several ways, whose keys and values vLLM keeps apart."""
    kinds = layer_layout.kinds(draft.config or {})
    if len(kinds) > 1 and plan.engine.hybrid_kv_cache:
        yield Finding(
            "error",
            f"{plan.set_by('model')}={draft.name}: its layers attend in several ways "
            f"({', '.join(kinds)}), and vLLM drafts with layers of one way; allowed: such a draft, "
            "or DISABLE_HYBRID_KV_CACHE_MANAGER=true",
        )


def _sizes(plan: Plan) -> tuple[int, int] | None:
    """The sizes of the target's and the draft's vocabulary; None where one is not known."""
    target = plan.target.vocabulary_size
    draft = plan.draft.vocabulary_size if plan.draft else None
    return (target, draft) if target and draft else None


def _is_probabilistic(plan: Plan) -> bool:
    return plan.config.get("draft_sample_method") == "probabilistic"
