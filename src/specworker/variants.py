"""The variants of a comparison: what is set about speculation, and what is set in its place."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specworker import main, rehearsal_run
from specworker.errors import ConfigurationError
from specworker.speculation import REPLACED, TYPICAL_VARIABLES
from specworker.speculative_settings import SpeculativeSettings
from specworker.values import shown

#: Every variable that says how tokens are drafted, and which of them are kept.
SPECULATION = tuple(
    name.upper()
    for name in (
        "speculative_config",
        *REPLACED,
        "speculative_adaptive",
        "speculative_max_prompt_len",
        "spec_decoding_acceptance_method",
        *TYPICAL_VARIABLES,
    )
)
#: What may stand in --with.
ALLOWED = tuple(name.upper() for name in SpeculativeSettings.model_fields)
#: Between two variables; a value may hold commas itself.
_COMMA = re.compile(r",(?=[A-Z][A-Z0-9_]*=)")
#: Of vLLM's config: how many earlier answers suffix decoding drafts from.
SUFFIX_CACHE = "suffix_decoding_max_cached_requests"


@dataclass(frozen=True)
class Variant:
    """A way to speculate.

    Attributes:
        name: its method, with what tells it from others of the same.
        environment: all variables of its worker.
        config: vLLM's speculative config.
        own: the variables that make it, as the user set them.
        notes: what the user should know.
    """

    name: str
    environment: Mapping[str, str] = field(repr=False)
    config: Mapping[str, Any]
    own: Mapping[str, str]
    notes: tuple[str, ...] = ()


def of(
    environment: Mapping[str, str], given: Sequence[str], *, is_warm: bool = False
) -> list[Variant]:
    """The variants that `given` names, or that of `environment` where it names none.

    Args:
        environment: of a worker.
        given: texts `NAME=VALUE[,NAME=VALUE…]`, each in place of what is set there.
        is_warm: whether suffix decoding may draft from the answers of earlier rounds.

    Raises:
        ConfigurationError: with a line for each problem.
    """
    if not given:
        own = {name: environment[name] for name in SPECULATION if name in environment}
        return [made_of(environment, own, is_warm=is_warm)]
    variants: list[Variant] = []
    problems: list[str] = []
    for text in given:
        try:
            own = read(text)
            variants.append(made_of(without(environment) | own, own, is_warm=is_warm))
        except ConfigurationError as error:
            problems.extend(f"--with {text}: {problem}" for problem in error.problems)
    if problems:
        raise ConfigurationError(problems)
    return _told_apart(variants)


def read(text: str) -> dict[str, str]:
    """The variables in `NAME=VALUE[,NAME=VALUE…]`.

    Raises:
        ConfigurationError: there are others in it.
    """
    own = {}
    for part in _COMMA.split(text):
        name, equals, value = part.partition("=")
        if not equals or name not in ALLOWED:
            raise ConfigurationError(
                [f"{shown(part)} sets no variable of speculation; allowed: {', '.join(ALLOWED)}"]
            )
        own[name] = value
    return own


def without(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a worker that does not speculate; it has a model's name in any case."""
    bare = {name: text for name, text in environment.items() if name not in SPECULATION}
    # Where no model is named the worker serves the demo model, and speculates.
    demo = rehearsal_run.demo_environment(bare)
    return bare | {name: text for name, text in demo.items() if name not in SPECULATION}


def made_of(environment: Mapping[str, str], own: Mapping[str, str], *, is_warm: bool) -> Variant:
    """The variant that a whole environment makes, of which `own` is what the user set.

    Raises:
        ConfigurationError: with a line for each problem, or because nothing drafts.
    """
    whole = dict(environment) | rehearsal_run.demo_environment(environment)
    _, decided, _ = main.configure(whole | {"MODE": "local"})
    if decided.fallback:
        raise ConfigurationError([decided.fallback])
    if decided.config is None:
        raise ConfigurationError(
            [
                "nothing is set about speculation, so that there is nothing to compare; allowed: "
                "SPECULATIVE_METHOD=ngram, SPECULATIVE_MODEL=<a draft>, or another variable of "
                "speculation, in the environment or by --with"
            ]
        )
    method, notes = str(decided.config["method"]), list(decided.notes)
    if method == "suffix" and SUFFIX_CACHE not in decided.config and not is_warm:
        config = decided.config | {SUFFIX_CACHE: 0}
        kept = {name: text for name, text in whole.items() if name.lower() not in REPLACED}
        whole = kept | {"SPECULATIVE_CONFIG": json.dumps(config)}
        notes.append(
            "suffix drafts from a request's own text alone here, since each round asks the same: "
            "traffic that repeats gains more (--warm keeps earlier answers)"
        )
    return Variant(method, whole, decided.config, own, tuple(notes))


def _told_apart(variants: Sequence[Variant]) -> list[Variant]:
    """The variants, named so that no two have the same name."""
    same = Counter(variant.name for variant in variants)
    named = [
        replace(one, name=f"{one.name} K={one.config.get('num_speculative_tokens')}")
        if same[one.name] > 1
        else one
        for one in variants
    ]
    same = Counter(variant.name for variant in named)
    return [
        replace(one, name=f"{one.name} #{number}") if same[one.name] > 1 else one
        for number, one in enumerate(named, 1)
    ]
