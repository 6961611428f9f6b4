from collections.abc import Callable
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.sample import rejection_sampler

from specworker.inside_vllm import corrections
from specworker.inside_vllm.corrections import (
    CORRECTED_VERSION,
    CORRECTIONS,
    IN_CORE,
    Correction,
)


def unused(*_: Any, **__: Any) -> Any:
    pytest.fail("vLLM's function is not to be called")


# Repeating a value for each of a request's drafted tokens.

expand = corrections.expand_batch_to_tokens(unused)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
@pytest.mark.parametrize(
    ("values", "counts"),
    [
        ([7, 8, 9], [2, 3, 1]),
        ([7, 8, 9], [0, 3, 0]),
        ([7, 8, 9], [0, 0, 0]),
        ([7], [4]),
        ([0, 5, 0], [1, 0, 2]),
        ([], []),
    ],
)
def test_each_value_is_repeated_by_its_count(
    dtype: torch.dtype, values: list[int], counts: list[int]
) -> None:
    x = torch.tensor(values, dtype=dtype)
    ends = torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    expanded = expand(x, ends, sum(counts))
    expected = [value for value, count in zip(values, counts, strict=True) for _ in range(count)]
    assert expanded.dtype == dtype
    assert expanded.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_a_value_is_replaced_where_it_is_found_and_nowhere_else(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 5, 0, 1], dtype=dtype)
    ends = torch.tensor([1, 3, 5, 6], dtype=torch.int32)
    expanded = expand(x, ends, 6, replace_from=0, replace_to=1)
    assert expanded.dtype == dtype
    assert expanded.tolist() == [1, 5, 5, 1, 1, 1]
    assert x.tolist() == [0, 5, 0, 1]


def test_temperatures_between_integers_are_kept() -> None:
    x = torch.tensor([0.0, 0.7], dtype=torch.float32)
    expanded = expand(x, torch.tensor([2, 3], dtype=torch.int32), 3, replace_from=0, replace_to=1)
    assert torch.equal(expanded, torch.tensor([1.0, 1.0, 0.7]))


# Temperature, top_k and top_p of drafted tokens.


def test_a_step_without_drafts_is_sampled_as_one_without_speculation() -> None:
    own = SimpleNamespace(sampler=lambda **asked: asked)
    corrected = corrections.rejection_sampler_forward(unused)
    sampled = corrected(own, SimpleNamespace(max_spec_len=0), None, "logits", "asked")
    assert sampled == {"logits": "logits", "sampling_metadata": "asked"}


def test_a_step_with_drafts_is_vllms_own_business() -> None:
    given = (SimpleNamespace(), SimpleNamespace(max_spec_len=1), None, "logits", "asked")

    def original(*arguments: Any) -> str:
        assert arguments == given
        return "verified"

    assert corrections.rejection_sampler_forward(original)(*given) == "verified"


def test_drafted_tokens_are_sampled_as_the_request_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", expand)
    logits = torch.tensor([[1.0, 2.0, 4.0]] * 4)
    asked: Any = SimpleNamespace(
        all_greedy=False,
        temperature=torch.tensor([0.0, 2.0, 0.5]),
        top_k=torch.tensor([3, 3, 1], dtype=torch.int32),
        top_p=None,
    )
    counts = torch.tensor([1, 1, 4], dtype=torch.int32)
    constrained = rejection_sampler.apply_sampling_constraints(logits, counts, asked)
    hidden = float("-inf")
    assert constrained.tolist() == [[1, 2, 4]] + [[hidden, hidden, 8]] * 3


# Seeds of requests whose prompt is not yet whole.


class Runner(SimpleNamespace):
    """As much of vLLM's model runner as the corrections touch."""

    def __init__(self, discarded: list[bool], generators: dict[int, Any]) -> None:
        super().__init__(
            input_batch=SimpleNamespace(generators=generators, num_reqs=3),
            discard_request_mask=SimpleNamespace(np=np.array(discarded)),
            seen=[],
        )

    def look(self, *arguments: Any, **named: Any) -> Any:
        """Stand in for vLLM's function: remember which rows have a generator now."""
        self.seen.append(sorted(self.input_batch.generators))
        return (arguments, named)


sample = corrections.sample(Runner.look)
bookkeeping = corrections.bookkeeping_sync(Runner.look)


@pytest.mark.parametrize(
    ("discarded", "drawn_from"),
    [
        ([False, False, False], [0, 1, 2]),
        ([True, False, False], [1, 2]),
        ([False, True, True], [0]),
        ([True, True, True], []),
    ],
)
def test_a_discarded_row_draws_nothing_from_its_seed(
    discarded: list[bool], drawn_from: list[int]
) -> None:
    generators = {row: torch.Generator() for row in range(3)}
    runner = Runner(discarded, dict(generators))
    held = runner.input_batch.generators
    sample(runner)
    bookkeeping(runner)
    assert runner.seen == [drawn_from, drawn_from]
    assert runner.input_batch.generators is held
    assert held == generators


