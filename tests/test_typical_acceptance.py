"""Typical acceptance, as a rule and in vLLM's V1 sampler."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from vllm.triton_utils.dispatcher import KernelOverride
from vllm.utils import cpu_triton_utils
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu.spec_decode import rejection_sampler as rejection_sampler_v2

from specworker.acceptance_rule import AcceptanceRule
from specworker.inside_vllm import corrections, typical_acceptance
from specworker.inside_vllm.typical_acceptance import TypicalSampler

TYPICAL = AcceptanceRule("typical_acceptance_sampler")
SAMPLE = replace(TYPICAL, recovery="sample")

# The rule.

VECTORS: list[tuple[list[float], float, set[int]]] = [
    ([0.25] * 4, 1.3863, {0, 1, 2, 3}),
    ([0.5, 0.3, 0.1, 0.1], 1.1682, {0, 1, 2, 3}),
    ([0.97, 0.01, 0.01, 0.01], 0.1677, {0}),
    ([0.4, 0.3, 0.2, 0.05, 0.05], 1.3491, {0, 1, 2}),
    ([0.3] + [0.1] * 7, 1.9729, set(range(8))),
    ([1 / 32] * 32, 3.4654, set(range(32))),
    ([1.0, 0.0, 0.0, 0.0], 0.0, {0}),
]


def accepted(probabilities: list[float], rule: AcceptanceRule) -> set[int]:
    """The tokens that are accepted when they are drafted."""
    every = torch.arange(len(probabilities))
    rows = torch.tensor([probabilities] * len(every))
    return set(every[typical_acceptance.plausible(rows, every, rule)].tolist())


@pytest.mark.parametrize(("probabilities", "entropy", "expected"), VECTORS)
def test_tokens_are_accepted_as_by_v0(
    probabilities: list[float], entropy: float, expected: set[int]
) -> None:
    assert accepted(probabilities, TYPICAL) == expected


@pytest.mark.parametrize(("probabilities", "entropy", "expected"), VECTORS)
def test_the_bound_falls_with_the_entropy_as_by_v0(
    probabilities: list[float], entropy: float, expected: set[int]
) -> None:
    best = max(probabilities)
    alpha = best * torch.tensor(entropy).exp().item()
    assert accepted(probabilities, replace(TYPICAL, threshold=1, alpha=alpha * 0.999))
    assert not accepted(probabilities, replace(TYPICAL, threshold=1, alpha=alpha * 1.001))


@pytest.mark.parametrize(("probabilities", "entropy", "expected"), VECTORS)
def test_with_nothing_asked_for_every_possible_token_is_accepted(
    probabilities: list[float], entropy: float, expected: set[int]
) -> None:
    possible = {token for token, value in enumerate(probabilities) if value > 0}
    assert accepted(probabilities, replace(TYPICAL, threshold=0, alpha=0)) == possible


def test_a_probability_at_the_bound_is_not_above_it() -> None:
    half = replace(TYPICAL, threshold=0.25, alpha=100)
    assert accepted([0.5, 0.25, 0.25], half) == {0}
    assert accepted([0.5, 0.25, 0.25], replace(half, threshold=0.2499)) == {0, 1, 2}


def test_many_rows_are_judged_like_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    logits, drafted = torch.randn(50, 12) * 3, torch.randint(0, 12, (50,))
    alone = [
        typical_acceptance.accepts(logits[[row]], drafted[[row]], TYPICAL).item()
        for row in range(50)
    ]
    assert 5 < sum(alone) < 45
    monkeypatch.setattr(typical_acceptance, "ROWS", 7)
    assert typical_acceptance.accepts(logits, drafted, TYPICAL).tolist() == alone


# The sampler of vLLM's V1 runner.

KERNELS = {
    "_rejection_greedy_sample": cpu_triton_utils._rejection_greedy_sample_kernel_impl,
    "_rejection_random_sample": cpu_triton_utils._rejection_random_sample_kernel_impl,
    "_sample_recovered_tokens": cpu_triton_utils._sample_recovered_tokens_kernel_impl,
}


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels and corrections that a worker process on a CPU has."""
    for name, kernel in KERNELS.items():
        launcher = getattr(rejection_sampler, name)
        monkeypatch.setattr(launcher, "kernel", KernelOverride(launcher.kernel, kernel))
        monkeypatch.delitem(vars(launcher), "_kernel_arg_names", raising=False)
    for owner, name, correct in (
        (rejection_sampler, "expand_batch_to_tokens", corrections.expand_batch_to_tokens),
        (rejection_sampler.RejectionSampler, "forward", corrections.rejection_sampler_forward),
    ):
        monkeypatch.setattr(owner, name, correct(getattr(owner, name)))


