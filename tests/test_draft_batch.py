from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.sample.metadata import SamplingMetadata

from specworker.inside_vllm import draft_batch
from specworker.inside_vllm.draft_batch import Ints


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


def test_ranges_follow_one_another() -> None:
    assert draft_batch.ranges(ints(3, 10, 7), ints(2, 0, 3)).tolist() == [3, 4, 7, 8, 9]
    assert draft_batch.ranges(ints(), ints()).tolist() == []


# Packing.


def batches(starts: Ints, ends: Ints, limit: int) -> list[list[tuple[int, int, int]]]:
    return [
        list(zip(*(part.tolist() for part in batch), strict=True))
        for batch in draft_batch.packed(starts, ends, limit)
    ]


def test_what_fits_goes_into_one_batch_shortest_first() -> None:
    assert batches(ints(0, 5, 2), ints(4, 6, 2), 8) == [[(1, 5, 6), (0, 0, 4)]]


def test_a_range_above_the_limit_is_fed_from_its_start_on() -> None:
    assert batches(ints(1), ints(8), 3) == [[(0, 1, 4)], [(0, 4, 7)], [(0, 7, 8)]]


def test_nothing_to_feed_gives_no_batch() -> None:
    assert batches(ints(4, 4), ints(4, 4), 3) == []


def test_every_token_is_fed_once_and_in_order() -> None:
    chance = np.random.default_rng(3)
    starts = chance.integers(0, 50, 12)
    ends = starts + chance.integers(0, 40, 12)
    fed: dict[int, list[int]] = {row: [] for row in range(12)}
    for batch in batches(starts, ends, 32):
        assert sum(last - first for _, first, last in batch) <= 32
        for row, first, last in batch:
            fed[row] += range(first, last)
    assert fed == {row: list(range(starts[row], ends[row])) for row in range(12)}


# Parts of a step.


def sampling(temperature: list[float] | None) -> SamplingMetadata:
    tensors: dict[str, Any] = dict.fromkeys(SamplingMetadata.__dataclass_fields__)
    given = None if temperature is None else torch.tensor(temperature)
    return SamplingMetadata(**tensors | {"temperature": given})


def step(**given: Any) -> dict[str, Any]:
    """Three requests with 2, 1 and 3 tokens, of lengths 2, 9 and 7."""
    metadata = draft_batch.metadata(
        torch.tensor([[1, 2], [3, 4], [5, 6]]),
        torch.tensor([16, 17, 72, 84, 85, 86]),
        ints(2, 1, 3),
        ints(2, 9, 7),
    )
    return {
        "common_attn_metadata": metadata,
        "target_token_ids": torch.tensor([10, 11, 20, 30, 31, 32]),
        "target_positions": torch.tensor([0, 1, 8, 4, 5, 6]),
        "target_hidden_states": torch.arange(6.0)[:, None],
        "next_token_ids": torch.tensor([12, 21, 33]),
        "token_indices_to_sample": None,
        "num_rejected_tokens_gpu": None,
        "sampling_metadata": sampling([0.1, 0.2, 0.3]),
        "slot_mappings": "untouched",
    } | given


def test_a_part_of_a_step_is_that_step_for_its_requests() -> None:
    part = draft_batch.part(ints(0, 2), **step())
    metadata = part["common_attn_metadata"]
    assert metadata.query_start_loc.tolist() == [0, 2, 5]
    assert metadata.query_start_loc_cpu.tolist() == [0, 2, 5]
    assert metadata.seq_lens.tolist() == [2, 7]
    assert metadata.seq_lens_cpu_upper_bound.tolist() == [2, 7]
    assert metadata.block_table_tensor.tolist() == [[1, 2], [5, 6]]
    assert metadata.slot_mapping.tolist() == [16, 17, 84, 85, 86]
    assert (metadata.num_reqs, metadata.num_actual_tokens) == (2, 5)
    assert (metadata.max_query_len, metadata.max_seq_len) == (3, 7)
    assert part["target_token_ids"].tolist() == [10, 11, 30, 31, 32]
    assert part["target_positions"].tolist() == [0, 1, 4, 5, 6]
    assert part["target_hidden_states"].tolist() == [[0], [1], [3], [4], [5]]
    assert part["next_token_ids"].tolist() == [12, 33]
    assert part["sampling_metadata"].temperature.tolist() == pytest.approx([0.1, 0.3])
    assert part["token_indices_to_sample"] is part["num_rejected_tokens_gpu"] is None
    assert part["slot_mappings"] == "untouched"


def test_the_tokens_to_sample_at_and_the_rejected_ones_are_those_of_the_part() -> None:
    given = step(
        token_indices_to_sample=torch.tensor([0, 2, 4]),
        num_rejected_tokens_gpu=torch.tensor([1, 0, 1]),
        sampling_metadata=sampling(None),
    )
    part = draft_batch.part(ints(1, 2), **given)
    assert part["token_indices_to_sample"].tolist() == [0, 2]
    assert part["num_rejected_tokens_gpu"].tolist() == [0, 1]
    assert part["sampling_metadata"] is given["sampling_metadata"]


def test_lengths_are_taken_from_the_device_where_the_host_does_not_know_them() -> None:
    given = step()
    given["common_attn_metadata"].seq_lens_cpu_upper_bound = None
    part = draft_batch.part(ints(1), **given)
    assert part["common_attn_metadata"].max_seq_len == 9
    assert isinstance(part["common_attn_metadata"], type(given["common_attn_metadata"]))