def test_rows_without_a_seed_need_nothing() -> None:
    runner = Runner([True, True, False], {1: "one"})
    sample(runner)
    assert runner.input_batch.generators == {}
    bookkeeping(runner)
    assert runner.input_batch.generators == {1: "one"}


def test_rows_beyond_the_batch_are_left_alone() -> None:
    runner = Runner([False, False, False, True], {3: "stale"})
    sample(runner)
    assert runner.seen == [[3]]


def test_a_generator_sits_out_one_step_only() -> None:
    runner = Runner([True, False, False], {0: "zero"})
    sample(runner)
    bookkeeping(runner)
    runner.discard_request_mask.np[:] = False
    sample(runner)
    bookkeeping(runner)
    assert runner.seen == [[], [], [0], [0]]


@pytest.mark.parametrize("corrected", [sample, bookkeeping])
def test_vllms_own_arguments_and_answer_pass_unchanged(corrected: Callable[..., Any]) -> None:
    runner = Runner([False, False, False], {})
    runner.generators_sitting_out = {}
    assert corrected(runner, 1, two=2) == ((1,), {"two": 2})


# Drafts under a batch-size schedule.


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(3, [[1, 2, 3], [], [4]]), (2, [[1, 2], [], [4]]), (0, [[], [], []])],
)
def test_suffix_drafts_are_cut_to_the_tokens_of_the_step(
    tokens: int, expected: list[list[int]]
) -> None:
    def propose(self: Any, num_speculative_tokens: int, *rest: Any, **kw: Any) -> list[list[int]]:
        assert num_speculative_tokens == self.num_speculative_tokens
        assert (rest, kw) == (("batch", "sampled"), {"slot_mappings": None})
        return [[1, 2, 3], [], [4]]

    proposer = SimpleNamespace(num_speculative_tokens=3)
    corrected = corrections.suffix_propose(propose)
    assert corrected(proposer, tokens, "batch", "sampled", slot_mappings=None) == expected


def test_medusa_drafts_are_cut_to_the_tokens_of_the_step() -> None:
    drafts = torch.tensor([[1, 2, 3], [4, 5, 6]])
    hidden = torch.zeros((2, 8))

    def propose(
        self: Any, num_speculative_tokens: int, target_hidden_states: torch.Tensor, **kw: Any
    ) -> torch.Tensor:
        assert num_speculative_tokens == self.num_speculative_tokens
        assert target_hidden_states is hidden
        assert kw == {"sampling_metadata": "m", "slot_mappings": None}
        return drafts

    proposer = SimpleNamespace(num_speculative_tokens=3)
    corrected = corrections.medusa_propose(propose)
    for tokens in (3, 2, 1):
        cut = corrected(
            proposer,
            num_speculative_tokens=tokens,
            target_hidden_states=hidden,
            sampling_metadata="m",
            slot_mappings=None,
        )
        assert cut.tolist() == drafts[:, :tokens].tolist()


# Whether a batch fits in the draft's window.


def runner(method: str = "draft_model", *, by_row: bool = False, ahead: bool = False) -> Any:
    drafter = SimpleNamespace(drafts_row_by_row=True) if by_row else SimpleNamespace()
    config = SimpleNamespace(method=method)
    return SimpleNamespace(drafter=drafter, speculative_config=config, use_async_scheduling=ahead)


@pytest.mark.parametrize(
    "own", [runner(by_row=True), runner("ngram"), runner("suffix"), runner("medusa")]
)
def test_drafters_that_look_at_each_request_are_asked_whatever_the_longest_is(own: Any) -> None:
    corrected = corrections.input_fits_in_drafter(unused)
    assert corrected(own, SimpleNamespace(max_seq_len=10**6))
    assert not corrected(own, None)


@pytest.mark.parametrize("own", [runner(), runner("eagle"), runner("ngram", ahead=True)])
@pytest.mark.parametrize("fits", [True, False])
def test_other_drafters_are_asked_as_vllm_decides(own: Any, fits: bool) -> None:
    asked: list[Any] = []

    def original(*given: Any) -> bool:
        asked.append(given)
        return fits

    assert corrections.input_fits_in_drafter(original)(own, "metadata") is fits
    assert asked == [(own, "metadata")]


# Steps that draft nothing.


def resting_runner(method: str, drafter: Any, *, ahead: bool = False) -> Any:
    return SimpleNamespace(
        drafter=drafter,
        speculative_config=SimpleNamespace(method=method),
        use_async_scheduling=ahead,
        input_batch=SimpleNamespace(num_reqs=2),
    )


