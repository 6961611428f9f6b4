"""How sure a speed-up is, beside a reference implementation."""

import math
import random

import pytest
from scipy import stats

from specworker.speedup import QUANTILES, Speedup, quantile

RATIOS = [1.42, 1.61, 1.38, 1.55, 1.49]


@pytest.mark.parametrize("degrees", [*range(1, len(QUANTILES) + 1), 31, 40, 100, 1000])
def test_quantiles_are_those_of_students_t(degrees: int) -> None:
    assert quantile(degrees) == pytest.approx(stats.t.ppf(0.95, degrees), abs=2e-3)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_interval_is_students_on_the_logarithm(count: int) -> None:
    found = Speedup.of(RATIOS[:count])
    logs = [math.log(ratio) for ratio in RATIOS[:count]]
    low, high = stats.ttest_1samp(logs, 0).confidence_interval(0.9)
    assert (found.lower, found.upper) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-3)


def test_it_is_beside_the_median_and_the_rounds() -> None:
    found = Speedup.of(RATIOS)
    assert (found.median, found.low, found.high, found.rounds) == (1.49, 1.38, 1.61, 5)
    assert f"{found}" == "1.49 (1.40–1.58)"
    assert found.as_object() == {
        "median": 1.49,
        "low": 1.38,
        "high": 1.61,
        "lower": found.lower,
        "upper": found.upper,
        "rounds": 5,
    }


def test_one_round_tells_nothing_of_how_sure_it_is() -> None:
    found = Speedup.of([3.0])
    assert (found.is_settled, found.is_faster, found.is_slower) == (False, False, False)
    assert not found.pays(0.1)
    assert f"{found}" == "3.00"
    assert (found.as_object()["lower"], found.as_object()["upper"]) == (None, None)


def test_slower_is_as_sure_as_faster() -> None:
    faster, slower = Speedup.of(RATIOS), Speedup.of([1 / ratio for ratio in RATIOS])
    assert (slower.lower, slower.upper) == pytest.approx((1 / faster.upper, 1 / faster.lower))
    assert (faster.is_faster, faster.is_slower) == (slower.is_slower, slower.is_faster)


@pytest.mark.parametrize(
    ("ratios", "pays"),
    [
        ([1.2, 1.25, 1.3], True),
        ([1.05, 1.06, 1.07], False),  # surely faster, and by too little
        ([1.01, 1.3, 1.9], False),  # by the margin in half of the rounds, and not surely
        ([1.1, 1.1], True),
    ],
)
def test_it_pays_where_it_is_surely_faster_and_by_the_margin(
    ratios: list[float], pays: bool
) -> None:
    assert Speedup.of(ratios).pays(0.1) is pays


@pytest.mark.parametrize("rounds", [2, 3, 6])
def test_noise_without_a_gain_seldom_pays(rounds: int) -> None:
    drawn = random.Random(1)
    found = [
        Speedup.of([math.exp(drawn.gauss(0, 0.1)) for _ in range(rounds)]) for _ in range(2000)
    ]
    assert sum(one.is_faster for one in found) / len(found) == pytest.approx(0.05, abs=0.015)
    assert sum(one.is_slower for one in found) / len(found) == pytest.approx(0.05, abs=0.015)