@dataclass
class Asked:
    """A request in a step: what the target would say after each drafted token, and the end."""

    target: Sequence[Sequence[float]]
    drafted: Sequence[int]
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int | None = None


def metadata_of(asked: Sequence[Asked]) -> SpecDecodeMetadata:
    counts = [len(request.drafted) for request in asked]
    metadata = SpecDecodeMetadata.make_dummy(
        [list(request.drafted) for request in asked], torch.device("cpu")
    )
    ends = torch.tensor([count + 1 for count in counts]).cumsum(0)
    rows = torch.arange(int(ends[-1]))
    is_bonus = torch.isin(rows, ends - 1)
    metadata.bonus_logits_indices = rows[is_bonus].int()
    metadata.target_logits_indices = rows[~is_bonus].int()
    return metadata


def sampling_of(asked: Sequence[Asked], **given: Any) -> SamplingMetadata:
    size = len(asked[0].target[0])
    temperature = torch.tensor([request.temperature for request in asked])
    top_k = [request.top_k or size for request in asked]
    top_p = [request.top_p for request in asked]
    seeds = {row: request.seed for row, request in enumerate(asked) if request.seed is not None}
    none = torch.zeros(len(asked))
    values = {
        "temperature": temperature if temperature.any() else None,
        "all_greedy": not temperature.any(),
        "all_random": bool(temperature.all()),
        "top_k": torch.tensor(top_k, dtype=torch.int32) if min(top_k) < size else None,
        "top_p": torch.tensor(top_p) if min(top_p) < 1 else None,
        "generators": {row: torch.Generator().manual_seed(seed) for row, seed in seeds.items()},
        "max_num_logprobs": None,
        "no_penalties": True,
        "prompt_token_ids": None,
        "frequency_penalties": none,
        "presence_penalties": none,
        "repetition_penalties": none + 1,
        "output_token_ids": [[] for _ in asked],
        "spec_token_ids": [list(request.drafted) for request in asked],
        "allowed_token_ids_mask": None,
        "bad_words_token_ids": {},
        "logitsprocs": LogitsProcessors(),
    }
    return SamplingMetadata(**values | given)


def logits_of(asked: Sequence[Asked]) -> torch.Tensor:
    return torch.tensor([row for request in asked for row in request.target]).log()


def typical(rule: AcceptanceRule, logprobs_mode: str = "raw_logprobs") -> TypicalSampler:
    spec_config = SimpleNamespace(rejection_sample_method="standard")
    return TypicalSampler(rule, Sampler(logprobs_mode), spec_config, torch.device("cpu"))


def stock() -> rejection_sampler.RejectionSampler:
    return rejection_sampler.RejectionSampler(Sampler())


def verified(sampler: Any, asked: Sequence[Asked], **given: Any) -> list[list[int]]:
    """The tokens that each request gets."""
    output = sampler(metadata_of(asked), None, logits_of(asked), sampling_of(asked, **given))
    tokens, _ = sampler.parse_output(output.sampled_token_ids, len(asked[0].target[0]))
    return list(tokens)


UNSURE = [0.4, 0.3, 0.2, 0.05, 0.05]
SURE = [0.97, 0.01, 0.01, 0.01, 0.0]
END = [0.0, 0.0, 0.0, 0.0, 1.0]

pytestmark = pytest.mark.filterwarnings("ignore:`torch.distributed.reduce_op`:FutureWarning")

each_recovery = pytest.mark.parametrize("rule", [TYPICAL, SAMPLE], ids=["argmax", "sample"])


@each_recovery
def test_plausible_tokens_are_all_accepted_and_one_more_is_sampled(
    on_cpu: None, rule: AcceptanceRule
) -> None:
    asked = [Asked([UNSURE, SURE, UNSURE, END], [2, 0, 1])]
    for _ in range(20):
        assert verified(typical(rule), asked) == [[2, 0, 1, 4]]


