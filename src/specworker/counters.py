"""What a server's `/metrics` counts: tokens, drafts, and requests in it."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from specworker.acceptance import Acceptance

GENERATED = "vllm:generation_tokens_total"
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


@dataclass(frozen=True)
class Reading:
    """Counters at a moment, of all engines behind the server together.

    Attributes:
        counts: what was generated, drafted and accepted since the start.
        running: requests in the batch.
        waiting: requests that wait for a place in it.
    """

    counts: Acceptance
    running: int
    waiting: int

    @property
    def is_idle(self) -> bool:
        """Whether no request is there."""
        return not (self.running or self.waiting)


def of(page: str) -> Reading | None:
    """The counters on a page of metrics; None where it is not one of vLLM."""
    sums: dict[str, int] = {}
    by_position: dict[int, int] = {}
    for sample in _samples(page):
        value = int(sample.value)
        if sample.name == BY_POSITION:
            place = int(sample.labels["position"])
            by_position[place] = by_position.get(place, 0) + value
        sums[sample.name] = sums.get(sample.name, 0) + value
    if GENERATED not in sums:
        return None
    counts = Acceptance(
        sums[GENERATED],
        sums.get(DRAFTS, 0),
        sums.get(DRAFTED, 0),
        sums.get(ACCEPTED, 0),
        tuple(by_position.get(place, 0) for place in range(max(by_position, default=-1) + 1)),
    )
    return Reading(counts, sums.get(RUNNING, 0), sums.get(WAITING, 0))


def _samples(page: str) -> Iterator[Sample]:
    wanted = {GENERATED, RUNNING, WAITING, DRAFTS, DRAFTED, ACCEPTED, BY_POSITION}
    for family in text_string_to_metric_families(page):
        yield from (sample for sample in family.samples if sample.name in wanted)
