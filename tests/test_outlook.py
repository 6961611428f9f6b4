import numpy as np
import pytest

from specworker.outlook import Outlook

CHOICES = (0, 1, 4)
CURVE = (0.010, 0.012, 0.020)
ACCEPTED = np.array([0.9, 0.6, 0.3, 0.1])


def test_a_step_gains_what_is_accepted_and_takes_what_its_drafts_take() -> None:
    found = Outlook.of(CHOICES, CURVE, ACCEPTED)
    assert found.tokens == pytest.approx([1.0, 1.9, 2.9])
    assert found.seconds == CURVE
    assert found.goodput(2) == pytest.approx(2.9 / 0.020)
    assert found.gain(1, 0) == pytest.approx(1.9 / 1.2)


def test_a_choice_loses_the_time_that_its_tokens_are_not_worth() -> None:
    found = Outlook.of(CHOICES, (0.010, 0.020, 0.040), ACCEPTED)
    assert found.lost(1, 0) == pytest.approx(0.020 - 1.9 * 0.010)
    assert found.lost(0, 1) == pytest.approx(0.0)


def test_a_change_is_told_with_what_speaks_for_it() -> None:
    found = Outlook.of(CHOICES, CURVE, ACCEPTED)
    assert found.change(CHOICES, 0, 2, 12) == (
        "K 0 → 4: 2.9 tokens per step at batch 12, 1.45 times as fast"
    )
    assert found.change(CHOICES, 2, 0, 12) == (
        "K 4 → 0: 2.9 tokens per step at batch 12 does not pay"
    )
