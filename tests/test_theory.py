"""Figures of arXiv 2211.17192 and of measured acceptance."""

import pytest

from specworker import theory

#: α -> by K: tokens per step, and the speed-up where a drafted token costs 0.05 steps.
EXPECTED = {
    0.5: {1: (1.50, 1.43), 2: (1.75, 1.59), 3: (1.88, 1.63), 4: (1.94, 1.61), 7: (1.99, 1.48)},
    0.7: {1: (1.70, 1.62), 2: (2.19, 1.99), 3: (2.53, 2.20), 5: (2.94, 2.35), 7: (3.14, 2.33)},
    0.8: {1: (1.80, 1.71), 2: (2.44, 2.22), 3: (2.95, 2.57), 5: (3.69, 2.95), 7: (4.16, 3.08)},
    0.9: {1: (1.90, 1.81), 2: (2.71, 2.46), 3: (3.44, 2.99), 5: (4.69, 3.75), 7: (5.70, 4.22)},
}


@pytest.mark.parametrize("alpha", EXPECTED)
def test_tokens_per_step_and_speed_follow_from_the_chance_of_acceptance(alpha: float) -> None:
    for tokens, (length, times) in EXPECTED[alpha].items():
        found = theory.expected_length(alpha, tokens)
        assert found == pytest.approx(length, abs=0.005)
        assert theory.speedup(found, tokens, 0.05) == pytest.approx(times, abs=0.0051)


def test_nothing_accepted_and_everything_accepted() -> None:
    assert theory.expected_length(0.0, 4) == 1
    assert theory.expected_length(1.0, 4) == 5


@pytest.mark.parametrize(("alpha", "pays"), [(0.2, True), (0.05, False), (0.04, False)])
def test_drafting_pays_only_where_acceptance_is_above_its_cost(alpha: float, pays: bool) -> None:
    best = max(
        theory.speedup(theory.expected_length(alpha, tokens), tokens, 0.05)
        for tokens in range(1, 8)
    )
    assert (best > 1 + 1e-9) == pays


def test_acceptance_by_position_gives_the_length_of_each_smaller_k() -> None:
    shares = (0.76, 0.54, 0.39)
    assert theory.mean_length(shares) == pytest.approx(2.69)
    assert theory.mean_lengths(shares) == pytest.approx((1, 1.76, 2.30, 2.69))
    assert theory.mean_lengths(()) == (1,)


def test_goodput_counts_the_whole_batch() -> None:
    plain = theory.goodput(16, 1, 0.0073)
    drafting = theory.goodput(16, 1 + 0.76 + 0.54 + 0.39 + 0.28, 0.0108)
    assert plain == pytest.approx(2192, abs=1)
    assert drafting / plain == pytest.approx(2.01, abs=0.005)
