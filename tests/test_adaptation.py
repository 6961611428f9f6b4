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
    "gain": 1.5,
}


def test_it_is_what_the_engine_tells() -> None:
    known = Adaptation.told(STATE)
    assert (known.most, known.tokens, known.batch, known.changes) == (4, 4, 12, 3)
    assert known.yields == {0: 1.0, 2: 2.0, 4: 3.0}
    assert known.seconds == {0: 0.010, 2: 0.015, 4: 0.020}
    assert (known.trials, known.reason, known.gain) == (0.004, STATE["reason"], 1.5)


def test_it_is_told_as_it_was() -> None:
    known = Adaptation.told(STATE)
    assert known.tell() == STATE
    assert Adaptation.told(Adaptation(4).tell()) == Adaptation(4)
