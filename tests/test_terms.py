"""What a request says about its own speculation."""

from typing import Any

import pytest

from specworker import terms
from specworker.terms import PREDICTION, TOKENS, Terms

WORDS = 400
TEXT = [*range(100, 200)]
OTHER = [*range(300, 400)]


def rounds(own: Terms, answer: list[int], drafter: list[int], most: int = 8) -> list[list[int]]:
    """What is verified in each step where the drafter offers the tokens at the same place."""
    made, written = [], 1
    while written < len(answer):
        drafted = own.draft(answer[:written], drafter[written : written + most], most)
        made.append(drafted)
        right = 0
        while right < len(drafted) and drafted[right : right + 1] == answer[written + right :][:1]:
            right += 1
        written += right + 1
    return made


def test_most_requests_have_no_terms_of_their_own() -> None:
    assert terms.of(None, 10, None, WORDS) is None
    assert terms.of({}, 10, 10, WORDS) is None
    assert terms.of({"other": 1}, 10, None, WORDS) is None
    assert terms.of({PREDICTION: []}, 10, None, WORDS) is None


def test_a_request_may_have_its_own_bound() -> None:
    own = terms.of({TOKENS: 2}, 10, None, WORDS)
    assert own is not None
    assert (own.most, own.follower) == (2, None)
    assert own.draft([], [1, 2, 3], 2) == [1, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        {TOKENS: "2"},
        {TOKENS: 1.5},
        {TOKENS: -1},
        {TOKENS: [1]},
        {PREDICTION: "text"},
        {PREDICTION: [1, WORDS]},
        {PREDICTION: [1, -1]},
        {PREDICTION: [1, "2"]},
        {PREDICTION: 7},
    ],
)
def test_what_is_not_of_the_form_counts_as_not_said(wrong: dict[str, Any]) -> None:
    assert terms.of(wrong, 10, None, WORDS) is None


def test_a_long_prompt_drafts_nothing_whatever_else_it_asks_for() -> None:
    for extra in ({}, {TOKENS: 2}, {PREDICTION: TEXT}):
        own = terms.of(extra, 11, 10, WORDS)
        assert own is not None
        assert (own.most, own.follower) == (0, None)
    assert terms.of({}, 10, 10, WORDS) is None


def test_a_request_that_opts_out_follows_no_prediction() -> None:
    own = terms.of({TOKENS: 0, PREDICTION: TEXT}, 10, None, WORDS)
    assert own is not None
    assert own.follower is None


def test_a_prediction_that_is_right_is_verified_whatever_the_drafter_finds() -> None:
    for drafter in (OTHER, TEXT, []):
        assert rounds(Terms(None, TEXT), TEXT, drafter)[0] == TEXT[1:9]
        assert len(rounds(Terms(None, TEXT), TEXT, drafter)) == 11


def test_where_the_prediction_misses_the_drafter_has_its_turn() -> None:
    made = rounds(Terms(None, OTHER), TEXT, TEXT)
    assert len(made) <= 13
    assert made[2:] == [draft for draft in made if draft[0] in TEXT][-len(made[2:]) :]


def test_a_prediction_that_always_misleads_costs_the_drafter_little() -> None:
    misleading = [token for token in TEXT for token in (token, 7)]  # agrees for a token at a time
    alone = rounds(Terms(None, [1]), TEXT, TEXT)
    assert len(rounds(Terms(None, misleading), TEXT, TEXT)) <= len(alone) + 3
