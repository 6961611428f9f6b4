"""Parts of a step's batch, in the arguments that vLLM's proposers take."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.v1.attention.backend import CommonAttentionMetadata

Ints = NDArray[np.integer]


def ranges(starts: Ints, counts: Ints) -> Ints:
    """Every integer from each start on, as many as its count, one range after the other."""
    offsets = np.cumsum(counts) - counts
    result: Ints = np.arange(int(counts.sum())) + np.repeat(starts - offsets, counts)
    return result


def metadata(
    tables: torch.Tensor, slots: torch.Tensor, counts: Ints, ends: Ints
) -> CommonAttentionMetadata:
    """The attention metadata of some tokens of some requests.

    Args:
        tables: the requests' blocks, [requests, blocks].
        slots: where the tokens' keys and values go, [tokens].
        counts: tokens of each request.
        ends: tokens of each request up to and with its last one here.
    """
    bounds = torch.from_numpy(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
    lengths = torch.from_numpy(ends.astype(np.int32))
    return CommonAttentionMetadata(
        query_start_loc=bounds.to(tables.device),
        query_start_loc_cpu=bounds,
        seq_lens=lengths.to(tables.device),
        seq_lens_cpu_upper_bound=lengths,
        num_reqs=counts.size,
        num_actual_tokens=int(counts.sum()),
        max_query_len=int(counts.max()),
        max_seq_len=int(ends.max()),
        block_table_tensor=tables,
        slot_mapping=slots,
        causal=True,
    )


def part(rows: Ints, common_attn_metadata: CommonAttentionMetadata, **step: Any) -> dict[str, Any]:
    """The arguments of `propose` for some requests of a step.

    Args:
        rows: which requests, ascending.
        common_attn_metadata: of the whole step.
        step: the other arguments for the whole step.
    """
    whole = common_attn_metadata
    bounds = whole.query_start_loc_cpu.numpy()
    counts = np.diff(bounds)[rows]
    chosen = torch.from_numpy(rows).to(whole.seq_lens.device)
    tokens = torch.from_numpy(ranges(bounds[rows], counts)).to(whole.seq_lens.device)
    of_part = metadata(
        whole.block_table_tensor[chosen],
        whole.slot_mapping[tokens],
        counts,
        _upper_bounds(whole)[rows],
    )
    of_part.seq_lens = whole.seq_lens[chosen]
    result = {
        **step,
        "common_attn_metadata": of_part,
        "target_token_ids": step["target_token_ids"][tokens],
        "target_positions": step["target_positions"][tokens],
        "target_hidden_states": step["target_hidden_states"][tokens],
        "next_token_ids": step["next_token_ids"][chosen],
    }
    if (indices := step["token_indices_to_sample"]) is not None:
        moved = of_part.query_start_loc[:-1] - whole.query_start_loc[:-1][chosen]
        result["token_indices_to_sample"] = indices[chosen] + moved
    if (rejected := step["num_rejected_tokens_gpu"]) is not None:
        result["num_rejected_tokens_gpu"] = rejected[chosen]
    sampling = step["sampling_metadata"]
    if sampling.temperature is not None:
        temperature = sampling.temperature[chosen]
        result["sampling_metadata"] = replace(sampling, temperature=temperature)
    return result


def _upper_bounds(whole: CommonAttentionMetadata) -> Ints:
    """Lengths of the sequences as far as the host knows them: as if all drafts were accepted."""
    bounds = whole.seq_lens_cpu_upper_bound
    result: Ints = (whole.seq_lens.cpu() if bounds is None else bounds).numpy()
    return result


def packed(starts: Ints, ends: Ints, limit: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Split ranges, one a request, into batches of at most `limit` tokens, short ones first.

    Yields:
        Which requests a batch has tokens of, where these start and where they end. A long
        range goes into several batches, from its start on.
    """
    starts = starts.copy()
    while (left := np.flatnonzero(starts < ends)).size:
        left = left[np.argsort(ends[left] - starts[left], kind="stable")]
        counts = ends[left] - starts[left]
        taken = np.clip(limit - (np.cumsum(counts) - counts), 0, counts)
        rows, taken = left[taken > 0], taken[taken > 0]
        yield rows, starts[rows], starts[rows] + taken
        starts[rows] += taken