def test_the_first_rejection_ends_the_draft_with_the_targets_first_choice(on_cpu: None) -> None:
    asked = [
        Asked([UNSURE, SURE, UNSURE, END], [2, 1, 1]),
        Asked([UNSURE, END], [3]),
        Asked([UNSURE, UNSURE, END], [1, 4]),
    ]
    for _ in range(20):
        assert verified(typical(TYPICAL), asked) == [[2, 0], [0], [1, 0]]


@pytest.mark.parametrize(
    ("constraint", "target", "drafted", "left"),
    [
        ({}, UNSURE, 3, [0.4, 0.3, 0.2, 0, 0.05]),
        ({"temperature": 0.5}, UNSURE, 3, [0.16, 0.09, 0.04, 0, 0.0025]),
        ({"top_p": 0.9}, [0.5, 0.3, 0.04, 0.15, 0.01], 2, [0.5, 0.3, 0, 0.15, 0]),
        ({"top_k": 3}, [0.86, 0.07, 0.04, 0.02, 0.01], 1, [0.86, 0, 0.04, 0, 0]),
    ],
)
def test_the_token_after_a_rejection_is_sampled_from_what_is_left(
    on_cpu: None,
    constraint: dict[str, Any],
    target: list[float],
    drafted: int,
    left: list[float],
) -> None:
    torch.manual_seed(1)
    tokens = verified(typical(SAMPLE), [Asked([target, END], [drafted], **constraint)] * 4000)
    counts = torch.tensor(tokens).flatten().bincount(minlength=5)
    expected = torch.tensor(left, dtype=torch.float64)
    kept = expected > 0
    assert not counts[~kept].any()
    assert chisquare(counts[kept], expected[kept] / expected.sum() * 4000).pvalue > 0.001


@pytest.mark.parametrize(
    ("constraint", "drafted", "expected"),
    [
        ({}, 2, [2, 4]),
        ({"top_k": 3}, 2, [2, 4]),
        ({"top_k": 2}, 2, [0]),
        ({"top_p": 0.8}, 2, [2, 4]),
        ({"top_p": 0.6}, 2, [0]),
        ({"temperature": 0.2}, 2, [0]),
        ({"temperature": 5.0}, 3, [3, 4]),
    ],
)
def test_a_draft_is_judged_by_what_the_request_may_sample(
    on_cpu: None, constraint: dict[str, Any], drafted: int, expected: list[int]
) -> None:
    asked = [Asked([UNSURE, END], [drafted], **constraint), Asked([SURE, END], [0])]
    assert verified(typical(TYPICAL), asked) == [expected, [0, 4]]


@each_recovery
def test_even_a_first_choice_that_is_rejected_ends_the_draft(
    on_cpu: None, rule: AcceptanceRule
) -> None:
    strict = replace(rule, threshold=1, alpha=1)
    asked = [Asked([[0, 0, 1.0, 0, 0], END, END], [2, 4])]
    for _ in range(20):
        assert verified(typical(strict), asked) == [[2]]


def test_what_the_drafts_were_drawn_from_does_not_matter(on_cpu: None) -> None:
    asked = [Asked([UNSURE, SURE, END], [1, 1])]
    drawn_from = torch.eye(5)[[4, 0]]  # neither gives a drafted token any probability
    for _ in range(20):
        output = typical(TYPICAL)(
            metadata_of(asked), drawn_from, logits_of(asked), sampling_of(asked)
        )
        assert output.sampled_token_ids.tolist() == [[1, 0, -1]]


def random_batch(chance: torch.Generator, temperatures: Sequence[float]) -> list[Asked]:
    """Requests with up to four drafted tokens, of which a greedy target often agrees."""
    asked = []
    for temperature in temperatures:
        count = int(torch.randint(0, 5, (1,), generator=chance))
        logits = torch.randn((count + 1, 6), generator=chance) * 2
        first = logits.argmax(-1)[:count]
        other = torch.randint(0, 6, (count,), generator=chance)
        agrees = torch.rand(count, generator=chance) < 0.6
        drafted = torch.where(agrees, first, other).tolist()
        asked.append(Asked(logits.softmax(-1).tolist(), drafted, temperature))
    return asked


