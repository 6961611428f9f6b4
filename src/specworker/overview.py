"""What `GET /speculation` says, and the same in a line of the log. Pure."""

from pydantic import BaseModel, Field

from specworker import verdict
from specworker.adaptation import Adaptation
from specworker.live import LONGEST, SHOWN, Finished, Live, Setup
from specworker.live import Window as LiveWindow

#: The windows by their names, in seconds; None for everything.
WINDOWS = {"10s": 10.0, "1m": LONGEST, "since_start": None}


class Rule(BaseModel):
    """The rule by which drafted tokens are accepted."""

    name: str
    lossy: bool = Field(description="Whether the text's distribution differs from the model's.")


class TypicalRule(Rule):
    """Typical acceptance, with its settings."""

    threshold: float
    alpha: float
    recovery: str


class Requests(BaseModel):
    """Requests in the engine now."""

    running: int
    waiting: int


class Tpot(BaseModel):
    """Milliseconds per token after a request's first, of the requests that ended."""

    p50: float | None
    p95: float | None


class Window(BaseModel):
    """Figures of a stretch of time that ends now."""

    seconds: float
    drafts: int = Field(description="Verification steps of a request that had a draft.")
    drafted: int
    accepted: int
    acceptance_by_position: list[float] = Field(
        description="Share of the drafts whose token 1, 2, … was accepted, as far as any went."
    )
    mean_acceptance_length: float = Field(
        description="Tokens per draft, the bonus token included, as vLLM counts."
    )
    tokens_per_second: float
    tpot_ms: Tpot


class Verdict(BaseModel):
    """Whether speculation pays."""

    kind: verdict.Kind
    text: str
    is_estimate: bool


class Recent(BaseModel):
    """A request that ended; each choice and each prompt of an answer is one."""

    id: str
    finished: float = Field(description="Seconds since 1970.")
    tokens: int
    steps: int | None = Field(description="Verification steps that had a draft.")
    drafted: int | None
    accepted: int | None
    mean_acceptance_length: float | None
    tpot_ms: float | None = Field(description="Null for a single token.")


class Adaptive(BaseModel):
    """A K that adapts, as it was about a second ago."""

    num_speculative_tokens: int = Field(description="K of now.")
    max_num_speculative_tokens: int = Field(description="The largest K that it may take.")
    batch: int = Field(description="Requests in the last step, which the figures by K are for.")
    tokens_per_step: dict[int, float] = Field(
        description="Tokens that a request is expected to gain in a step, by K."
    )
    milliseconds_per_step: dict[int, float] = Field(
        description="What a step is expected to take, by K; empty before any was measured."
    )
    changes: int = Field(description="How often K has changed, trials aside.")
    share_lost_to_trials: float = Field(description="Of the time, what trying other K lost.")
    reason: str | None = Field(description="The last change; null before the first.")


class Overview(BaseModel):
    """Speculation in this engine, lately and since its start."""

    method: str | None
    draft: str | None
    num_speculative_tokens: int = Field(description="K as it is now.")
    max_num_speculative_tokens: int
    adaptive: Adaptive | None = Field(description="Null where K does not adapt.")
    disable_by_batch_size: int | None
    draft_cost: float = Field(
        description="What drafting a token is taken to cost, as a share of a step of the model."
    )
    at_zero: str | None = Field(description="What a step at K = 0 still does for the draft.")
    dtype: str | None = Field(description="Of the model's sums, as vLLM resolved it.")
    acceptance_rule: TypicalRule | Rule
    fallback: str | None = Field(description="Why speculation that was set is off.")
    requests: Requests
    windows: dict[str, Window]
    verdict: Verdict
    recent: list[Recent] = Field(description="The last one first.")


def of(live: Live) -> Overview:
    """Everything that there is to say about a running engine."""
    setup, found = live.setup, verdict.now(live)
    finished = live.finished()
    return Overview(
        method=setup.method,
        draft=setup.draft,
        num_speculative_tokens=live.tokens,
        max_num_speculative_tokens=setup.tokens,
        adaptive=_adaptive(live.adaptation),
        disable_by_batch_size=setup.disable_by_batch_size,
        draft_cost=setup.cost,
        at_zero=setup.at_zero,
        dtype=setup.dtype or None,
        acceptance_rule=_rule(setup),
        fallback=setup.fallback,
        requests=Requests(running=live.running, waiting=live.waiting),
        windows={name: _window(live, seconds) for name, seconds in WINDOWS.items()},
        verdict=Verdict(kind=found.kind, text=found.text, is_estimate=found.is_estimate),
        recent=[_recent(request) for _, request in zip(range(SHOWN), finished, strict=False)],
    )


def line(live: Live) -> str:
    """The last minute, for the log."""
    found, window = verdict.now(live), live.window(LONGEST)
    counts, tpot = window.counts, _tpot(window)
    parts = [f"speculation: {found.text}{' (an estimate)' if found.is_estimate else ''}"]
    if counts.drafts:
        shares = " ".join(f"{rate:.0%}" for rate in window.rate_by_position)
        parts.append(f"accepted {counts.accepted} of {counts.drafted} drafted ({shares})")
    if live.setup.method:
        parts.append(f"{live.setup.method} K={live.tokens}{_adapted(live.adaptation)}")
    parts.append(f"{window.tokens_per_second:.1f} tokens/s")
    if tpot.p50 is not None:
        parts.append(f"TPOT {tpot.p50:.1f} ms, p95 {tpot.p95:.1f} ms")
    parts.append(f"{live.running} running, {live.waiting} waiting")
    return "; ".join(parts)


def _adaptive(known: Adaptation | None) -> Adaptive | None:
    if known is None:
        return None
    return Adaptive(
        num_speculative_tokens=known.tokens,
        max_num_speculative_tokens=known.most,
        batch=known.batch,
        tokens_per_step=dict(known.yields),
        milliseconds_per_step={k: seconds * 1000 for k, seconds in known.seconds.items()},
        changes=known.changes,
        share_lost_to_trials=known.trials,
        reason=known.reason or None,
    )


def _adapted(known: Adaptation | None) -> str:
    """How K came to be what it is, after it in a line; nothing where it was set."""
    if known is None:
        return ""
    return f" (adapts up to {known.most}, {known.changes} changes, {known.trials:.1%} for trials)"


def _window(live: Live, seconds: float | None) -> Window:
    window = live.window() if seconds is None else live.window(seconds)
    return Window(
        seconds=round(window.seconds, 3),
        drafts=window.counts.drafts,
        drafted=window.counts.drafted,
        accepted=window.counts.accepted,
        acceptance_by_position=[*window.rate_by_position],
        mean_acceptance_length=window.counts.mean_length,
        tokens_per_second=window.tokens_per_second,
        tpot_ms=_tpot(window),
    )


def _tpot(window: LiveWindow) -> Tpot:
    return Tpot(p50=_milliseconds(window.tpot(0.5)), p95=_milliseconds(window.tpot(0.95)))


def _recent(request: Finished) -> Recent:
    return Recent(
        id=request.id,
        finished=request.finished,
        tokens=request.tokens,
        steps=request.steps,
        drafted=request.drafted,
        accepted=request.accepted,
        mean_acceptance_length=request.mean_length,
        tpot_ms=_milliseconds(request.tpot),
    )


def _rule(setup: Setup) -> Rule:
    rule = setup.rule
    if not rule.is_typical:
        return Rule(name=rule.name, lossy=False)
    return TypicalRule(
        name=rule.name,
        lossy=True,
        threshold=rule.threshold,
        alpha=rule.alpha,
        recovery=rule.recovery,
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
