"""Drafting for each request of a batch by itself: off where it is off, and nowhere else.

vLLM 0.32.0 drafts for the whole batch or for none of it. At K = 0 a draft model still
runs over every token, to keep its KV cache right; and one request beyond the draft's
window stops the drafts of all, while K zeros are verified in their place. Here a draft
model rests while it is not needed and catches up when it is, and requests beyond the
window are left out.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.forward_context import set_forward_context
from vllm.logger import init_logger
from vllm.v1.spec_decode.draft_model import DraftModelProposer
from vllm.v1.spec_decode.eagle import EagleProposer

from specworker.inside_vllm import draft_batch, whole_batch
from specworker.inside_vllm.draft_batch import Ints
from specworker.inside_vllm.draft_cache import DraftCache

logger = init_logger(f"vllm.{__name__}")


class RowByRow:
    """What vLLM's proposers lack; stands before one of them among a class's bases."""

    drafts_row_by_row = True
    runner: Any
    _last_draft_probs: torch.Tensor | None

    def propose(self, num_speculative_tokens: int, **step: Any) -> torch.Tensor | list[list[int]]:
        """Draft for the requests within the draft's window.

        Returns:
            Drafted tokens, [requests, K]; or a list of each request's, some of them empty.
        """
        self._last_draft_probs = None
        starts, ends = self._positions(step["common_attn_metadata"])
        rows = np.flatnonzero(self._within(ends))
        if rows.size == starts.size:
            return self._run(num_speculative_tokens, step)
        if not rows.size:
            return [[] for _ in starts]
        drafts = self._run(num_speculative_tokens, draft_batch.part(rows, **step))
        self._spread_probabilities(rows, starts.size)
        by_row: list[list[int]] = [[] for _ in starts]
        for row, draft in zip(rows.tolist(), drafts.tolist(), strict=True):
            by_row[row] = draft
        return by_row

    def _run(self, num_speculative_tokens: int, step: dict[str, Any]) -> torch.Tensor:
        drafts: torch.Tensor = super().propose(  # type: ignore[misc]
            num_speculative_tokens=num_speculative_tokens, **step
        )
        return drafts

    def _positions(self, metadata: Any) -> tuple[Ints, Ints]:
        """First position of each request in this step, and the one after its last."""
        counts = np.diff(metadata.query_start_loc_cpu.numpy())
        starts: Ints = self.runner.input_batch.num_computed_tokens_cpu[: counts.size].copy()
        return starts, starts + counts

    def _within(self, ends: Ints) -> NDArray[np.bool_]:
        """Which requests, of the given lengths, the draft's window has room to draft for."""
        longest = self.runner.effective_drafter_max_model_len - self.runner.num_spec_tokens
        within: NDArray[np.bool_] = ends <= longest
        return within

    def _spread_probabilities(self, rows: Ints, requests: int) -> None:
        """Put the draft's probabilities at the rows of their requests, as the runner reads them."""
        if (of_rows := self._last_draft_probs) is not None:
            whole = of_rows.new_zeros((requests, *of_rows.shape[1:]))
            whole[torch.from_numpy(rows).to(whole.device)] = of_rows
            self._last_draft_probs = whole


class Head(RowByRow, EagleProposer):  # type: ignore[misc]
    """EAGLE and MTP. Their layer runs at K = 0 too: it needs hidden states that are gone later."""


class DraftModel(RowByRow, DraftModelProposer):  # type: ignore[misc]
    """A draft model, which rests at K = 0 and reads what it missed when it drafts again."""

    _cache: DraftCache | None = None

    def rest(self, scheduled: Mapping[str, int]) -> None:
        """Sit out a step, which read so many tokens of each request, by its id."""
        batch = self.runner.input_batch
        counts = np.array([scheduled[name] for name in batch.req_ids], dtype=np.int32)
        starts = batch.num_computed_tokens_cpu[: counts.size]
        self._cache = self._cache or DraftCache(self.block_size)
        self._cache.passed_over(self._tables(counts.size), starts, starts + counts)

    def _tables(self, requests: int) -> Ints:
        """The requests' blocks, [requests, blocks]."""
        tables: Ints = self.runner.input_batch.block_table[0].block_table.np[:requests]
        return tables

    def propose(self, num_speculative_tokens: int, **step: Any) -> torch.Tensor | list[list[int]]:
        """Draft for the requests within the draft's window."""
        metadata = step["common_attn_metadata"]
        starts, ends = self._positions(metadata)
        cache = self._cache = self._cache or DraftCache(self.block_size)
        tables = self._tables(starts.size)
        within = self._within(ends)
        cache.passed_over(tables[~within], starts[~within], ends[~within])
        held = np.where(within, cache.held(tables, starts), starts)
        self._catch_up(tables, held, starts, metadata.block_table_tensor)
        cache.wrote(tables[within], held[within], ends[within])
        return super().propose(num_speculative_tokens, **step)

    def _catch_up(self, tables: Ints, starts: Ints, ends: Ints, on_device: torch.Tensor) -> None:
        """Run the draft over positions `starts` to `ends` of each request, for its KV cache."""
        tokens = self.runner.input_batch.token_ids_cpu
        for rows, first, last in draft_batch.packed(starts, ends, self.max_num_tokens):
            counts = last - first
            row_of = np.repeat(rows, counts)
            positions = draft_batch.ranges(first, counts)
            blocks = tables[row_of, positions // self.block_size].astype(np.int64)
            slots = blocks * self.block_size + positions % self.block_size
            self._read(
                torch.from_numpy(tokens[row_of, positions]),
                torch.from_numpy(positions),
                draft_batch.metadata(
                    on_device[torch.from_numpy(rows).to(self.device)],
                    torch.from_numpy(slots).to(self.device),
                    counts,
                    last,
                ),
            )

    def _read(self, tokens: torch.Tensor, positions: torch.Tensor, metadata: Any) -> None:
        """One forward pass of the draft whose only result is what it leaves in the KV cache."""
        count = tokens.shape[0]
        tokens = tokens.to(self.device)
        if self.vocab_mapping is not None:
            tokens = self.vocab_mapping.map_target_to_draft_ids(tokens)
        self.input_ids[:count] = tokens
        self.positions[:count] = positions.to(self.device)
        _, by_layer = self.build_per_group_and_layer_attn_metadata(metadata)
        mode, padded, across_ranks = self._determine_batch_execution_and_padding(count)
        inputs, size = self.build_model_inputs_first_pass(count, padded, None)
        with set_forward_context(
            by_layer,
            self.vllm_config,
            num_tokens=padded,
            num_tokens_across_dp=across_ranks,
            cudagraph_runtime_mode=mode,
            slot_mapping=self._get_slot_mapping(size, metadata.slot_mapping),
        ):
            self.model(**inputs)


def install(runner: Any) -> None:
    """Give the runner a proposer that drafts row by row, where that is safe."""
    kinds = {DraftModelProposer: DraftModel, EagleProposer: Head}
    kind = kinds.get(type(getattr(runner, "drafter", None)))
    if kind is None:
        return
    if reason := whole_batch.reason(runner.vllm_config):
        logger.info("drafting for the whole batch or none of it, as vLLM does: %s", reason)
        return
    runner.drafter = kind(vllm_config=runner.vllm_config, device=runner.device, runner=runner)
    runner.drafter.runner = runner