@each_recovery
@pytest.mark.parametrize("temperatures", [[0, 0, 0], [0, 1, 0, 0.5, 0], [0.7, 0]])
def test_greedy_requests_are_verified_as_ever(
    on_cpu: None, rule: AcceptanceRule, temperatures: list[float]
) -> None:
    chance = torch.Generator().manual_seed(7)
    lengths = set()
    for _ in range(25):
        asked = random_batch(chance, temperatures)
        expected, found = verified(stock(), asked), verified(typical(rule), asked)
        for request, tokens, typically in zip(asked, expected, found, strict=True):
            if request.temperature == 0:
                lengths.add(len(tokens))
                assert typically == tokens
    assert lengths >= {1, 2, 3}


@each_recovery
def test_a_step_without_drafts_samples_one_token_each(on_cpu: None, rule: AcceptanceRule) -> None:
    asked = [Asked([END], []), Asked([SURE], [], temperature=0), Asked([END], [], top_k=2)]
    assert verified(typical(rule), asked) == [[4], [0], [4]]
    assert verified(typical(rule), [*asked, Asked([UNSURE, END], [2])])[-1] == [2, 4]


@each_recovery
def test_padding_is_left_to_the_kernel(on_cpu: None, rule: AcceptanceRule) -> None:
    asked = [Asked([UNSURE, UNSURE, UNSURE, END], [1, -1, -1]), Asked([SURE, END], [1])]
    metadata, logits = metadata_of(asked), logits_of(asked)
    before = logits[metadata.target_logits_indices]
    drafted = metadata.draft_token_ids
    after = typical(rule).apply_logits_processors(before.clone(), sampling_of(asked), metadata)
    assert torch.equal(after[1:3], before[1:3])
    assert not torch.equal(after[0], before[0])
    assert metadata.draft_token_ids[:3].tolist() == [1, -1, -1]
    assert drafted.tolist() == [1, -1, -1, 1]


def test_the_runners_own_drafts_are_left_as_they_are(on_cpu: None) -> None:
    asked = [Asked([UNSURE, END], [3])]
    metadata = metadata_of(asked)
    output = typical(TYPICAL)(metadata, None, logits_of(asked), sampling_of(asked))
    assert output.sampled_token_ids.tolist() == [[0, -1]]
    assert metadata.draft_token_ids.tolist() == [3]


def test_a_token_that_a_request_may_not_have_is_not_accepted(on_cpu: None) -> None:
    forbidden = torch.tensor([[True, False, False, False, False]])
    asked = [Asked([UNSURE, END], [0])]
    sampler = typical(TYPICAL)
    assert verified(sampler, asked) == [[0, 4]]
    assert verified(sampler, asked, allowed_token_ids_mask=forbidden) == [[1]]


def test_a_seed_repeats_its_tokens_beside_others(on_cpu: None) -> None:
    flat = [0.2] * 5
    strict = replace(SAMPLE, threshold=1, alpha=1.01)  # nothing is accepted
    seeded = Asked([flat, flat], [1], seed=42)
    alone = [verified(typical(strict), [replace(seeded, seed=seed)])[0] for seed in range(20)]
    assert len({tuple(tokens) for tokens in alone}) > 1
    for seed, tokens in enumerate(alone):
        beside = [Asked([flat, flat], [2]), replace(seeded, seed=seed), Asked([flat], [])]
        assert verified(typical(strict), beside)[1] == tokens


@each_recovery
@pytest.mark.parametrize(
    "mode", ["raw_logits", "raw_logprobs", "processed_logits", "processed_logprobs"]
)
def test_logprobs_are_those_of_the_target(on_cpu: None, rule: AcceptanceRule, mode: str) -> None:
    asked = [
        Asked([UNSURE, UNSURE, UNSURE], [1, 3], temperature=0.5, top_k=4),
        Asked([SURE, SURE], [0], temperature=0),
        Asked([UNSURE, UNSURE], [0], temperature=2.0),
    ]
    raw = logits_of(asked)
    processed = raw / torch.tensor([0.5] * 3 + [1.0] * 2 + [2.0] * 2).unsqueeze(-1)
    hidden = processed[:3].topk(4).values[:, -1:]
    processed[:3] = processed[:3].masked_fill(processed[:3] < hidden, float("-inf"))
    expected = processed if mode.startswith("processed") else raw
    if mode.endswith("logprobs"):
        expected = expected.log_softmax(-1)
    sampler = typical(rule, mode)
    for _ in range(2):
        output = sampler(
            metadata_of(asked), None, raw.clone(), sampling_of(asked, max_num_logprobs=0)
        )
        tokens, logprobs = sampler.parse_output(
            output.sampled_token_ids, 5, logprobs_tensors=output.logprobs_tensors
        )
        assert [row[0] for row in tokens] == [1, 0, 0]
        assert tokens[0][1] != 3
        rows = [0, 1, 3, 4, 5, 6]
        flat = [token for row in tokens for token in row]
        assert logprobs is not None
        assert logprobs.logprob_token_ids[:, 0].tolist() == flat
        assert logprobs.logprobs[:, 0].tolist() == pytest.approx(
            [float(expected[row, token]) for row, token in zip(rows, flat, strict=True)]
        )


