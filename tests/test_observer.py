from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.metrics.stats import (
    FinishedRequestStats,
    IterationStats,
    RequestSpecDecodeMetrics,
    RequestStateStats,
    SchedulerStats,
)
from vllm.v1.spec_decode.metrics import SpecDecodingStats

from builder import heads, tiny
from specworker import model_size
from specworker.acceptance import Acceptance
from specworker.acceptance_rule import AcceptanceRule
from specworker.inside_vllm import observer, rule_config
from specworker.live import Live, Setup

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
TYPICAL = {"name": "typical_acceptance_sampler", "threshold": 0.1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a draft for it of a layer less, and an EAGLE head."""
    place = tmp_path_factory.mktemp("observer")
    heads.eagle(tiny.write(place / "model"), place / "eagle")
    tiny.write(place / "small", layers=1, seed=1)
    return place


def setup(folder: Path, speculative: Any, method: str | None = None, **options: Any) -> Setup:
    own = {"scheduler_cls": observer.SCHEDULER} | options
    config = EngineArgs(
        model=str(folder / "model"), speculative_config=speculative, max_num_seqs=4, **own
    ).create_engine_config()
    return observer.setup(config, method, "small", None)


# What an engine speculates with.


def test_a_lookup_costs_nothing_and_its_k_can_be_changed(folder: Path) -> None:
    assert setup(folder, NGRAM) == Setup("ngram", "small", 3, dtype="bfloat16")
    assert setup(folder, NGRAM, method="as it was asked for").method == "as it was asked for"


def test_a_schedule_is_told_for_every_batch(folder: Path) -> None:
    by_batch = [[1, 2, 3], [3, 3, 1], [4, 1000, 0]]
    found = setup(folder, NGRAM | {"num_speculative_tokens_per_batch_size": by_batch})
    assert found.schedule == (0, 3, 3, 1, 0)


def test_a_draft_model_costs_what_its_size_says(folder: Path) -> None:
    config = {"method": "draft_model", "model": str(folder / "small"), "num_speculative_tokens": 3}
    found = setup(folder, config)
    # One layer in place of two, beside an embedding and an output layer.
    assert 0.4 < found.cost < 0.6
    assert found.method == "draft_model"


def test_a_draft_model_of_unknown_size_has_the_usual_cost(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_size, "parameters", lambda _: None)
    config = {"method": "draft_model", "model": str(folder / "small"), "num_speculative_tokens": 3}
    assert setup(folder, config).cost == observer.DRAFT_MODEL_COST


def test_a_head_has_a_cost_of_its_own(folder: Path) -> None:
    config = {"method": "eagle", "model": str(folder / "eagle"), "num_speculative_tokens": 3}
    found = setup(folder, config)
    assert found.cost == observer.HEAD_COST
    assert str(found.at_zero).startswith("eagle still runs its layer once a step")


def test_plain_decoding_has_nothing_but_its_reason(folder: Path) -> None:
    config = EngineArgs(model=str(folder / "model")).create_engine_config()
    reason = "it is not in /runpod-volume/models/draft"
    told = Setup(fallback="it is not in <path>", dtype="bfloat16")
    assert observer.setup(config, None, None, reason) == told


def test_the_dtype_is_the_one_that_vllm_resolved(folder: Path) -> None:
    assert setup(folder, NGRAM, dtype="float32").dtype == "float32"
    assert setup(folder, NGRAM, dtype="half").dtype == "float16"


def test_the_rule_is_the_one_that_was_handed_over(folder: Path) -> None:
    found = setup(folder, NGRAM, additional_config={rule_config.KEY: {"rule": TYPICAL}})
    assert found.rule == AcceptanceRule("typical_acceptance_sampler", 0.1)
    block = setup(folder, NGRAM | {"rejection_sample_method": "block"})
    assert block.rule == AcceptanceRule("block")


def test_another_scheduler_keeps_its_k(folder: Path) -> None:
    other = "vllm.v1.core.sched.scheduler.Scheduler"
    assert str(setup(folder, NGRAM, scheduler_cls=other).fixed).endswith(other)
    assert str(setup(folder, NGRAM, scheduler_cls=None).fixed).endswith("None")


def test_replicas_keep_their_k(folder: Path) -> None:
    assert "replicas" in str(setup(folder, NGRAM, data_parallel_size=2).fixed)


# Steps.


def test_a_step_is_counted_with_its_drafts() -> None:
    live = Live(Setup("ngram", None, 3))
    logger = observer.stat_logger(live)(SimpleNamespace(), 1)
    drafts = SpecDecodingStats.new(3)
    drafts.observe_draft(3, 2)
    drafts.observe_draft(2, 0)
    step = IterationStats()
    step.num_generation_tokens = 4
    stats = SchedulerStats(
        num_running_reqs=2,
        num_waiting_reqs=1,
        num_skipped_waiting_reqs=4,
        spec_decoding_stats=drafts,
    )
    logger.record(stats, step, mm_cache_stats=None, engine_idx=1)
    assert live.total == Acceptance(4, 2, 5, 2, (1, 1, 0), (2, 2, 1))
    assert (live.running, live.waiting) == (2, 5)
    logger.record(None, step, mm_cache_stats=None, engine_idx=1)
    assert (live.total.generated, live.running) == (8, 2)
    logger.record(SchedulerStats(), None, mm_cache_stats=None, engine_idx=1)
    assert (live.total.generated, live.running) == (8, 0)


# Requests.


class Processor:
    """As much of vLLM's output processor as counts the requests that have ended."""

    def __init__(self) -> None:
        self.counted: list[FinishedRequestStats] = []

    def _update_stats_from_finished(self, state: Any, *_: Any) -> None:
        self.counted.append(state)

    def end(self, state: Any, step: IterationStats | None) -> None:
        self._update_stats_from_finished(state, None, step)


def ended(name: str, tokens: int | None = 21) -> Any:
    """A request that came at 100.0, and had its first token half a second later."""
    metrics = RequestSpecDecodeMetrics.new(3)
    metrics.observe(3, 2)
    metrics.observe(1, 0)
    detokenizer = SimpleNamespace(num_output_tokens=lambda: tokens)
    return SimpleNamespace(
        external_req_id=name,
        detokenizer=None if tokens is None else detokenizer,
        stats=RequestStateStats(arrival_time=100.0, first_token_latency=0.5),
        spec_decode_metrics=metrics,
    )


@pytest.fixture
def watched() -> tuple[Live, Processor, IterationStats]:
    live, processor, step = Live(Setup("ngram", None, 3)), Processor(), IterationStats()
    step.iteration_timestamp = 102.5
    observer.watch_requests(SimpleNamespace(output_processor=processor), live)
    return live, processor, step


def test_a_request_that_ended_is_noted_with_its_time_per_token(watched: Any) -> None:
    live, processor, step = watched
    processor.end(ended("cmpl-abc-0"), step)
    (request,) = live.finished()
    assert (request.id, request.finished, request.tokens) == ("cmpl-abc", 102.5, 21)
    assert request.elapsed == 2.5
    assert request.tpot == pytest.approx((2.5 - 0.5) / 20)
    assert (request.steps, request.drafted, request.accepted) == (2, 4, 2)
    assert live.answer("cmpl-abc")["num_draft_tokens"] == 4
    assert len(processor.counted) == 1


def test_a_request_of_one_token_has_no_time_per_token(watched: Any) -> None:
    live, processor, step = watched
    processor.end(ended("chatcmpl-abc", tokens=1), step)
    (request,) = live.finished()
    assert (request.tokens, request.tpot) == (1, None)


def test_a_request_without_figures_is_noted_without_them(watched: Any) -> None:
    live, processor, step = watched
    state = ended("chatcmpl-abc")
    state.spec_decode_metrics = None
    processor.end(state, step)
    (request,) = live.finished()
    assert (request.steps, request.drafted, request.accepted) == (None, None, None)
    assert live.answer("chatcmpl-abc") is None


def test_what_generates_nothing_and_parts_of_a_beam_search_are_not_noted(watched: Any) -> None:
    live, processor, step = watched
    processor.end(ended("embd-abc", tokens=None), step)
    processor.end(ended("cmpl-abc-0-1234-beam-3"), step)
    processor.end(ended("cmpl-abc-0"), None)
    assert list(live.finished()) == []
    assert len(processor.counted) == 3


@pytest.mark.parametrize(
    ("request_id", "answer"),
    [
        ("cmpl-abc-0", "cmpl-abc"),
        ("cmpl-my-7-12", "cmpl-my-7"),
        ("chatcmpl-abc", "chatcmpl-abc"),
        ("chatcmpl-my-7", "chatcmpl-my-7"),
        ("chatcmpl-my_7", "chatcmpl-my_7"),
        ("resp_abc_0", "resp_abc"),
        ("resp_my_7_12", "resp_my_7"),
        ("generate-tokens-abc-1", "generate-tokens-abc-1"),
    ],
)
def test_a_request_is_part_of_an_answer(request_id: str, answer: str) -> None:
    assert observer.answer_id(request_id) == answer
