"""What `tune` tries, as trials: first each candidate's values of K, then the best beside off."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specworker import (
    candidates,
    compare_plan,
    draft_search,
    environment_block,
    estimate,
    measurement,
    variants,
)
from specworker.candidates import Candidate, Refused
from specworker.errors import ConfigurationError
from specworker.estimate import Estimate
from specworker.measured import OFF, Round
from specworker.measurement import Measurement
from specworker.speedup import FEWEST_ROUNDS
from specworker.trials import Arm, Manner, Trial
from specworker.tuning import Setting

#: Rounds in which values of K are compared first; what comes of them is confirmed.
FIRST_ROUNDS = 1
#: How the names of trials end in which the best are confirmed.
CONFIRMED = ", confirmed"


@dataclass(frozen=True, kw_only=True)
class TunePlan(Measurement):
    """What is tried; its manner is how what is best is confirmed.

    Attributes:
        plain: the variables of the model's worker without speculation.
        candidates: what is tried.
        refused: what cannot work.
        apart: whether off is an engine of its own where the best are confirmed.
        confirm: how many are.
        margin: the gain from which on drafts are worth it.
    """

    plain: Mapping[str, str]
    candidates: tuple[Candidate, ...]
    refused: tuple[Refused, ...]
    apart: bool
    confirm: int
    margin: float

    @property
    def first_manner(self) -> Manner:
        """How the values of K are measured first."""
        return replace(self.manner, rounds=FIRST_ROUNDS)

    def as_object(self) -> dict[str, Any]:
        """What a run must have in common with one that it goes on with, as JSON."""
        return {
            **self.asked,
            "candidates": {one.name: {**one.own, "K": list(one.tokens)} for one in self.candidates},
            "off": "engine" if self.apart else "same",
            "confirm": self.confirm,
            "margin": self.margin,
        }

    def candidate(self, name: str) -> Candidate:
        """The candidate of that name."""
        return next(one for one in self.candidates if one.name == name)


def of(options: Namespace, environment: Mapping[str, str], say: Callable[[str], None]) -> TunePlan:
    """The plan; no engine is started.

    Raises:
        ConfigurationError: with a line for each problem, or because nothing can be tried.
    """
    workload, manner = measurement.workload_of(options), measurement.manner_of(options)
    if manner.rounds < FEWEST_ROUNDS:
        raise ConfigurationError(
            [f"--rounds {manner.rounds}: settles nothing; allowed: {FEWEST_ROUNDS} or more"]
        )
    target = candidates.target_of(environment)
    drafts = list(options.drafts)
    if "draft" in options.methods:
        drafts += draft_search.cached(environment, target, say)
    bounds = options.ngrams or candidates.BOUNDS
    proposed = [
        one
        for one in candidates.proposals(environment, target, dict.fromkeys(drafts), bounds)
        if one.kind in options.methods
    ]
    found, refused = candidates.check(environment, proposed, options.max_k, is_warm=options.warm)
    if not found:
        reasons = [f"{one.name}: {one.reason}" for one in refused]
        raise ConfigurationError(["nothing can be tried:", *reasons])
    plain = variants.without(environment)
    told = dict.fromkeys(note for one in found for note in one.variant.notes)
    return TunePlan(
        model=plain.get("OPENAI_SERVED_MODEL_NAME_OVERRIDE") or target.name,
        workload=workload,
        manner=manner,
        seed=options.seed,
        notes=(*workload.notes, *told),
        plain=plain,
        candidates=tuple(found),
        refused=tuple(refused),
        apart=options.off == "engine",
        confirm=options.confirm,
        margin=options.margin,
    )


def first_variants(candidate: Candidate) -> dict[str, int]:
    """The variants of a candidate's first trial: name -> K."""
    return {OFF: 0, **{f"{candidate.name} K={k}": k for k in candidate.tokens}}


def first_trial(candidate: Candidate) -> Trial:
    """One engine with the largest K, in which K changes."""
    arms = first_variants(candidate)
    return Trial.of_engine(candidate.name, candidate.variant.environment, arms)


def last_trial(plan: TunePlan, settings: Sequence[Setting]) -> Trial:
    """The settings of one candidate in turns with off: each on an engine as it would be set."""
    candidate = plan.candidate(settings[0].candidate)
    environments = [_environment(plan, candidate, one) for one in settings]
    name = f"{candidate.name}{CONFIRMED}"
    if not plan.apart:
        arms = [Arm(OFF, 0), *(Arm(one.name, None, place) for place, one in enumerate(settings))]
        return Trial(name, tuple(arms), compare_plan.at_once(*environments))
    arms = [Arm(OFF), *(Arm(one.name, None, place) for place, one in enumerate(settings, 1))]
    return Trial(name, tuple(arms), compare_plan.at_once(plan.plain, *environments))


def _environment(plan: TunePlan, candidate: Candidate, setting: Setting) -> Mapping[str, str]:
    own = environment_block.variables(candidate, setting)
    whole = {**plan.plain, **own}
    return variants.made_of(whole, own, is_warm=plan.manner.is_warm).environment


def time_needed(plan: TunePlan, done: Sequence[Round] = ()) -> tuple[Estimate, Estimate]:
    """How long it takes to measure the values of K, and then to confirm the best."""
    first = [first_trial(one) for one in plan.candidates]
    count = min(plan.confirm, len(plan.candidates))
    best = [
        Setting(one.name, dict.fromkeys(plan.manner.concurrencies, one.tokens[-1]))
        for one in plan.candidates[:count]
    ]
    last = [last_trial(plan, [one]) for one in best]
    return (
        estimate.of(first, plan.workload, plan.first_manner, done),
        estimate.of(last, plan.workload, plan.manner, done),
    )


def lines(plan: TunePlan, done: Sequence[Round] = ()) -> list[str]:
    """The plan as a person reads it."""
    first, last = time_needed(plan, done)
    off = "an engine without speculation beside it" if plan.apart else "K = 0 in the same engine"
    return [
        *plan.lines,
        *(f"tried: {one.name}, K = {', '.join(map(str, one.tokens))}" for one in plan.candidates),
        *(f"not tried: {one.name}: {one.reason}" for one in plan.refused),
        f"confirmed: {plan.confirm} at most, {plan.manner.rounds} rounds each; off is {off}",
        f"time to try: {first}",
        f"time to confirm: {last}",
    ]
