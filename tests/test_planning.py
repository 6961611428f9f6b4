from dataclasses import replace

import pytest
from rich.console import Console

from specworker import planning, planning_table
from specworker.checkpoint import Checkpoint
from specworker.findings import EngineFacts, GpuFacts, Plan
from specworker.planning import GPU_TYPES, Planned, Row
from specworker.weights import Weights
from tests.published import CONFIGS

TARGET = Checkpoint("org/qwen-72b", CONFIGS["qwen2.5-72b"])
DRAFT = Checkpoint("org/llama-8b", CONFIGS["llama-3.1-8b"])
PLAN = Plan(
    {"method": "draft_model"},
    TARGET,
    DRAFT,
    engine=EngineFacts(max_num_seqs=0, max_num_batched_tokens=0, tensor_parallel_size=2),
)
FACTS = {kind: GpuFacts(kind.memory) for kind in GPU_TYPES}
OF_TARGET, OF_DRAFT = Weights(72_706_203_648, 145_412_407_296), Weights(None, 16_000_000_000)


def rows(plan: Plan = PLAN, context: int = 8192) -> dict[str, Row]:
    found = planning.rows(plan, FACTS, context, OF_TARGET, OF_DRAFT)
    assert found is not None
    return {row.gpu.split()[0]: row for row in found}


def test_every_type_of_gpu_has_a_row_and_says_what_fits() -> None:
    found = rows()
    assert list(found) == ["RTX", "L40S", "A100", "H100", "H200", "B200"]
    assert [name for name, row in found.items() if not row.fits] == ["RTX", "L40S", "A100", "H100"]
    assert found["A100"].sequences_without_draft > 0
    assert found["RTX"].kv_cache_bytes == 0


def test_the_draft_costs_what_its_weights_and_its_cache_take() -> None:
    row = rows()["H200"]
    left = int(143_771 * 1024**2 * 0.92) - row.room_bytes - OF_TARGET.size // 2
    per_token = 80 * 2 * 8 * 128 * 2 // 2, 32 * 2 * 8 * 128 * 2 // 2
    alone = left // (per_token[0] * 8192)
    beside = (left - OF_DRAFT.size // 2) // (sum(per_token) * 8192)
    assert (row.sequences_without_draft, row.sequences) == (alone, beside)
    assert row.draft_costs_sequences == alone - beside > 0


def test_a_longer_context_leaves_room_for_fewer() -> None:
    assert rows(context=32_768)["B200"].sequences < rows()["B200"].sequences


def test_batches_that_are_asked_for_replace_those_of_the_type() -> None:
    asked = replace(PLAN, engine=replace(PLAN.engine, max_num_batched_tokens=65_536))
    assert rows(asked)["H200"].room_bytes > rows()["H200"].room_bytes
    assert rows()["H100"].room_bytes > rows()["A100"].room_bytes


def test_nothing_is_made_up_for_a_model_that_does_not_say_enough() -> None:
    unknown = replace(PLAN, target=Checkpoint("org/x", {}))
    assert planning.rows(unknown, FACTS, 8192, OF_TARGET, OF_DRAFT) is None


def planned(*findings: tuple[str, str], gpus: int = 2) -> Planned:
    gpu = FACTS[GPU_TYPES[0]]
    return Planned(
        planning.model(PLAN, gpu, TARGET, OF_TARGET, of_draft=False),
        planning.model(PLAN, gpu, DRAFT, OF_DRAFT, of_draft=True),
        "speculation method=draft_model",
        8192,
        gpus,
        0.92,
        tuple(rows().values()),
        findings,
    )


def test_figures_of_a_model_are_those_of_all_its_gpus_together() -> None:
    found = planned()
    assert found.target.kv_bytes_per_token == pytest.approx(327_680, rel=0.01)
    assert found.draft
    assert (found.draft.parameters, found.draft.kv_bytes_per_token) == (None, 131_072)


def test_a_draft_works_unless_an_error_is_found() -> None:
    assert planned().works
    assert planned(("warning", "large")).works
    assert not planned(("error", "another vocabulary")).works


def test_programs_get_all_of_it() -> None:
    given = planned(("warning", "large")).as_object()
    assert given["findings"] == [{"severity": "warning", "text": "large"}]
    assert given["target"]["weight_bytes"] == OF_TARGET.size
    row = given["rows"][-1]
    assert row["draft_costs_sequences"] == row["sequences_without_draft"] - row["sequences"]


def text(found: Planned) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(planning_table.of(found))
    return captured.get()


def test_people_get_a_table() -> None:
    shown = text(planned())
    lines = [line.split() for line in shown.splitlines()]
    assert ["target", "org/qwen-72b", "73B", "135.43", "327680", "config,", "estimated"] in lines
    assert any(line[:2] == ["draft", "org/llama-8b"] and "unknown" in line for line in lines)
    row = rows()["B200"]
    (line,) = (line for line in lines if line[:1] == ["B200"])
    assert line[3] == "yes"
    assert line[-2:] == [f"{row.sequences}", f"{row.draft_costs_sequences}"]
    assert "92% of each of 2 GPUs" in shown
    assert "92% of 1 GPU." in text(planned(gpus=1))


def test_without_a_draft_nothing_is_said_of_its_cost() -> None:
    assert "draft" not in text(replace(planned(), draft=None, speculation="speculation off"))
