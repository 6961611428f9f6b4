"""What a request says about its own speculation, as the engine gets it. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from specworker.following import Follower

#: Keys of a request's extra arguments (`vllm_xargs`): K at most, 0 for off; and the token ids
#: of the answer that is expected.
TOKENS, PREDICTION = "num_speculative_tokens", "prediction_ids"
#: What the last draft counts in how good a source of drafts is taken to be.
NEWEST = 0.4
#: How good the engine's own drafts are taken to be before any was seen; a prediction is
#: taken to be right.
UNSEEN = 0.5


class Terms:
    """How one request speculates, where that is not as every other does.

    Attributes:
        most: the most drafted tokens a step; None for no bound of its own.
        follower: what drafts for it; None where it predicts nothing.
    """

    def __init__(self, most: int | None, prediction: Sequence[int] = ()) -> None:
        self.most = most
        self.follower = Follower(prediction) if prediction else None
        #: The share of what each source offered that came: the prediction, the engine's drafter.
        self._came = [1.0, UNSEEN]
        self._offered: tuple[list[int], list[int]] = ([], [])

    def draft(self, answer: Sequence[int], drafted: list[int], most: int) -> list[int]:
        """What to verify next: by the prediction, or what the engine's drafter found.

        Both are compared with what then comes, and the one with more tokens to hope for wins.

        Args:
            answer: the tokens generated so far.
            drafted: the drafter's.
            most: how many at most.
        """
        if self.follower is None:
            return drafted[:most]
        came = list(answer[self.follower.answered :])
        for source, offered in enumerate(self._offered):
            if offered and came:
                share = agreeing(offered, came) / min(len(offered), len(came))
                self._came[source] += NEWEST * (share - self._came[source])
        self.follower.advance(came)
        self._offered = self.follower.draft(most), drafted[:most]
        followed, found = (
            len(offered) * share for offered, share in zip(self._offered, self._came, strict=True)
        )
        return self._offered[0] if followed >= found else self._offered[1]


def agreeing(drafted: Sequence[int], came: Sequence[int]) -> int:
    """How many of the tokens that came are the drafted ones, from the first on."""
    most = min(len(drafted), len(came))
    return next((n for n in range(most) if drafted[n] != came[n]), most)


def of(
    extra: Mapping[str, Any] | None, prompt_tokens: int, max_prompt_len: int | None, words: int
) -> Terms | None:
    """The terms of a request; None where it has none of its own.

    The API process refuses what is wrong; what comes another way, and is not of the form that
    is expected, counts as not said, since nothing of a request may harm the engine.

    Args:
        extra: its extra arguments.
        prompt_tokens: tokens of its prompt.
        max_prompt_len: above so many nothing is drafted; None for no such limit.
        words: size of the vocabulary.
    """
    if max_prompt_len is not None and prompt_tokens > max_prompt_len:
        return Terms(0)
    extra = extra or {}
    most, prediction = extra.get(TOKENS), extra.get(PREDICTION)
    if not isinstance(most, int) or most < 0:
        most = None
    if not isinstance(prediction, list) or not all(
        isinstance(token, int) and 0 <= token < words for token in prediction
    ):
        prediction = []
    if most is None and not prediction:
        return None
    return Terms(most, [] if most == 0 else prediction)
