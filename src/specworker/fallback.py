"""SPECULATIVE_FALLBACK: plain decoding in place of speculation that cannot be set up.

The one place that decides whether what is wrong with speculation stops the start. Pure.
"""

from collections.abc import Sequence

from specworker.decision import Speculation
from specworker.settings import Settings


def instead(
    settings: Settings, decided: Speculation, problems: Sequence[str]
) -> Speculation | None:
    """Plain decoding in place of `decided`, which has `problems`; None to fail for them."""
    if settings.speculative_fallback == "off":
        return None
    reason = "; ".join(" ".join(problem.split()) for problem in problems)
    why = f"it could not be set up, and SPECULATIVE_FALLBACK is on: {reason}"
    return Speculation(None, (why,), decided.notes, fallback=reason)
