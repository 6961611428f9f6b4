"""What requests are told, and told of, in the pinned vLLM is so. As `test_drift`, for requests."""

import dataclasses
import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from vllm.config import ModelConfig, SchedulerConfig, VllmConfig
from vllm.config.speculative import SpeculativeConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.anthropic import serving as anthropic
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import (
    BatchChatCompletionRequest,
    ChatCompletionRequest,
)
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest
from vllm.entrypoints.serve.engine.protocol import UsageInfo
from vllm.renderers.base import BaseRenderer
from vllm.renderers.params import TokenizeParams
from vllm.v1.engine import detokenizer
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessor, RequestState
from vllm.v1.spec_decode import ngram_proposer

from specworker import request_speculation
from specworker.request_speculation import CHAT, EXTRA

MESSAGES: Any = [{"role": "user", "content": "x"}]
TOLD = {"other": 1, "num_speculative_tokens": 2, "prediction_ids": [5, 6]}


def sent(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What vLLM is sent for a request that bounds K and predicts two tokens."""
    key: Any = {"other": 1}
    for name in reversed(EXTRA[path]):
        key = {name: key}
    return request_speculation.sent(path, {**body, **key}, 2, [5, 6])


def test_extra_arguments_reach_a_chats_sampling_parameters() -> None:
    request = ChatCompletionRequest.model_validate(sent(CHAT, {"messages": MESSAGES}))
    assert request.to_sampling_params(4, {}).extra_args == TOLD
    batch = sent("/v1/chat/completions/batch", {"messages": [MESSAGES]})
    single = BatchChatCompletionRequest.model_validate(batch).to_chat_completion_request(MESSAGES)
    assert single.to_sampling_params(4, {}).extra_args == TOLD


def test_extra_arguments_reach_the_sampling_parameters_of_other_routes() -> None:
    completion = CompletionRequest.model_validate(sent("/v1/completions", {"prompt": "x"}))
    assert completion.to_sampling_params(4, {}).extra_args == TOLD
    response = ResponsesRequest.model_validate(sent("/v1/responses", {"input": "x"}))
    assert response.to_sampling_params(4, {}).extra_args == TOLD
    body = {"token_ids": [1], "sampling_params": {"extra_args": {"other": 1}}}
    told = request_speculation.sent("/inference/v1/generate", body, 2, [5, 6])
    assert GenerateRequest.model_validate(told).sampling_params.extra_args == TOLD


def test_extra_arguments_reach_the_chat_that_a_message_becomes() -> None:
    body = {"model": "x", "max_tokens": 4, "messages": MESSAGES}
    message = AnthropicMessagesRequest.model_validate(sent("/v1/messages", body))
    assert message.vllm_xargs == TOLD
    assert "vllm_xargs=anthropic_request.vllm_xargs" in inspect.getsource(anthropic)


def test_one_route_hands_nothing_on() -> None:
    for module in ("protocol", "serving"):  # which need a package of their own to be imported
        found = find_spec(f"vllm.entrypoints.cohere.{module}")
        assert found is not None
        assert found.origin is not None
        source = Path(found.origin).read_text()
        assert "ChatV2Request" in source
        assert not re.search("xargs|extra_args", source)
    assert not EXTRA["/cohere/v2/chat"]


def test_vllm_passes_over_the_fields_so_that_they_must_not_reach_it() -> None:
    fields = {"speculation": {"enabled": False}, "prediction": {"type": "content", "content": "x"}}
    asked = ChatCompletionRequest.model_validate({"messages": MESSAGES, **fields})
    assert asked.to_sampling_params(4, {}).extra_args is None


def test_usage_has_no_figures_of_predictions() -> None:
    details = UsageInfo(completion_tokens_details={"reasoning_tokens": 2}).completion_tokens_details
    assert details.model_dump() == {"reasoning_tokens": 2}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (SpeculativeConfig, "draft_sample_method"),
        (SpeculativeConfig, "prompt_lookup_min"),
        (SpeculativeConfig, "prompt_lookup_max"),
        (SchedulerConfig, "async_scheduling"),
        (SchedulerConfig, "scheduler_cls"),
        (ModelConfig, "skip_tokenizer_init"),
        (ModelConfig, "max_model_len"),
        (VllmConfig, "use_v2_model_runner"),
        (AsyncEngineArgs, "prefill_context_parallel_size"),
        (AsyncEngineArgs, "enable_batch_sharded_sampling"),
        (AsyncEngineArgs, "watermark_config"),
    ],
)
def test_what_is_asked_of_a_configuration_is_there(config: type, name: str) -> None:
    assert name in {field.name for field in dataclasses.fields(config)} or hasattr(config, name)


def test_an_option_that_needs_the_v2_runner_is_refused_by_the_other() -> None:
    refused = inspect.getsource(VllmConfig._get_v1_model_runner_unsupported_features)
    assert "prefill_context_parallel_size > 1" in refused
    assert "enable_batch_sharded_sampling" in refused
    assert '"watermark_config", None) is not None' in inspect.getsource(
        VllmConfig.use_v2_model_runner.fget
    )


def test_nothing_is_looked_up_in_a_text_that_is_shorter_than_the_shortest_n_gram() -> None:
    find = inspect.getsource(ngram_proposer._find_longest_matched_ngram_and_propose_tokens)
    first, *_ = find.split("np.zeros(")  # before it takes memory for the longest
    assert "if total_token < min_ngram:\n        return np.empty((0,)" in first


def test_every_choice_is_taken_up_where_its_output_is_kept() -> None:
    assert [*inspect.signature(OutputProcessor.add_request).parameters][1] == "request"
    added = inspect.getsource(OutputProcessor.add_request)
    assert "self.request_states[request_id] = req_state" in added
    state = inspect.getsource(RequestState.__init__)
    assert "self.request_index = request_index" in state
    assert "self.detokenizer = detokenizer" in state
    for name in ("IncrementalDetokenizer", "SlowIncrementalDetokenizer"):
        assert isinstance(
            inspect.getattr_static(getattr(detokenizer, name), "output_token_ids"), property
        )
    for method in (AsyncLLM.add_request, AsyncLLM._add_request):
        assert "self.output_processor.add_request(" in inspect.getsource(method)


def test_a_text_is_tokenised_in_the_renderers_own_threads() -> None:
    assert [*inspect.signature(BaseRenderer.tokenize_prompt_async).parameters] == [
        "self",
        "prompt",
        "params",
    ]
    assert "self._tokenize_prompt_async(" in inspect.getsource(
        BaseRenderer._tokenize_singleton_prompt_async
    )
    fields = {field.name for field in dataclasses.fields(TokenizeParams)}
    assert fields > {
        "max_total_tokens",
        "truncate_prompt_tokens",
        "truncation_side",
        "add_special_tokens",
    }
    assert "self.renderer = " in inspect.getsource(AsyncLLM.__init__)
