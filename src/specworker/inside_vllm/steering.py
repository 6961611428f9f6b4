"""How K is chosen, on its way into vLLM: with the engine's config, and while it runs."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM

from specworker.inside_vllm.rule_config import KEY
from specworker.step_times import usual_choices

#: The key of vLLM's speculative config that holds K by the size of the batch.
BY_BATCH = "num_speculative_tokens_per_batch_size"


@dataclass(frozen=True)
class Steering:
    """How K is chosen, step by step and request by request.

    Attributes:
        adaptive: whether K is the one with the best measured goodput.
        max_prompt_len: tokens of a prompt above which nothing is drafted; None for no limit.
        only_predictions: whether nothing drafts but what requests predict.
        by_batch: the largest K by ranges of batch sizes, as vLLM's config has it: [first,
            last, K]; None where it does not depend on it. Set where K adapts alone, since
            vLLM's config then names every K.
    """

    adaptive: bool = False
    max_prompt_len: int | None = None
    only_predictions: bool = False
    by_batch: Sequence[Sequence[int]] | None = None


def hand_over(steering: Steering, args: Namespace) -> None:
    """Put into the arguments of the engine what is not as vLLM has it.

    Where K adapts, the arguments name every K that it may take, so that vLLM captures its
    CUDA graphs for each of them and tells its drafters K.
    """
    config = args.speculative_config
    if not config:
        return
    if steering.adaptive:
        args.speculative_config = {**config, BY_BATCH: _every(config, args.max_num_seqs)}
        steering = Steering(
            True, steering.max_prompt_len, steering.only_predictions, config.get(BY_BATCH)
        )
    if steering != Steering():
        own = (args.additional_config or {}).get(KEY, {})
        args.additional_config = {
            **(args.additional_config or {}),
            KEY: {**own, "steering": asdict(steering)},
        }


def handed_over(config: Any) -> Steering:
    """The same in vLLM's config; vLLM's own ways where there is none."""
    return Steering(**config.additional_config.get(KEY, {}).get("steering", {}))


def choices(most: int, max_num_seqs: int | None = None) -> list[int]:
    """The K to choose from: 0, and as many others as vLLM can be told of."""
    found = usual_choices(most)
    if max_num_seqs is not None and max_num_seqs < len(found):
        found = [*found[: max_num_seqs - 1], most] if max_num_seqs > 1 else [0, most]
    return found


def _every(config: Mapping[str, Any], max_num_seqs: int | None) -> list[list[int]]:
    """A range of batch sizes for every K, the largest K first; what they say is not used."""
    falling = choices(config["num_speculative_tokens"], max_num_seqs)[::-1]
    ranges = [[size, size, k] for size, k in enumerate(falling, 1)]
    ranges[-1][1] = max(max_num_seqs or 0, len(falling))
    return ranges[: max_num_seqs or None]


async def set_tokens(client: AsyncLLM, tokens: int, *, adapts: bool = False) -> int:
    """Set K for the steps from the next one on, or the bound up to which it adapts.

    Returns:
        What K was.
    """
    from specworker.inside_vllm.scheduler import ADAPT, SET_TOKENS

    operation = ADAPT if adapts else SET_TOKENS
    before: int = await client.engine_core.call_utility_async("scheduler", operation, tokens)
    return before


async def state(client: AsyncLLM) -> dict[str, Any] | None:
    """What the controller of K knows; None where K does not adapt."""
    from specworker.inside_vllm.scheduler import STATE

    known: dict[str, Any] | None = await client.engine_core.call_utility_async("scheduler", STATE)
    return known
