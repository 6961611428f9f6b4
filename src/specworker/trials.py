"""Trials: variants that take turns on the same prompts, so that what is slow hits all of them.

trial = Trial.of_engine("suffix", environment, {"off": 0, "suffix K=4": 4, "suffix": None})
manner = Manner((1, 4), rounds=3)
async with aclosing(measure(trial, workload, manner, folder, say)) as rounds:
    async for one in rounds:
        ...
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import aiohttp

from specworker import places
from specworker.measured import OFF, Answered, MeasuringError, Round
from specworker.measured_server import MeasuredServer, Setting
from specworker.places import Place, Say
from specworker.workloads import Prompt, Workload

#: Requests of a round for each that is in flight: fewer, and its end would be most of it.
REQUESTS_EACH = 2
#: Tokens of an answer that only warms up.
WARM_UP_TOKENS = 8

#: What is to be known of a round before which the prefix cache could not be emptied.
WARM = "the server does not empty its prefix cache when asked, so that it was warm"


@dataclass(frozen=True)
class Arm:
    """A variant of a trial.

    Attributes:
        variant: its name; `off` decodes plainly.
        tokens: K, set while the server runs; None for what it has of itself.
        place: which of the trial's servers answers.
    """

    variant: str
    tokens: int | None = None
    place: int = 0


@dataclass(frozen=True)
class Trial:
    """Servers that live at once, and the variants that take turns on them.

    Attributes:
        name: what tells it from the other trials of a run.
        arms: the variants.
        places: the servers.
    """

    name: str
    arms: tuple[Arm, ...]
    places: tuple[Place, ...]

    @classmethod
    def of_engine(
        cls, name: str, environment: Mapping[str, str], tokens: Mapping[str, int | None]
    ) -> "Trial":
        """One engine of our own, whose variants differ in K alone: variant -> K."""
        arms = tuple(Arm(variant, count) for variant, count in tokens.items())
        return cls(name, arms, (Place(environment),))

    def name_of(self, place: int) -> str:
        """What a person calls a server: the last variant that it answers."""
        variant = next(arm.variant for arm in reversed(self.arms) if arm.place == place)
        return f"{OFF} beside {self.name}" if variant == OFF else variant


@dataclass(frozen=True)
class Manner:
    """How a workload is measured.

    Attributes:
        concurrencies: requests in flight at most, one after the other.
        rounds: how often each variant gets the whole workload, at each concurrency.
        tokens: the length of every answer, whatever the model would end; None for its own end.
        limit: the longest answer of a prompt that sets none.
        is_warm: whether prefix caches are kept between rounds, as for traffic that repeats.
    """

    concurrencies: tuple[int, ...] = (1, 4, 16)
    rounds: int = 3
    tokens: int | None = None
    limit: int = 256
    is_warm: bool = False

    def as_object(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "concurrency": list(self.concurrencies),
            "rounds": self.rounds,
            "tokens": self.tokens,
            "max_tokens": self.limit,
            "warm": self.is_warm,
        }

    def requests(self, prompts: int, concurrency: int) -> int:
        """Requests of a round: all prompts, equally often, until the concurrency is worth it."""
        return prompts * max(1, math.ceil(REQUESTS_EACH * concurrency / prompts))

    def longest(self, prompt: Prompt) -> int:
        """The most tokens of the answer to a prompt."""
        return self.tokens or prompt.max_tokens or self.limit


async def measure(
    trial: Trial,
    workload: Workload,
    manner: Manner,
    folder: Path,
    say: Say,
    done: Collection[Round] = (),
) -> AsyncGenerator[Round, None]:
    """Measure a trial; its own servers live as long as this is not closed.

    Yields:
        For each concurrency, for each number, a round of each variant, whose order turns from
        one number to the next. What warms up is not among them.

    Args:
        trial: what is compared.
        workload: what is asked.
        manner: how.
        folder: where the servers' logs go.
        say: told of progress.
        done: rounds of an earlier run. Those of which each variant has one are not measured
            again.

    Raises:
        StartError: a server did not start; the reason in words.
        MeasuringError: a request failed, or a server is none that can be measured. Nothing of
            that round is told.
    """
    left = missing(trial, manner, done)
    if not left:
        return
    names = [trial.name_of(number) for number in range(len(trial.places))]
    async with places.opened(trial.places, names, folder, say) as servers:
        warm: set[int] = set()
        for concurrency, number in left:
            turn = _Turn(trial, workload, manner, concurrency, number)
            if concurrency not in warm:
                say(f"{trial.name}, concurrency {concurrency}: warming up")
                for arm in trial.arms:
                    with places.alone(servers, arm.place):
                        await turn.warm_up(servers[arm.place], arm)
                warm.add(concurrency)
            for arm in trial.arms[:: -1 if number % 2 else 1]:
                with places.alone(servers, arm.place):
                    found = await turn.measure(servers[arm.place], arm)
                rate = sum(answer.tokens for answer in found.answers) / found.seconds
                place = f"concurrency {concurrency}, round {number + 1} of {manner.rounds}"
                say(f"{arm.variant}, {place}: {rate:.1f} tokens/s")
                for note in found.notes:
                    say(f"{arm.variant}, {place}: {note}")
                yield found


def complete(trial: Trial, rounds: Collection[Round]) -> list[Round]:
    """The rounds of a trial of which each variant has one: only these can be compared."""
    variants = {arm.variant for arm in trial.arms}
    of_trial = [one for one in rounds if one.trial == trial.name]
    there: dict[tuple[int, int], set[str]] = {}
    for one in of_trial:
        there.setdefault((one.concurrency, one.number), set()).add(one.variant)
    return [one for one in of_trial if there[one.concurrency, one.number] >= variants]


def missing(trial: Trial, manner: Manner, done: Collection[Round]) -> list[tuple[int, int]]:
    """Concurrency and number of each round that is still to be measured."""
    there = {(one.concurrency, one.number) for one in complete(trial, done)}
    wanted = [
        (concurrency, number)
        for concurrency in manner.concurrencies
        for number in range(manner.rounds)
    ]
    return [place for place in wanted if place not in there]


@dataclass(frozen=True)
class _Turn:
    """A variant's turn: what is asked of a server, and how.

    Attributes:
        trial: what is compared.
        workload: what is asked.
        manner: how.
        concurrency: requests in flight.
        number: which round it is.
    """

    trial: Trial
    workload: Workload
    manner: Manner
    concurrency: int
    number: int

    async def warm_up(self, server: MeasuredServer, arm: Arm) -> None:
        """Ask a little, of which nothing is kept."""
        await self._prepare(server, arm)
        short = replace(self.manner, tokens=WARM_UP_TOKENS)
        await self._ask(server, arm, short, self.concurrency)

    async def measure(self, server: MeasuredServer, arm: Arm) -> Round:
        """Ask every prompt."""
        is_cold = await self._prepare(server, arm)
        before = await server.read()
        started = time.perf_counter()
        requests = self.manner.requests(len(self.workload.prompts), self.concurrency)
        answers = await self._ask(server, arm, self.manner, requests)
        seconds = time.perf_counter() - started
        tokens = sum(answer.tokens for answer in answers)
        counts = (await server.settled(before.counts.generated + tokens)).counts - before.counts
        notes = [
            arm.variant == OFF and server.off_costs,
            not (is_cold or self.manner.is_warm) and WARM,
            not before.is_idle and _busy(before.running, before.waiting),
            counts.generated != tokens and _other_traffic(counts.generated, tokens),
        ]
        return Round(
            arm.variant,
            self.concurrency,
            self.number,
            seconds,
            tuple(sorted(answers, key=lambda answer: answer.prompt)),
            counts,
            self.trial.name,
            tuple(note for note in notes if note),
            server.draft_cost if server.setting and server.setting.tokens else None,
            server.dtype,
        )

    async def _prepare(self, server: MeasuredServer, arm: Arm) -> bool:
        """Set K, and empty the prefix cache unless it is to be kept. Returns whether it did."""
        setting = server.initial if arm.tokens is None else Setting(arm.tokens)
        if setting is not None:
            await server.set(setting)
        return not self.manner.is_warm and await server.forget()

    async def _ask(
        self, server: MeasuredServer, arm: Arm, manner: Manner, requests: int
    ) -> list[Answered]:
        """The answers to so many requests.

        Raises:
            MeasuringError: one failed.
        """
        from specworker.inside_vllm import asking

        prompts = self.workload.prompts
        waiting = islice(cycle(enumerate(prompts)), requests)
        answers: list[Answered] = []
        failed: list[Answered] = []

        async def one_after_the_other(session: aiohttp.ClientSession) -> None:
            for number, prompt in waiting:
                if failed:
                    return
                answer = await asking.ask(
                    session,
                    server.url,
                    server.model,
                    server.headers,
                    number,
                    prompt,
                    manner.longest(prompt),
                    ignore_eos=manner.tokens is not None,
                )
                (failed if answer.error else answers).append(answer)

        async with asking.connections() as session:
            await asyncio.gather(*(one_after_the_other(session) for _ in range(self.concurrency)))
        if failed:
            first = failed[0]
            raise MeasuringError(
                f"{arm.variant}, concurrency {self.concurrency}, round {self.number + 1}: the "
                f"request of prompt {prompts[first.prompt].name} failed: {first.error}"
            )
        return answers


def _busy(running: int, waiting: int) -> str:
    return f"{running} requests of others were running and {waiting} waiting before it began"


def _other_traffic(generated: int, tokens: int) -> str:
    return (
        f"the server generated {generated} tokens meanwhile, the answers have {tokens}: there was "
        "other traffic, and acceptance is that of both"
    )