def scheduled(tokens: int) -> Any:
    return SimpleNamespace(
        num_spec_tokens_to_schedule=tokens, num_scheduled_tokens={"a": 1, "b": 7}
    )


@pytest.mark.parametrize("method", ["ngram", "medusa"])
def test_nothing_is_prepared_for_drafts_of_nothing(method: str) -> None:
    own = resting_runner(method, SimpleNamespace())
    corrected = corrections.propose_draft_token_ids(unused)
    assert corrected(own, scheduled(0), [[1], [2]]) == [[], []]


def test_a_draft_model_hears_of_the_tokens_that_it_sits_out() -> None:
    heard: list[Any] = []
    own = resting_runner("draft_model", SimpleNamespace(rest=heard.append))
    assert corrections.propose_draft_token_ids(unused)(own, scheduled(0), None) == [[], []]
    assert heard == [{"a": 1, "b": 7}]


@pytest.mark.parametrize(
    ("own", "tokens"),
    [
        (resting_runner("ngram", SimpleNamespace()), 1),
        (resting_runner("ngram", SimpleNamespace(), ahead=True), 0),
        (resting_runner("suffix", SimpleNamespace()), 0),
        (resting_runner("eagle", SimpleNamespace()), 0),
        (resting_runner("draft_model", SimpleNamespace()), 0),
    ],
)
def test_a_drafter_that_drafts_or_cannot_rest_is_asked(own: Any, tokens: int) -> None:
    given = (own, scheduled(tokens), "sampled", "more")

    def original(*arguments: Any, **named: Any) -> str:
        assert (arguments, named) == (given, {"slot_mappings": None})
        return "drafts"

    corrected = corrections.propose_draft_token_ids(original)
    assert corrected(*given, slot_mappings=None) == "drafts"


def test_drafts_are_fetched_unless_the_step_made_none() -> None:
    fetched: list[Any] = []
    corrected = corrections.post_step(lambda _, executed: fetched.append(executed))
    corrected(SimpleNamespace(scheduler=SimpleNamespace()), True)
    corrected(SimpleNamespace(scheduler=SimpleNamespace(drafted_nothing=False)), False)
    corrected(SimpleNamespace(scheduler=SimpleNamespace(drafted_nothing=True)), True)
    assert fetched == [True, False]


# Putting them in.


def current(correction: Correction) -> Any:
    return getattr(resolve_name(correction.owner), correction.name)


@pytest.fixture
def originals(monkeypatch: pytest.MonkeyPatch) -> dict[Correction, Any]:
    """vLLM's own functions, which come back after the test."""
    functions = {correction: current(correction) for correction in (*CORRECTIONS, *IN_CORE)}
    for correction, function in functions.items():
        assert not hasattr(function, "corrects")
        monkeypatch.setattr(resolve_name(correction.owner), correction.name, function)
    return functions


@pytest.mark.parametrize("version", ["0.31.9", "0.32.1", "0.32.0rc1", ""])
def test_another_version_is_left_as_it_is_with_a_warning(
    originals: dict[Correction, Any],
    version: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(
        corrections.logger, "warning", lambda text, *values: warnings.append(text % values)
    )
    assert corrections.apply(version, on_cpu=True) == []
    assert {correction: current(correction) for correction in originals} == originals
    (warning,) = warnings
    assert version in warning
    assert CORRECTED_VERSION in warning


@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_correction_goes_in_where_its_fault_is(
    originals: dict[Correction, Any], *, on_cpu: bool
) -> None:
    applied = corrections.apply(CORRECTED_VERSION, on_cpu=on_cpu)
    assert applied == [each for each in CORRECTIONS if on_cpu or not each.cpu_only]
    for correction, original in originals.items():
        if correction in applied:
            assert current(correction) is not original
            assert current(correction).corrects == correction.fault
        else:
            assert current(correction) is original


def test_the_core_has_corrections_of_its_own(originals: dict[Correction, Any]) -> None:
    assert corrections.apply(CORRECTED_VERSION, on_cpu=False, corrections=IN_CORE) == [*IN_CORE]
    for correction, original in originals.items():
        assert (current(correction) is original) is (correction not in IN_CORE)


def test_some_corrections_are_for_every_platform_and_some_for_cpus() -> None:
    assert {correction.cpu_only for correction in CORRECTIONS} == {True, False}


def test_corrections_go_in_once(originals: dict[Correction, Any]) -> None:
    corrections.apply(CORRECTED_VERSION, on_cpu=True)
    once = {correction: current(correction) for correction in CORRECTIONS}
    assert corrections.apply(CORRECTED_VERSION, on_cpu=True) == list(CORRECTIONS)
    assert {correction: current(correction) for correction in CORRECTIONS} == once


def test_vllm_is_as_it_was_after_these_tests() -> None:
    for correction in (*CORRECTIONS, *IN_CORE):
        assert not hasattr(current(correction), "corrects")
