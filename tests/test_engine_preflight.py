"""What preflight lets pass works on a real engine."""

import pytest

from specworker import acceptance
from specworker.engine import Engine
from tests.engines import complete


@pytest.mark.engine("tiny draft")
async def test_a_draft_whose_embedding_is_padded_drafts_for_its_target(engine: Engine) -> None:
    config = engine.client.vllm_config.speculative_config
    models = (config.target_model_config, config.draft_model_config)
    assert [model.get_vocab_size() for model in models] == [33, 41]
    assert config.use_heterogeneous_vocab
    before = acceptance.read()
    await complete(engine, "w1 w2 w3", max_tokens=128, ignore_eos=True, temperature=1.0)
    figures = acceptance.read() - before
    assert 0 < figures.accepted < figures.drafted
