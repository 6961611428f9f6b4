"""The ways to speculate that are worth a try here: for this model, on this machine."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specworker import (
    checkpoint,
    drafting,
    inspection,
    main,
    variants,
)
from specworker.checkpoint import Checkpoint
from specworker.errors import ConfigurationError
from specworker.variants import Variant

#: The values of K that are tried, up to the largest of a method: of what is drafted token by
#: token, and of what is looked up, where the next one costs next to nothing.
LADDER = (1, 2, 3, 5, 8, 16, 24)
LOOKUP_LADDER = (2, 4, 8, 24)
#: The largest K of a method, where nothing says.
LARGEST = {"ngram": 8, "suffix": 24, "self": 3}
LARGEST_OF_DRAFTS = 5
#: Methods that draft a token after the other, unless told to draft all at once.
CHAINS = ("draft_model", "mtp", "eagle", "eagle3")
#: Shortest and longest n-gram.
BOUNDS = ((2, 4), (1, 3), (4, 8))
#: The shares of the model's layers that draft with method self.
SELF_SHARES = (0.8, 0.5)


@dataclass(frozen=True)
class Proposal:
    """What may be tried.

    Attributes:
        kind: of method, as `tune_options` names them.
        name: what tells it from others, in a few words.
        own: the variables that make it.
    """

    kind: str
    name: str
    own: Mapping[str, str]


@dataclass(frozen=True)
class Candidate:
    """What is tried.

    Attributes:
        name: what tells it from others.
        own: the variables that make it, without K.
        variant: its worker, with the largest K.
        tokens: the values of K, ascending.
    """

    name: str
    own: Mapping[str, str]
    variant: Variant
    tokens: tuple[int, ...]

    def drafts_as(self, other: "Candidate") -> bool:
        """Whether the two draft alike."""
        layers = "SPECULATIVE_SELF_LAYERS"
        return self.own.get(layers) == other.own.get(layers) and (
            self.variant.config == other.variant.config
        )

    @property
    def drafts_left_to_right(self) -> bool:
        """Whether a smaller K drafts the first tokens of what a larger one drafts.

        Then acceptance by position at the largest K tells that of all; what is looked up ends
        elsewhere, and heads that draft all tokens at once know how many these are.
        """
        return _drafts_left_to_right(self.variant)


@dataclass(frozen=True)
class Refused:
    """What cannot work, and why."""

    name: str
    reason: str


def target_of(environment: Mapping[str, str]) -> Checkpoint:
    """What is known of the model that the worker serves.

    Raises:
        ConfigurationError: no variable names it, or a variable is wrong.
    """
    bare = variants.without(environment)
    settings, _, models = main.configure({**bare, "MODE": "local"})
    if models.target is None:
        raise ConfigurationError(["MODEL_NAME: is not set; allowed: a hub id or a folder"])
    name, place, revision = models.target.name, models.target.place, models.target.revision
    read = checkpoint.read("MODEL_NAME", name, revision, settings.token, place)
    return checkpoint.complete(read, revision, settings.token)


def proposals(
    environment: Mapping[str, str],
    target: Checkpoint,
    drafts: Iterable[str],
    bounds: Sequence[tuple[int, int]] = BOUNDS,
) -> Iterator[Proposal]:
    """What may be tried, whether it can work or not.

    Args:
        environment: of the worker.
        target: its model.
        drafts: names of drafts that are given or were found.
        bounds: shortest and longest n-grams.
    """
    if own := {name: environment[name] for name in variants.SPECULATION if environment.get(name)}:
        yield Proposal("configured", "configured", own)
    for low, high in bounds:
        own = {
            "SPECULATIVE_METHOD": "ngram",
            "NGRAM_PROMPT_LOOKUP_MIN": str(low),
            "NGRAM_PROMPT_LOOKUP_MAX": str(high),
        }
        yield Proposal("ngram", f"ngram {low}-{high}", own)
    yield Proposal("suffix", "suffix", {"SPECULATIVE_METHOD": "suffix"})
    for draft in drafts:
        yield Proposal("draft", f"draft {Path(draft).name}", {"SPECULATIVE_MODEL": draft})
    depth = target.language.get("num_hidden_layers")
    if isinstance(depth, int) and depth > 1:
        counts = (max(1, min(depth - 1, round(depth * share))) for share in SELF_SHARES)
        for count in dict.fromkeys(counts):
            own = {"SPECULATIVE_METHOD": "self", "SPECULATIVE_SELF_LAYERS": str(count)}
            yield Proposal("self", f"self {count} of {depth} layers", own)
    yield Proposal("mtp", "mtp", {"SPECULATIVE_METHOD": "mtp"})


def check(
    environment: Mapping[str, str],
    proposed: Iterable[Proposal],
    largest: int | None = None,
    *,
    is_warm: bool = False,
) -> tuple[list[Candidate], list[Refused]]:
    """The proposals that can work, as a start would find, and those that cannot.

    Args:
        environment: of the worker.
        proposed: what may be tried.
        largest: K at most; None for what makes sense with each.
        is_warm: whether suffix decoding may draft from the answers of earlier rounds.
    """
    found: list[Candidate] = []
    refused: list[Refused] = []
    for one in proposed:
        try:
            candidate = _candidate(environment, one, largest, is_warm=is_warm)
        except ConfigurationError as error:
            refused.append(Refused(one.name, "; ".join(error.problems)))
            continue
        same = [known for known in found if known.drafts_as(candidate)]
        if same:
            refused.append(Refused(one.name, f"is the same as {same[0].name}"))
        else:
            found.append(candidate)
    return found, refused


def _candidate(
    environment: Mapping[str, str], one: Proposal, largest: int | None, *, is_warm: bool
) -> Candidate:
    """A proposal with its values of K.

    Raises:
        ConfigurationError: it cannot work; with the reasons.
    """
    bare = variants.without(environment)
    own = {name: text for name, text in one.own.items() if name != "NUM_SPECULATIVE_TOKENS"}
    first = _variant(bare, own, is_warm=is_warm)
    heads = _heads(first)
    highest = largest or LARGEST.get(first.name, LARGEST_OF_DRAFTS)
    ladder = LOOKUP_LADDER if first.name in drafting.LOOKUP_METHODS else LADDER
    wanted = {tokens for tokens in ladder if tokens < highest} | {highest}
    if heads:
        wanted = {tokens for tokens in wanted if tokens <= heads} | {min(heads, highest)}
    return _checked(one, own, bare, sorted(wanted), is_warm=is_warm)


def _variant(bare: Mapping[str, str], own: Mapping[str, str], *, is_warm: bool) -> Variant:
    """What a worker is told, by the name that the user has for the method."""
    found = variants.made_of({**bare, **own}, own, is_warm=is_warm)
    return replace(found, name="self") if drafts_itself(found.config) else found


def drafts_itself(config: Mapping[str, Any]) -> bool:
    """Whether vLLM is to draft with layers of the target: method self, before they are cut out."""
    return config.get("method") == "draft_model" and "model" not in config


def _drafts_left_to_right(variant: Variant) -> bool:
    chain = variant.config.get("method") in CHAINS
    return chain and not variant.config.get("parallel_drafting")


def _heads(variant: Variant) -> int | None:
    """The most tokens that a draft was made for, where it drafts all of them at once."""
    if variant.name in drafting.LOOKUP_METHODS or _drafts_left_to_right(variant):
        return None
    tokens = variant.config.get("num_speculative_tokens")
    return tokens if isinstance(tokens, int) else None


def _checked(
    one: Proposal,
    own: Mapping[str, str],
    bare: Mapping[str, str],
    wanted: Sequence[int],
    *,
    is_warm: bool,
) -> Candidate:
    """The candidate with the largest of the wanted values of K that can work.

    Raises:
        ConfigurationError: none can.
    """
    problems: list[str] = []
    for place in range(len(wanted), 0, -1):
        made = with_tokens(own, wanted[place - 1])
        variant = _variant(bare, made, is_warm=is_warm)
        problems = _preflight(variant)
        if not problems:
            return Candidate(one.name, own, variant, tuple(wanted[:place]))
    raise ConfigurationError(problems)


def with_tokens(own: Mapping[str, str], tokens: int) -> dict[str, str]:
    """The variables with K = `tokens`, and without a schedule."""
    if "SPECULATIVE_CONFIG" in own:
        config = json.loads(own["SPECULATIVE_CONFIG"])
        for key in ("num_speculative_tokens_per_batch_size", "disable_by_batch_size"):
            config.pop(key, None)
        config["num_speculative_tokens"] = tokens
        return {**own, "SPECULATIVE_CONFIG": json.dumps(config)}
    kept = {k: v for k, v in own.items() if k != "SPECULATIVE_DISABLE_BY_BATCH_SIZE"}
    return {**kept, "NUM_SPECULATIVE_TOKENS": str(tokens)}


def _preflight(variant: Variant) -> list[str]:
    """What a start would find to be wrong."""
    settings, decided, models = main.configure({**variant.environment, "MODE": "local"})
    from specworker import engine

    args, _ = engine.arguments(variant.environment, decided.config, {}, decided.rule)
    _, findings = inspection.look(args, settings, decided, models)
    return [found.text for found in findings if found.severity == "error"]