def test_what_one_step_reports_is_not_the_steps_after_it(on_cpu: None) -> None:
    sampler = typical(TYPICAL, "processed_logprobs")
    sampled = [Asked([UNSURE, END], [1], temperature=0.5)]
    greedy = [Asked([SURE, END], [0], temperature=0)]
    for asked, expected in ((sampled, [[1, 4]]), (greedy, [[0, 4]])):
        output = sampler(
            metadata_of(asked), None, logits_of(asked), sampling_of(asked, max_num_logprobs=0)
        )
        tokens, logprobs = sampler.parse_output(
            output.sampled_token_ids, 5, logprobs_tensors=output.logprobs_tensors
        )
        assert tokens == expected
    assert logprobs is not None
    expected_logprob = float(torch.tensor(SURE[0]).log())
    assert logprobs.logprobs[0, 0] == pytest.approx(expected_logprob, abs=1e-6)


# Putting it in.


class Runner(SimpleNamespace):
    """As much of a model runner as the installation touches."""


def runner_with(sampler: Any) -> Runner:
    spec_config = SimpleNamespace(
        rejection_sample_method="standard",
        num_speculative_tokens=3,
        enable_adaptive_verification=False,
    )
    return Runner(
        rejection_sampler=sampler, speculative_config=spec_config, device=torch.device("cpu")
    )


def test_the_sampler_takes_the_place_of_vllms_in_a_v1_runner() -> None:
    runner = runner_with(stock())
    vllms = runner.rejection_sampler
    typical_acceptance.install(runner, SAMPLE)
    assert type(runner.rejection_sampler) is TypicalSampler
    assert runner.rejection_sampler.rule == SAMPLE
    assert runner.rejection_sampler.sampler is vllms.sampler
    typical_acceptance.install(runner, TYPICAL)  # a model that is loaded again
    assert runner.rejection_sampler.rule == TYPICAL


def test_the_sampler_takes_the_place_of_vllms_in_a_v2_runner() -> None:
    vllms = rejection_sampler_v2.RejectionSampler(
        "sampler", runner_with(None).speculative_config, torch.device("cpu")
    )
    runner = runner_with(vllms)
    typical_acceptance.install(runner, SAMPLE)
    assert type(runner.rejection_sampler) is typical_acceptance.TypicalSamplerV2
    assert runner.rejection_sampler.rule == SAMPLE
    assert vars(vllms).items() <= vars(runner.rejection_sampler).items()


def test_it_goes_in_with_a_line_that_says_lossy(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        typical_acceptance.logger, "info", lambda text, *values: said.append(text % values)
    )
    typical_acceptance.install(runner_with(stock()), TYPICAL)
    (line,) = said
    assert "LOSSY" in line
    assert "threshold 0.09, alpha 0.3, recovery argmax" in line


def test_a_rank_that_samples_nothing_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first = SimpleNamespace(is_last_rank=False)
    monkeypatch.setattr(typical_acceptance, "get_pp_group", lambda: first)
    runner = runner_with(None)
    typical_acceptance.install(runner, TYPICAL)
    assert runner.rejection_sampler is None


@pytest.mark.parametrize("sampler", [None, SimpleNamespace()])
def test_any_other_sampler_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, sampler: Any
) -> None:
    monkeypatch.setattr(
        typical_acceptance, "get_pp_group", lambda: SimpleNamespace(is_last_rank=True)
    )
    with pytest.raises(RuntimeError, match="SPEC_DECODING_ACCEPTANCE_METHOD=typical_acceptance"):
        typical_acceptance.install(runner_with(sampler), TYPICAL)
