"""What each measurement has: a model, what it is asked, and how."""

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specworker import prompts, workloads
from specworker.trials import Manner
from specworker.workloads import Workload


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What is asked of which model, and how.

    Attributes:
        model: that answers.
        workload: what is asked.
        manner: how.
        seed: of the choice and order of the prompts.
        notes: what the user should know.
    """

    model: str
    workload: Workload
    manner: Manner
    seed: int
    notes: tuple[str, ...] = ()

    @property
    def asked(self) -> dict[str, Any]:
        """What a run must have in common with one that it goes on with, as JSON."""
        return {
            "model": self.model,
            "workload": self.workload.name,
            "prompts": len(self.workload.prompts),
            "prompts_sha256": self.workload.sha256,
            "seed": self.seed,
            **self.manner.as_object(),
        }

    @property
    def told(self) -> dict[str, Any]:
        """The same for whoever reads the report, without what is empty."""
        manner = self.manner
        told = {
            "model": self.model,
            "workload": f"{self.workload.name}, {len(self.workload.prompts)} prompts",
            "prompts sha256": self.workload.sha256,
            "seed": str(self.seed),
            "requests of a round": self._requests,
            "answers": f"{manner.tokens} tokens each, past their own end"
            if manner.tokens
            else "greedy, to their own end",
            "prefix cache": "kept" if manner.is_warm else "emptied before each round",
            "load generator": "the request functions of vllm bench serve",
            "notes": [*self.notes],
        }
        return {name: value for name, value in told.items() if value}

    @property
    def lines(self) -> list[str]:
        """The same as a plan that a person reads."""
        manner, count = self.manner, len(self.workload.prompts)
        length = f"{manner.tokens} tokens each" if manner.tokens else "to their own end"
        longest = max(map(manner.longest, self.workload.prompts))
        return [
            f"model: {self.model}",
            f"workload: {self.workload.name}, {count} prompts: {self.workload.description}",
            f"requests in flight: {', '.join(map(str, manner.concurrencies))}",
            f"requests of a round: {', '.join(self._requests)}",
            f"answers: {length}, at most {longest} tokens",
        ]

    @property
    def _requests(self) -> list[str]:
        count = len(self.workload.prompts)
        return [f"{self.manner.requests(count, at)} at {at}" for at in self.manner.concurrencies]


def workload_of(options: Namespace) -> Workload:
    """The prompts that the options name.

    Raises:
        ConfigurationError: they cannot be read.
    """
    if options.workload:
        found = workloads.built_in(options.workload)
    else:
        found = prompts.read(Path(options.prompts))
    return found.sample(options.limit, options.seed)


def manner_of(options: Namespace) -> Manner:
    """How the options have them asked."""
    return Manner(
        options.concurrency, options.rounds, options.tokens, options.max_tokens, options.warm
    )
