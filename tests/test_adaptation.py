import pytest

from specworker.adaptation import Adaptation

STATE = {
    "most": 4,
    "tokens": 4,
    "batch": 12,
    "yields": [[0, 1.0], [2, 2.0], [4, 3.0]],
    "seconds": [[0, 0.010], [2, 0.015], [4, 0.020]],
    "changes": 3,
    "trials": 0.004,
    "reason": "K 2 → 4: 3.0 tokens per step at batch 12, 1.12 times as fast",
}


def test_it_is_what_the_engine_tells() -> None:
    known = Adaptation.told(STATE)
    assert (known.most, known.tokens, known.batch, known.changes) == (4, 4, 12, 3)
    assert known.yields == {0: 1.0, 2: 2.0, 4: 3.0}
    assert known.seconds == {0: 0.010, 2: 0.015, 4: 0.020}
    assert (known.trials, known.reason) == (0.004, STATE["reason"])


def test_it_is_told_as_it_was() -> None:
    known = Adaptation.told(STATE)
    assert known.tell() == STATE
    assert Adaptation.told(Adaptation(4).tell()) == Adaptation(4)


def test_its_gain_is_that_in_tokens_over_time() -> None:
    known = Adaptation.told(STATE)
    assert known.gain == pytest.approx((3.0 / 0.020) / (1.0 / 0.010))
    assert Adaptation.told(STATE | {"tokens": 0}).gain == 1.0


def test_before_anything_was_measured_its_gain_is_unknown() -> None:
    assert Adaptation.told(STATE | {"seconds": []}).gain is None
    assert Adaptation(4).gain is None
