"""What speculation does lately: figures over windows of time, and the last requests. Pure."""

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from specworker.acceptance import Acceptance
from specworker.acceptance_rule import AcceptanceRule
from specworker.adaptation import Adaptation

#: Seconds of the longest window that ends now.
LONGEST = 60.0
#: Seconds between two readings that are kept apart.
RESOLUTION = 0.1
#: Finished requests of which the times are kept.
KEPT_REQUESTS = 10_000
#: Answers of which the figures are kept until they are sent.
KEPT_ANSWERS = 4096
#: Finished requests among which one that has just ended is sought.
SOUGHT = 256
#: Finished requests that are shown.
SHOWN = 20


@dataclass(frozen=True)
class Setup:
    """What an engine speculates with, for as long as it runs.

    Attributes:
        method: how tokens are drafted; None for plain decoding.
        draft: the model that drafts; None where there is none of its own.
        tokens: the largest K, the tokens drafted a step.
        schedule: K by the number of requests in a step, that of none first; empty where it
            does not depend on it.
        cost: what drafting a token is taken to cost, as a share of a step of the model.
        at_zero: what a step at K = 0 still does for the draft; None for nothing.
        rule: the rule by which drafted tokens are accepted.
        fallback: why speculation that was set is off.
        fixed: why K cannot be changed while the engine runs; None where it can.
        adaptive: whether K adapts from the start.
        dtype: of the model's sums, as vLLM names it; empty where that is not known.
    """

    method: str | None = None
    draft: str | None = None
    tokens: int = 0
    schedule: tuple[int, ...] = ()
    cost: float = 0.0
    at_zero: str | None = None
    rule: AcceptanceRule = field(default_factory=AcceptanceRule)
    fallback: str | None = None
    fixed: str | None = None
    adaptive: bool = False
    dtype: str = ""

    def tokens_at(self, requests: int) -> int:
        """The schedule's K for a step with so many requests."""
        if not self.schedule:
            return self.tokens
        return self.schedule[min(requests, len(self.schedule) - 1)]

    @property
    def disable_by_batch_size(self) -> int | None:
        """The most requests for which anything is drafted; None where there is no such limit."""
        drafting = [batch for batch, tokens in enumerate(self.schedule) if tokens]
        limit = max(drafting, default=0)
        return limit if limit < len(self.schedule) - 1 else None


@dataclass(frozen=True)
class Finished:
    """A request that came to its end.

    Attributes:
        id: of its answer; several choices or prompts share one.
        finished: when, in seconds since 1970.
        tokens: completion tokens.
        elapsed: seconds from its arrival to its end.
        tpot: seconds per token after the first: (elapsed - time to the first) / (tokens - 1);
            None for a single token.
        steps: verification steps that had a draft; None where vLLM was told not to count.
        drafted: drafted tokens, likewise.
        accepted: drafted tokens that were accepted, likewise.
        at: when, by the clock of the windows.
        k: K, where it was the same from arrival to end; None where it adapts.
        running: requests in the batch when it ended, itself counted.
    """

    id: str
    finished: float
    tokens: int
    elapsed: float = 0.0
    tpot: float | None = None
    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    at: float = 0.0
    k: int | None = None
    running: int = 0

    @property
    def mean_length(self) -> float | None:
        """Tokens per verified draft, the bonus token included."""
        if self.steps is None or self.accepted is None:
            return None
        return 1 + self.accepted / self.steps if self.steps else 1.0


def quantile(ascending: Sequence[float], share: float) -> float | None:
    """The value that `share` of the values do not exceed; None without values."""
    if not ascending:
        return None
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]


