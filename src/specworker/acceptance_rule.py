"""By which rule drafted tokens are accepted. Pure."""

from dataclasses import dataclass
from typing import Literal

from specworker.settings import Settings
from specworker.speculative_settings import AcceptanceMethod

DEFAULT_THRESHOLD, DEFAULT_ALPHA = 0.09, 0.3


@dataclass(frozen=True)
class AcceptanceRule:
    """A rule, and the settings of typical acceptance.

    Attributes:
        name: `rejection_sampler` (arXiv 2211.17192) and `block` (arXiv 2403.10444) keep the
            target's distribution; `typical_acceptance_sampler` (arXiv 2401.10774) does not.
        threshold: typical: upper bound of the probability that a token needs.
        alpha: typical: factor of that bound where the target is unsure.
        recovery: typical: the token after a rejection, the target's `argmax` or a `sample`.
    """

    name: AcceptanceMethod = "rejection_sampler"
    threshold: float = DEFAULT_THRESHOLD
    alpha: float = DEFAULT_ALPHA
    recovery: Literal["argmax", "sample"] = "argmax"

    @property
    def is_typical(self) -> bool:
        """Whether this is typical acceptance, which changes the distribution of the text."""
        return self.name == "typical_acceptance_sampler"

    @property
    def reason(self) -> str:
        """A clause for the log; empty for the rule that is always meant."""
        if self.is_typical:
            return (
                f"typical acceptance, LOSSY: threshold {self.threshold}, alpha {self.alpha}, "
                f"recovery {self.recovery}"
            )
        return "" if self.name == "rejection_sampler" else f"acceptance rule {self.name}"


#: The rule that is always meant.
DEFAULT_RULE = AcceptanceRule()


def of(settings: Settings) -> AcceptanceRule:
    """The rule that the settings name."""
    threshold = settings.typical_acceptance_sampler_posterior_threshold
    alpha = settings.typical_acceptance_sampler_posterior_alpha
    return AcceptanceRule(
        settings.spec_decoding_acceptance_method,
        DEFAULT_THRESHOLD if threshold is None else threshold,
        DEFAULT_ALPHA if alpha is None else alpha,
        settings.typical_acceptance_recovery or "argmax",
    )
