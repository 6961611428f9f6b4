import numpy as np

from specworker.inside_vllm.draft_cache import DraftCache, Ints

SIZE = 4


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int32)


def table(*rows: list[int]) -> Ints:
    return np.array(rows, dtype=np.int32)


def held(cache: DraftCache, blocks: list[int], end: int) -> int:
    return int(cache.held(table(blocks), ints(end))[0])


def passed_over(cache: DraftCache, blocks: list[int], start: int, end: int) -> None:
    cache.passed_over(table(blocks), ints(start), ints(end))


def wrote(cache: DraftCache, blocks: list[int], start: int, end: int) -> None:
    cache.wrote(table(blocks), ints(start), ints(end))


def test_everything_is_held_while_the_draft_always_runs() -> None:
    cache = DraftCache(SIZE)
    wrote(cache, [5, 6, 7], 0, 9)
    assert held(cache, [5, 6, 7], 9) == 9


def test_what_was_passed_over_is_not_held_and_what_was_before_is() -> None:
    cache = DraftCache(SIZE)
    wrote(cache, [5, 6, 7], 0, 6)
    passed_over(cache, [5, 6, 7], 6, 9)
    assert held(cache, [5, 6, 7], 9) == 6
    assert held(cache, [5, 6, 7], 6) == 6
    assert held(cache, [5, 6, 7], 3) == 3


def test_a_whole_prompt_that_was_passed_over_is_missing_from_its_start() -> None:
    cache = DraftCache(SIZE)
    passed_over(cache, [2, 3, 4], 0, 10)
    assert held(cache, [2, 3, 4], 10) == 0


def test_what_the_draft_reads_later_is_held_again() -> None:
    cache = DraftCache(SIZE)
    passed_over(cache, [2, 3, 4], 3, 10)
    wrote(cache, [2, 3, 4], 3, 11)
    assert held(cache, [2, 3, 4], 11) == 11


def test_a_step_passed_over_after_drafting_counts_from_its_own_start() -> None:
    cache = DraftCache(SIZE)
    passed_over(cache, [9], 0, 1)
    wrote(cache, [2, 3, 4], 0, 10)  # of which the tokens from 6 on were rejected
    passed_over(cache, [2, 3, 4], 6, 7)
    passed_over(cache, [2, 3, 4], 7, 9)
    assert held(cache, [2, 3, 4], 9) == 6


def test_a_request_that_shares_a_block_inherits_what_it_lacks() -> None:
    cache = DraftCache(SIZE)
    passed_over(cache, [2, 3], 0, 8)
    wrote(cache, [2, 3], 0, 6)  # the first block whole, half of the second
    assert held(cache, [2, 3, 8], 9) == 6
    assert held(cache, [2, 7], 8) == 8


def test_a_block_that_is_given_away_starts_anew() -> None:
    cache = DraftCache(SIZE)
    passed_over(cache, [2], 0, 4)
    wrote(cache, [2], 0, 2)
    assert held(cache, [2], 2) == 2
    passed_over(cache, [2], 0, 3)
    assert held(cache, [2], 3) == 0


def test_requests_of_a_batch_are_told_apart() -> None:
    cache = DraftCache(SIZE)
    tables = table([1, 2, 0], [3, 4, 5], [6, 0, 0])
    cache.passed_over(tables, ints(5, 2, 0), ints(6, 9, 1))
    assert cache.held(tables, ints(6, 9, 1)).tolist() == [5, 2, 0]
    cache.wrote(tables[[1]], ints(2), ints(10))
    assert cache.held(tables, ints(6, 10, 1)).tolist() == [5, 10, 0]


def test_once_every_slot_is_held_again_nothing_is_looked_up() -> None:
    cache = DraftCache(SIZE)
    passed_over(cache, [1], 0, 2)
    wrote(cache, [1], 0, 2)
    wrote(cache, [1], 2, 4)
    assert cache._complete


def test_any_history_of_a_request_is_remembered_as_it_was() -> None:
    """Against a plain list of slots, one bit each."""
    chance = np.random.default_rng(5)
    blocks = chance.permutation(40)[:20].astype(np.int32)
    cache, slots = DraftCache(SIZE), [True] * 80
    end = 0
    while end < 70:
        step = int(chance.integers(1, 7))
        first = int(cache.held(blocks[None, :], ints(end))[0])
        assert first == next((at for at in range(end) if not slots[at]), end)
        if chance.random() < 0.5:
            passed_over(cache, blocks.tolist(), end, end + step)
            slots[end : end + step] = [False] * step
        else:
            wrote(cache, blocks.tolist(), first, end + step)
            slots[first : end + step] = [True] * (end + step - first)
        end += step


def test_a_request_without_earlier_positions_lacks_none() -> None:
    cache = DraftCache(SIZE)
    passed_over(cache, [1], 0, 2)
    assert held(cache, [2], 0) == 0
    assert cache.held(table([1], [2]), ints(2, 0)).tolist() == [0, 0]