@dataclass(frozen=True)
class Window:
    """Figures of a stretch of time that ends now.

    Attributes:
        seconds: how long it is; shorter than asked for where the engine is younger.
        counts: what was generated, drafted and accepted.
        tpots: seconds per token of the requests that ended in it, ascending.
    """

    seconds: float
    counts: Acceptance
    tpots: tuple[float, ...] = ()

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second, of all requests together."""
        return self.counts.generated / self.seconds if self.seconds else 0.0

    @property
    def rate_by_position(self) -> tuple[float, ...]:
        """Share of the drafts whose token 1, 2, … was accepted, as far as any draft went."""
        deepest = sum(count > 0 for count in self.counts.drafted_by_position)
        return self.counts.rate_by_position[:deepest]

    def tpot(self, share: float) -> float | None:
        """The TPOT in seconds that `share` of the requests kept to: 0.5 for the median."""
        return quantile(self.tpots, share)


class Live:
    """The figures of a running engine.

    Attributes:
        setup: what it speculates with.
        tokens: K as it is now.
        adaptation: what is known of a K that adapts; None where it does not.
    """

    def __init__(self, setup: Setup, clock: Callable[[], float] = time.monotonic) -> None:
        self.setup = setup
        self.adaptation = Adaptation(setup.tokens) if setup.adaptive else None
        self.tokens = self.adaptation.tokens if self.adaptation else setup.tokens
        self._clock = clock
        self._started = self._changed = clock()
        # Readings, oldest first: what was counted up to a time. The last one is up to date.
        self._readings = deque([(self._started, Acceptance())])
        self._requests: dict[int, tuple[int, int]] = {}
        self._finished: deque[Finished] = deque(maxlen=KEPT_REQUESTS)
        self._answers: OrderedDict[str, list[Mapping[str, Any]]] = OrderedDict()

    def count(self, step: Acceptance, requests: tuple[int, int] | None, engine: int = 0) -> None:
        """Count one step of an engine.

        Args:
            step: what it generated, drafted and accepted.
            requests: how many run, and how many wait; None where nothing is said of it.
            engine: which of several replicas.
        """
        if requests is not None:
            self._requests[engine] = requests
        if step == Acceptance():
            return
        now, total = self._clock(), self.total + step
        if len(self._readings) > 1 and now - self._readings[-2][0] < RESOLUTION:
            self._readings[-1] = (now, total)
        else:
            self._readings.append((now, total))
        while len(self._readings) > 2 and self._readings[1][0] <= now - LONGEST:
            self._readings.popleft()

    def finish(self, request: Finished, figures: Mapping[str, Any] | None = None) -> None:
        """Note a request that has ended, and vLLM's own figures of it."""
        now = self._clock()
        constant = now - request.elapsed >= self._changed
        k = self.tokens if constant and not self.adaptation else None
        self._finished.append(replace(request, at=now, k=k, running=max(1, self.running)))
        if figures is not None:
            self._answers.setdefault(request.id, []).append(figures)
            self._answers.move_to_end(request.id)
            if len(self._answers) > KEPT_ANSWERS:
                self._answers.popitem(last=False)

    def change(self, tokens: int) -> None:
        """Note that K was set to `tokens`, and adapts no more."""
        if tokens != self.tokens or self.adaptation:
            self.tokens, self.adaptation = tokens, None
            self._changed = self._clock()

    def adapt(self, most: int) -> None:
        """Note that K adapts up to `most` from now on."""
        if self.adaptation is None or self.adaptation.most != most:
            self.adaptation = Adaptation(most)
            self._changed = self._clock()

    def hear(self, adaptation: Adaptation) -> None:
        """Take what a K that adapts has come to, unless it was set meanwhile."""
        if self.adaptation and self.adaptation.most == adaptation.most:
            self.tokens, self.adaptation = adaptation.tokens, adaptation

    @property
    def total(self) -> Acceptance:
        """What was counted since the start."""
        return self._readings[-1][1]

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return sum(running for running, _ in self._requests.values())

    @property
    def waiting(self) -> int:
        """Requests that wait for a place in it."""
        return sum(waiting for _, waiting in self._requests.values())

    def window(self, seconds: float = math.inf) -> Window:
        """The last `seconds`, at most LONGEST of them, or everything since the start."""
        now = self._clock()
        since = max(self._started, now - seconds)
        ended = (request.tpot for request in self.finished(since) if request.tpot is not None)
        return Window(now - since, self.counts(seconds), tuple(sorted(ended)))

    def counts(self, seconds: float = math.inf) -> Acceptance:
        """What was counted in the same time."""
        since, before = self._clock() - seconds, Acceptance()
        for at, counts in self._readings:
            if at > since:
                break
            before = counts
        return self.total - before

    def since_change(self) -> Window:
        """The last LONGEST seconds, or those since K was changed where these are fewer."""
        return self.window(min(LONGEST, self._clock() - self._changed))

    def finished(self, since: float = -math.inf) -> Iterator[Finished]:
        """The requests that ended since a time, the last one first."""
        for request in reversed(self._finished):
            if request.at < since:
                return
            yield request

    def answer(self, name: str) -> dict[str, Any] | None:
        """The figures of an answer so far, over all its prompts and choices; None without any."""
        return joined(figures) if (figures := self._answers.get(name)) else None

    def tokens_of(self, name: str) -> int | None:
        """Completion tokens of an answer that has just ended; None where it is not noted."""
        ended = islice(self.finished(), SOUGHT)
        return sum(request.tokens for request in ended if request.id == name) or None


def joined(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of several requests as one, in vLLM's own keys.

    vLLM's lists of each step, where it was told to keep them, are those of one request alone.
    """
    if len(figures) == 1:
        return dict(figures[0])
    counts = ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens")
    steps, accepted, drafted = (sum(one[key] for one in figures) for key in counts)
    histograms = (one["acceptance_histogram"] for one in figures)
    return {
        "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_histogram": [sum(column) for column in zip(*histograms, strict=True)],
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": figures[0]["num_spec_tokens"],
    }
