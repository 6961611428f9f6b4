"""The K that is chosen, by published acceptance and step times (H100, Llama-3.1-8B)."""

import pytest
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

from specworker import choosing, theory
from specworker.choosing import Choice
from specworker.drafting import ANY_BATCH_SIZE

TOKENS = (0, 1, 3, 4, 5, 7)
E1 = (0.68, 0.39, 0.20, 0.10, 0.06, 0.03, 0.02)
E3 = (0.76, 0.54, 0.39, 0.28, 0.21, 0.15, 0.12)
LOW = (0.17, 0.15, 0.12, 0.01, 0.01, 0.01, 0.01)
SMALL = (6.87, 7.97, 9.41, 9.91, 10.8, 12.29)
#: Milliseconds of a step by batch size, for each of TOKENS; the last one is a cliff.
STEPS = {
    1: SMALL,
    4: SMALL,
    16: (7.3, 8.39, 9.95, 10.8, 11.59, 13.11),
    32: (7.64, 8.97, 10.78, 11.79, 12.81, 14.86),
    64: (8.53, 10.44, 13.16, 15.7, 17.54, 120.57),
}


def chosen(by_position: tuple[float, ...], margin: float) -> dict[int, Choice]:
    lengths = dict(enumerate(theory.mean_lengths(by_position)))
    return {
        size: choosing.best(lengths, dict(zip(TOKENS, times, strict=True)), margin)
        for size, times in STEPS.items()
    }


@pytest.mark.parametrize(
    ("by_position", "tokens", "gains"),
    [
        (E1, [3, 3, 3, 3, 3], [1.66, 1.66, 1.67, 1.61, 1.47]),
        (E3, [4, 4, 4, 4, 3], [2.06, 2.06, 2.01, 1.92, 1.74]),
        (LOW, [3, 3, 3, 3, 0], [1.05, 1.05, 1.06, 1.02, 1.00]),
    ],
)
def test_the_k_of_most_goodput_is_chosen(
    by_position: tuple[float, ...], tokens: list[int], gains: list[float]
) -> None:
    found = chosen(by_position, margin=0)
    assert [choice.tokens for choice in found.values()] == tokens
    assert [round(choice.gain, 2) for choice in found.values()] == gains


def test_no_drafts_win_unless_the_gain_passes_the_margin() -> None:
    assert set(chosen(LOW, 0.1).values()) == {Choice(0)}
    assert chosen(E1, 0.1) == chosen(E1, 0)
    assert {choice.tokens for choice in chosen(E1, 0.63).values()} == {0, 3}


def test_of_equal_ones_the_smaller_k_is_chosen() -> None:
    assert choosing.best({1: 1.5, 2: 1.5, 3: 1.5}, dict.fromkeys(range(4), 2.0)).tokens == 1


def test_nothing_is_concluded_for_a_k_that_was_not_measured() -> None:
    lengths = {1: 1.9, 2: 2.7, 3: 3.4}
    assert choosing.best(lengths, {0: 1.0, 1: 1.2}).tokens == 1
    assert choosing.gains({3: 3.4}, {0: 1.0, 1: 1.2, 2: 1.4}) == {}


def test_the_best_fixed_k_gains_most_over_all_batch_sizes_alike() -> None:
    by_batch = {1: {1: 1.5, 4: 2.0}, 32: {1: 1.2, 4: 0.7, 7: 3.0}}
    found = choosing.fixed(by_batch)
    assert found.tokens == 1
    assert found.gain == pytest.approx(1.8**0.5)
    assert choosing.fixed(by_batch, margin=0.5) == Choice(0)


def test_between_measured_batches_the_smaller_k_holds() -> None:
    assert choosing.schedule({1: 4, 4: 4, 16: 2, 64: 3}) == [
        [1, 4, 4],
        [5, 63, 2],
        [64, ANY_BATCH_SIZE, 3],
    ]
    assert choosing.schedule({4: 3}) == [[1, ANY_BATCH_SIZE, 3]]


def test_a_schedule_that_ends_drafting_is_one_number() -> None:
    rows = choosing.schedule({1: 3, 4: 3, 16: 0})
    assert rows == [[1, 4, 3], [5, ANY_BATCH_SIZE, 0]]
    assert choosing.limit(rows) == 4
    assert choosing.limit(choosing.schedule({1: 3, 4: 2, 16: 0})) is None
    assert choosing.limit(choosing.schedule({1: 3, 16: 2})) is None
    assert choosing.limit(choosing.schedule({1: 0, 16: 2})) is None
    assert choosing.limit(choosing.schedule({1: 3})) is None


def test_vllm_takes_the_schedule() -> None:
    rows = choosing.schedule({1: 4, 4: 3, 16: 0})
    dense = build_dynamic_sd_schedule_lookup(rows, 32, 4)
    assert dense[1:] == [4, 3, 3, 3, *[0] * 28]
