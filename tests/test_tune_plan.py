"""What is measured to tune, before any engine starts."""

import json
from pathlib import Path

import pytest

from builder import tiny
from specworker import __main__, provenance, tune_plan
from specworker.errors import ConfigurationError
from specworker.measured import OFF
from specworker.tune_plan import TunePlan
from specworker.tuning import Setting


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("plan") / "target", layers=4)


def planned(folder: Path, *options: str, **variables: str) -> TunePlan:
    words = ["tune", "--workload", "chat", *options]
    environment = {"MODEL_NAME": str(folder), **variables}
    return tune_plan.of(__main__._parser().parse_args(words), environment, print)


def test_values_of_k_take_turns_with_off_in_one_engine(folder: Path) -> None:
    plan = planned(folder, "--methods", "ngram", "--ngrams", "2-4", "--max-k", "3")
    (candidate,) = plan.candidates
    trial = tune_plan.first_trial(candidate)
    assert [(arm.variant, arm.tokens) for arm in trial.arms] == [
        (OFF, 0),
        ("ngram 2-4 K=2", 2),
        ("ngram 2-4 K=3", 3),
    ]
    (place,) = trial.places
    assert place.variables
    assert place.variables["NUM_SPECULATIVE_TOKENS"] == "3"
    assert plan.first_manner.rounds == 1


def test_the_best_are_confirmed_as_they_would_be_set_beside_an_engine_without(
    folder: Path,
) -> None:
    plan = planned(folder, "--methods", "ngram", "--ngrams", "2-4", SPECULATIVE_METHOD="suffix")
    fixed, scheduled = Setting("ngram 2-4", {1: 2, 4: 2}), Setting("ngram 2-4", {1: 4, 4: 0})
    trial = tune_plan.last_trial(plan, [fixed, scheduled])
    assert [(arm.variant, arm.tokens, arm.place) for arm in trial.arms] == [
        (OFF, None, 0),
        ("ngram 2-4 K=2", None, 1),
        ("ngram 2-4 K=4,0 by batch", None, 2),
    ]
    plain, *drafting = [dict(place.variables or {}) for place in trial.places]
    assert "SPECULATIVE_METHOD" not in plain
    assert [one["NUM_SPECULATIVE_TOKENS"] for one in drafting] == ["2", "4"]
    limits = [one.get("SPECULATIVE_DISABLE_BY_BATCH_SIZE") for one in drafting]
    assert limits == [None, "1"]
    assert trial.name.endswith(tune_plan.CONFIRMED)


def test_engines_that_live_at_once_share_the_gpu(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "has_gpu", lambda: True)
    plan = planned(folder, "--methods", "ngram", "--ngrams", "2-4", GPU_MEMORY_UTILIZATION="0.9")
    trial = tune_plan.last_trial(plan, [Setting("ngram 2-4", {1: 2})])
    shares = [(place.variables or {})["GPU_MEMORY_UTILIZATION"] for place in trial.places]
    assert shares == ["0.450", "0.450"]


def test_off_may_be_the_same_engine(folder: Path) -> None:
    plan = planned(folder, "--methods", "ngram", "--ngrams", "2-4", "--off", "same")
    trial = tune_plan.last_trial(plan, [Setting("ngram 2-4", {1: 2})])
    assert [(arm.variant, arm.tokens) for arm in trial.arms] == [(OFF, 0), ("ngram 2-4 K=2", None)]
    assert len(trial.places) == 1


def test_the_plan_can_be_read_and_says_how_long_it_takes(folder: Path) -> None:
    plan = planned(folder, "--methods", "ngram,mtp", "--ngrams", "2-4,3", "--concurrency", "1,2")
    lines = tune_plan.lines(plan)
    assert "requests in flight: 1, 2" in lines
    assert "tried: ngram 2-4, K = 2, 4, 8" in lines
    assert "tried: ngram 3-3, K = 2, 4, 8" in lines
    assert any(line.startswith("not tried: mtp: SPECULATIVE_METHOD=mtp") for line in lines)
    assert "2 starts of an engine" in next(line for line in lines if line.startswith("time to try"))
    assert json.loads(json.dumps(plan.as_object())) == plan.as_object()


def test_one_round_confirms_nothing_and_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="--rounds 1: settles nothing; allowed: 2 or more"):
        planned(folder, "--methods", "ngram", "--rounds", "1")


def test_a_plan_with_nothing_to_try_says_why(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing can be tried:\nmtp: "):
        planned(folder, "--methods", "mtp")


@pytest.mark.parametrize(
    ("option", "text", "says"),
    [
        ("--methods", "ngram,eagle9", "eagle9; allowed: configured, ngram, suffix, draft"),
        ("--ngrams", "4-2", "'4-2'; allowed: such as 2-4"),
        ("--ngrams", "x", "'x'; allowed: an integer from 1 on"),
    ],
)
def test_an_option_that_is_wrong_is_named(
    option: str, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        __main__.main(["tune", "--workload", "chat", option, text])
    assert f"argument {option}: {says}" in capsys.readouterr().err
