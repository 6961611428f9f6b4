"""Where greedy texts part, and what is said of it."""

from specworker import greedy
from specworker.measured import Round
from tests.rounds import TEXTS, measured

OTHER = ("alpha beta GAMMA delta", TEXTS[1])


def only(*rounds: Round) -> greedy.Agreement:
    (found,) = greedy.agreements(rounds)
    return found


def test_equal_texts_agree() -> None:
    found = only(measured(), measured("ngram"))
    assert (found.compared, found.differences, found.unsettled) == (2, (), 0)
    assert found.reason("bfloat16") == ""


def test_a_difference_is_told_by_prompt_character_and_word() -> None:
    found = only(measured(), measured("ngram", texts=OTHER))
    (difference,) = found.differences
    assert (difference.prompt, difference.round) == (0, 0)
    assert (difference.character, difference.word) == (11, 2)
    assert difference.plain[difference.before :] == "gamma delta"
    assert difference.drafted[difference.before :] == "GAMMA delta"


def test_a_difference_within_a_word_is_in_that_word() -> None:
    found = only(measured(), measured("ngram", texts=("alpha beta gamMA delta", TEXTS[1])))
    assert (found.differences[0].character, found.differences[0].word) == (14, 2)


def test_a_text_that_ends_sooner_differs_at_its_end() -> None:
    found = only(measured(), measured("ngram", texts=("alpha beta", TEXTS[1])))
    (difference,) = found.differences
    assert difference.character == 10
    assert difference.drafted[difference.before :] == ""


def test_of_a_long_text_the_surroundings_are_kept() -> None:
    same = "word " * 50
    found = only(measured(texts=(f"{same}a",)), measured("ngram", texts=(f"{same}b",)))
    (difference,) = found.differences
    assert difference.word == 50
    assert difference.plain == f"{same[-greedy.SHOWN :]}a"
    assert difference.plain[difference.before :] == "a"


def test_texts_are_compared_within_a_round_and_told_once() -> None:
    found = only(
        measured(number=0),
        measured("ngram", number=0),
        measured(number=1),
        measured("ngram", number=1, texts=OTHER),
        measured(number=2),
        measured("ngram", number=2, texts=OTHER),
    )
    assert [(one.prompt, one.round) for one in found.differences] == [(0, 1)]


def test_each_concurrency_and_trial_is_compared_with_its_own() -> None:
    found = greedy.agreements(
        [
            measured(trial="a"),
            measured("ngram", trial="a"),
            measured(trial="b", texts=OTHER),
            measured("suffix", trial="b", texts=OTHER),
            measured("ngram", 4, trial="a", texts=OTHER),
            measured("", 4, trial="a"),
        ]
    )
    assert [(one.variant, one.concurrency, len(one.differences)) for one in found] == [
        ("ngram", 1, 0),
        ("suffix", 1, 0),
    ]


def test_plain_decoding_that_does_not_repeat_itself_is_the_reason_where_it_does_not() -> None:
    rounds = [
        measured(number=0),
        measured("ngram", number=0, texts=OTHER),
        measured(number=1, texts=OTHER),
        measured("ngram", number=1, texts=OTHER),
    ]
    found = only(*rounds)
    assert (len(found.differences), found.unsettled) == (1, 1)
    assert "plain decoding does not repeat" in found.reason("float32")
    assert "does not repeat" not in only(*rounds[:2]).reason("float32")


def test_in_float32_one_request_at_a_time_a_difference_is_a_fault() -> None:
    alone = only(measured(), measured("ngram", texts=OTHER))
    assert "fault" in alone.reason("float32")
    assert "bfloat16 can tip" in alone.reason("bfloat16")
    assert "fewer than 32 bits can tip" in alone.reason("")
    batch = only(measured("off", 4), measured("ngram", 4, texts=OTHER))
    assert "fault" not in batch.reason("float32")
