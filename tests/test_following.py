"""A predicted text that is followed through an answer with edits in it."""

import random
import time
from collections.abc import Iterator

import pytest

from specworker.following import TRUST, Follower

K = 8
TEXT = [*range(100, 300)]


def steps(follower: Follower, answer: list[int], most: int = K) -> Iterator[tuple[list[int], int]]:
    """What was drafted in each step of an answer, and how much of it was right."""
    written = 1
    follower.advance(answer[:1])
    while written < len(answer):
        drafted, rest = follower.draft(most), answer[written:]
        right = next(
            (n for n, pair in enumerate(zip(drafted, rest, strict=False)) if pair[0] != pair[1]),
            min(len(drafted), len(rest)),
        )
        yield drafted, right
        follower.advance(rest[: right + 1])
        written += right + 1


def renamed(text: list[int], old: list[int], new: list[int]) -> list[int]:
    answer: list[int] = []
    at = 0
    while at < len(text):
        is_old = text[at : at + len(old)] == old
        answer += new if is_old else text[at : at + 1]
        at += len(old) if is_old else 1
    return answer


def with_names(old: list[int], every: int = 20) -> list[int]:
    """A text in which a name stands again and again."""
    return [t for n, token in enumerate(TEXT) for t in (*(old if n % every == 9 else []), token)]


def test_an_answer_that_was_predicted_takes_the_fewest_steps() -> None:
    follower = Follower(TEXT)
    made = [*steps(follower, TEXT)]
    assert len(made) == -(-(len(TEXT) - 1) // (K + 1))
    assert all(right == len(drafted) for drafted, right in made)
    assert follower.appeared == len(TEXT)
    assert follower.draft(K) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [([7], [8]), ([7], [8, 9]), ([7, 6], [8]), ([7, 6, 5], [8, 9]), ([7, 8], [8]), ([7], [6, 7])],
)
def test_a_name_that_is_renamed_is_a_surprise_only_once(old: list[int], new: list[int]) -> None:
    text = with_names(old)
    answer = renamed(text, old, new)
    made = [*steps(Follower(text), answer)]
    wrong = [drafted for drafted, right in made if right < len(drafted)]
    assert len(wrong) <= 2
    assert len(made) <= len(answer) // (K + 1) + 5


def test_an_edit_that_does_not_come_again_is_not_expected_for_ever() -> None:
    text = with_names([7])
    place = text.index(7)
    answer = [*text[:place], 8, *text[place + 1 :]]  # the other sevens stay
    made = [*steps(Follower(text), answer)]
    assert sum(right < len(drafted) for drafted, right in made) <= 3


@pytest.mark.parametrize(
    "answer",
    [
        [*TEXT[:60], *TEXT[90:]],
        [*TEXT[:60], *range(500, 540), *TEXT[60:]],
        [*range(500, 510), *TEXT],
        [*TEXT[:60], *range(500, 540), *TEXT[100:]],
        [*TEXT[100:], *TEXT[:100]],
    ],
    ids=["left out", "put in", "before it", "rewritten", "moved"],
)
def test_the_prediction_is_found_again_after_an_edit(answer: list[int]) -> None:
    follower = Follower(TEXT)
    right = sum(right for _, right in steps(follower, answer))
    same = len([token for token in answer if token in TEXT])
    assert right >= 0.8 * same - K
    assert follower.appeared >= same - 2


def test_an_unrelated_prediction_is_soon_left_alone() -> None:
    numbers = random.Random(1)
    words = [*range(40)]  # some of them agree by chance
    prediction, answer = numbers.choices(words, k=500), numbers.choices(words, k=500)
    drafted = [len(draft) for draft, _ in steps(Follower(prediction), answer)]
    assert sum(drafted) <= 60
    assert sum(drafted[50:]) <= 12


def test_a_place_found_by_little_is_trusted_little() -> None:
    follower = Follower(TEXT)
    follower.advance([*TEXT[:5], 999])
    assert follower.draft(K) == TEXT[6 : 6 + TRUST]  # as if 999 stood for the next token
    follower.advance([998])
    assert follower.draft(K) == []
    follower.advance([TEXT[7]])
    assert follower.draft(32) == TEXT[8 : 8 + TRUST]
    follower.advance(TEXT[8:10])
    assert follower.draft(32) == TEXT[10 : 10 + 3 * TRUST]


def test_tokens_appeared_are_those_of_the_prediction_alone() -> None:
    text = [*TEXT[:20], 7, *TEXT[20:40]]
    follower = Follower(text)
    follower.advance([*TEXT[:20], 8, *TEXT[20:30]])
    assert follower.appeared == 30
    assert follower.answered == 31


def test_it_does_not_matter_in_how_many_pieces_an_answer_comes() -> None:
    numbers = random.Random(2)
    text = numbers.choices(range(20), k=300)
    answer = [token for token in text if numbers.random() < 0.95]
    whole, piece = Follower(text), Follower(text)
    whole.advance(answer)
    for token in answer:
        piece.advance([token])
        piece.draft(K)
    assert (whole.appeared, whole.draft(K)) == (piece.appeared, piece.draft(K))


def test_no_prediction_drafts_nothing() -> None:
    follower = Follower([])
    follower.advance([1, 2, 3])
    assert follower.draft(K) == []
    assert Follower(TEXT).draft(0) == []


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_a_draft_is_of_the_asked_length_at_most(seed: int) -> None:
    numbers = random.Random(seed)
    text = numbers.choices(range(4), k=numbers.randrange(1, 80))  # everything repeats
    follower = Follower(text)
    for _ in range(200):
        most = numbers.randrange(0, 20)
        assert len(follower.draft(most)) <= most
        follower.advance(numbers.choices(range(4), k=numbers.randrange(0, 5)))
        assert 0 <= follower.appeared <= len(text)


def test_a_long_prediction_is_searched_quickly() -> None:
    numbers = random.Random(3)
    follower = Follower(numbers.choices(range(1000), k=100_000))
    began = time.process_time()
    for _ in range(2000):
        follower.advance(numbers.choices(range(1000), k=1))
        follower.draft(K)
    assert time.process_time() - began < 2
