"""What measuring relies on in the pinned vLLM is there as it says."""

import dataclasses
import inspect

import pytest
from vllm.benchmarks import serve
from vllm.benchmarks.lib import endpoint_request_func as requests
from vllm.config import ModelConfig
from vllm.platforms import current_platform
from vllm.v1.metrics import loggers
from vllm.v1.spec_decode import metrics

from specworker import compare_plan, counters
from specworker.engine_flags import options, parser
from specworker.inside_vllm import asking
from specworker.variants import SUFFIX_CACHE
from tests.test_drift import parameters

FUNCTIONS = (
    requests.async_request_openai_completions,
    requests.async_request_openai_chat_completions,
)


def test_a_request_takes_what_it_is_given() -> None:
    assert {field.name for field in dataclasses.fields(requests.RequestFuncInput)} >= {
        "api_url",
        "chat_messages",
        "extra_body",
        "extra_headers",
        "ignore_eos",
        "model",
        "output_len",
        "prompt",
        "prompt_len",
    }
    assert {field.name for field in dataclasses.fields(requests.RequestFuncOutput)} >= {
        "error",
        "generated_text",
        "latency",
        "output_tokens",
        "success",
        "ttft",
    }


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_request_is_streamed_with_its_usage_and_keeps_the_traceback_of_what_fails(
    function: object,
) -> None:
    source = inspect.getsource(function)  # type: ignore[arg-type]
    assert '"include_usage": True' in source
    assert 'output.output_tokens = usage.get("completion_tokens")' in source
    assert 'output.error = "".join(traceback.format_exception(*exc_info))' in source
    assert "session.post(url=api_url, json=payload, headers=headers)" in source


def test_a_request_still_brings_the_key_of_the_environment_to_any_server() -> None:
    assert f'os.environ.get("{asking.KEY}")' in inspect.getsource(requests._get_headers)


def test_vllms_own_run_still_cannot_measure_what_is_compared() -> None:
    source = inspect.getsource(serve.benchmark)
    assert "session = aiohttp.ClientSession(" in source  # none that keeps what a refusal says
    assert 'print("{s:{c}^{n}}".format(s=" Serving Benchmark Result "' in source
    assert "headers" not in parameters(serve.fetch_spec_decode_metrics)
    assert "generation_tokens" not in source


def test_the_counters_are_those_that_vllm_keeps() -> None:
    kept = inspect.getsource(metrics) + inspect.getsource(loggers)
    names = (counters.GENERATED, counters.DRAFTS, counters.DRAFTED, counters.ACCEPTED)
    for name in (*names, counters.BY_POSITION):
        assert f'"{name.removesuffix("_total")}"' in kept
    assert f'"{counters.RUNNING}"' in kept
    assert f'"{counters.WAITING}"' in kept
    assert '"position"' in kept


def test_a_platform_tells_its_device() -> None:
    assert {"is_cpu", "get_device_name"} <= {*dir(current_platform)}


def test_what_vllm_takes_of_a_gpu_is_known() -> None:
    assert options(parser())["GPU_MEMORY_UTILIZATION"].default == compare_plan.GPU_SHARE


def test_suffix_decoding_keeps_no_answers_where_it_is_told_so() -> None:
    from vllm.config.speculative import SpeculativeConfig

    assert SUFFIX_CACHE in {field.name for field in dataclasses.fields(SpeculativeConfig)}
    checked = inspect.getsource(SpeculativeConfig._validate_suffix_decoding)
    assert f"self.{SUFFIX_CACHE} < 0" in checked


def test_a_models_dtype_is_the_resolved_one() -> None:
    assert "dtype" in {field.name for field in dataclasses.fields(ModelConfig)}
