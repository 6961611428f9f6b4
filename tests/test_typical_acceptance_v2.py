"""Typical acceptance in vLLM's V2 sampler, whose kernels are interpreted (`interpreted.py`)."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from specworker.acceptance_rule import AcceptanceRule
from specworker.inside_vllm import typical_acceptance

TYPICAL = AcceptanceRule("typical_acceptance_sampler")
SAMPLE = replace(TYPICAL, recovery="sample")
STRICT = replace(TYPICAL, threshold=1, alpha=1)

UNSURE = [0.4, 0.3, 0.2, 0.05, 0.05]
SURE = [0.97, 0.01, 0.01, 0.01, 0.0]
END = [0.0, 0.0, 0.0, 0.0, 1.0]


def request(target: list[list[float]], drafted: list[int], temperature: float = 1) -> Any:
    return {"target": target, "drafted": drafted, "temperature": temperature}


MIXED = [
    request([UNSURE, SURE, UNSURE, END], [2, 0, 1]),
    request([UNSURE, SURE, UNSURE, END], [2, 1, 1]),
    request([UNSURE, UNSURE, END], [0, 2], temperature=0),
    request([UNSURE, END, END], [1, -1]),
    request([END], []),
    request([UNSURE, END], [0], temperature=0),
    request([UNSURE, END], [-1], temperature=0),
    request([UNSURE, END], [3]),
    request([UNSURE, END], [3], temperature=5.0),
    request([UNSURE, END], [2], temperature=0.2),
]
#: Of each request: what it gets where the token after a rejection is the first choice.
EXPECTED = [[2, 0, 1, 4], [2, 0], [0, 0], [1, 4], [4], [0, 4], [0], [0], [3, 4], [0]]


def random_requests() -> list[Any]:
    """Requests of every kind whose last row is certain."""
    chance = torch.Generator().manual_seed(3)
    requests = []
    for number in range(60):
        count = number % 4
        rows = torch.randn((count, 5), generator=chance).softmax(-1)
        drafted = torch.randint(0, 5, (count,), generator=chance).tolist()
        requests.append(request([*rows.tolist(), END], drafted, (0, 1, 0.7)[number % 3]))
    return requests


def walked(asked: Mapping[str, Any], rule: AcceptanceRule) -> list[int]:
    """What a request gets by the rule, in the plainest words."""
    tokens: list[int] = []
    for row, drafted in zip(asked["target"], asked["drafted"], strict=False):
        probabilities = torch.tensor([row])
        first = int(probabilities.argmax())
        if asked["temperature"]:
            probabilities = (probabilities.log() / asked["temperature"]).softmax(-1)
            passes = typical_acceptance.plausible(probabilities, torch.tensor([drafted]), rule)
        else:
            passes = drafted == first
        tokens.append(drafted if passes else first)
        if not passes:
            return tokens
    return [*tokens, 4]


CASES = {
    "mixed": (TYPICAL, MIXED, 3),
    "mixed, sampled": (SAMPLE, MIXED, 3),
    "random": (TYPICAL, random_requests(), 1),
    "left": (SAMPLE, [request([UNSURE, END], [3], temperature=0.5)] * 200, 1),
    "no drafts": (TYPICAL, [request([UNSURE], [])] * 20, 1),
    "padding": (TYPICAL, [request([UNSURE, END], [-1])] * 20, 1),
    "strict": (STRICT, [request([[0, 0, 1.0, 0, 0], END, END], [2, 4])], 3),
    "strict, sampled": (
        replace(STRICT, recovery="sample"),
        [request([[0, 0, 1.0, 0, 0], END, END], [2, 4])],
        3,
    ),
}


@pytest.fixture(scope="module")
def tokens() -> Mapping[str, Any]:
    """Of each case: by seed, what each request gets."""
    cases = [
        {"rule": asdict(rule), "requests": requests, "seeds": seeds}
        for rule, requests, seeds in CASES.values()
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.interpreted"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return dict(zip(CASES, json.loads(ended.stdout.splitlines()[-1]), strict=True))


def test_drafts_are_walked_until_the_first_that_is_not_plausible(
    tokens: Mapping[str, Any],
) -> None:
    for by_seed in tokens["mixed"]:
        assert by_seed == EXPECTED


def test_every_mix_of_requests_gets_what_the_rule_says(tokens: Mapping[str, Any]) -> None:
    _, requests, _ = CASES["random"]
    expected = [walked(asked, TYPICAL) for asked in requests]
    assert {len(row) for row in expected} == {1, 2, 3, 4}
    assert tokens["random"][0] == expected


def test_the_token_after_a_rejection_is_sampled_where_that_is_asked_for(
    tokens: Mapping[str, Any],
) -> None:
    ends = set()
    for by_seed in tokens["mixed, sampled"]:
        for asked, found, expected in zip(MIXED, by_seed, EXPECTED, strict=True):
            rejected = asked["temperature"] and len(found) <= len(asked["drafted"])
            if rejected and asked["drafted"][len(found) - 1] >= 0:
                assert found[:-1] == expected[:-1]
                assert found[-1] != asked["drafted"][len(found) - 1]
                ends.add(found[-1])
            else:
                assert found == expected
    assert len(ends) > 1


def test_what_is_sampled_after_a_rejection_comes_from_what_is_left(
    tokens: Mapping[str, Any],
) -> None:
    counts = torch.tensor(tokens["left"][0]).flatten().bincount(minlength=5)
    assert counts[3] == 0
    expected = torch.tensor(UNSURE, dtype=torch.float64)[:3] ** 2  # the temperature is a half
    assert chisquare(counts[:3], expected / expected.sum() * counts[:3].sum()).pvalue > 0.001


@pytest.mark.parametrize("case", ["no drafts", "padding"])
def test_a_token_without_a_draft_is_sampled_as_ever(tokens: Mapping[str, Any], case: str) -> None:
    (found,) = tokens[case]
    assert {len(row) for row in found} == {1}
    assert len({row[0] for row in found}) > 1


@pytest.mark.parametrize("case", ["strict", "strict, sampled"])
def test_even_a_first_choice_that_is_rejected_ends_the_draft(
    tokens: Mapping[str, Any], case: str
) -> None:
    assert tokens[case] == [[[2]]] * 3
