"""Counters off a page of metrics."""

from specworker import counters
from specworker.acceptance import Acceptance

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="demo"} 1.0
vllm:num_requests_running{engine="1",model_name="demo"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="demo"} 0.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="demo"} 40.0
vllm:generation_tokens_total{engine="1",model_name="demo"} 2.0
vllm:generation_tokens_created{engine="0",model_name="demo"} 1.7e+09
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="demo"} 10.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="demo"} 20.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="demo"} 12.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 1.0
"""


def test_the_counts_are_those_of_all_engines() -> None:
    reading = counters.of(PAGE)
    assert reading
    assert reading.counts == Acceptance(42, 10, 20, 12, (8, 4))
    assert (reading.running, reading.waiting, reading.is_idle) == (3, 0, False)


def test_plain_decoding_drafts_nothing() -> None:
    plain = "\n".join(line for line in PAGE.splitlines() if "spec" not in line)
    reading = counters.of(f"{plain}\n".replace(" 1.0\n", " 0.0\n").replace(" 2.0\n", " 0.0\n"))
    assert reading
    assert reading.counts == Acceptance(40)
    assert reading.is_idle


def test_a_page_of_something_else_is_none() -> None:
    assert counters.of("# TYPE up gauge\nup 1.0\n") is None
    assert counters.of("") is None
