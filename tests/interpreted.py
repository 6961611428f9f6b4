"""Typical acceptance with vLLM's own Triton kernels, interpreted on a CPU.

A process of its own, for Triton decides when it is imported whether it interprets:
cases come in as JSON, and the tokens that each request gets go out as JSON.
"""

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
from triton.backends import backends

# vLLM looks for a driver of the platform before it takes Triton up.
backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))

import torch  # noqa: E402

from specworker.acceptance_rule import AcceptanceRule  # noqa: E402
from specworker.inside_vllm.typical_acceptance import TypicalSamplerV2  # noqa: E402

DEVICE = torch.device("cpu")
STEPS = 3


class Sampling:
    """As much of the V2 runner's sampler as verifying takes."""

    use_fp64_gumbel = False
    logprobs_mode = "raw_logprobs"

    def __init__(self, requests: list[dict[str, Any]], seeds: list[int]) -> None:
        temperature = torch.tensor([float(request["temperature"]) for request in requests])
        self.sampling_states = SimpleNamespace(
            temperature=SimpleNamespace(gpu=temperature),
            seeds=SimpleNamespace(gpu=torch.tensor(seeds)),
        )

    def apply_sampling_params(
        self, logits: torch.Tensor, expanded_idx_mapping: torch.Tensor, *_: Any
    ) -> torch.Tensor:
        temperature = self.sampling_states.temperature.gpu[expanded_idx_mapping]
        if ((temperature == 0) | (temperature == 1)).all():
            return logits
        return logits / torch.where(temperature == 0, 1.0, temperature).unsqueeze(-1)


def verify(rule: AcceptanceRule, requests: list[dict[str, Any]], seed: int) -> list[list[int]]:
    """The tokens that each request gets, whose drafts are the `drafted` of its own."""
    seeds = [seed * 1000 + row for row in range(len(requests))]
    lengths = torch.tensor([len(request["drafted"]) + 1 for request in requests])
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int()
    mapping = torch.arange(len(requests), dtype=torch.int32)
    positions = torch.cat([torch.arange(length) for length in lengths])
    # The first of a request's tokens is no draft: it was sampled in the step before.
    sampled = torch.tensor([token for request in requests for token in (0, *request["drafted"])])
    logits = torch.tensor([row for request in requests for row in request["target"]]).log()
    before = logits.clone()
    spec_config = SimpleNamespace(
        num_speculative_tokens=STEPS,
        enable_adaptive_verification=False,
        rejection_sample_method="standard",
    )
    sampler = TypicalSamplerV2(rule, Sampling(requests, seeds), spec_config, DEVICE)
    processed, tokens, counts = sampler._verify(
        logits,
        None,
        sampled,
        positions + 10,
        ends,
        mapping,
        mapping.numpy(),
        mapping.repeat_interleave(lengths),
        positions.int(),
        lengths.numpy(),
        sampled,
    )
    assert torch.equal(logits, before)
    expected = sampler.sampler.apply_sampling_params(before, mapping.repeat_interleave(lengths))
    assert torch.equal(processed, expected)
    assert sampled.tolist()[1 : lengths[0]] == requests[0]["drafted"]
    return [row[:count].tolist() for row, count in zip(tokens, counts, strict=True)]


if __name__ == "__main__":
    found = [
        [
            verify(AcceptanceRule(**case["rule"]), case["requests"], seed)
            for seed in range(case["seeds"])
        ]
        for case in json.load(sys.stdin)
    ]
    json.dump(found, sys.stdout)
