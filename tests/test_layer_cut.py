import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config
from transformers import Qwen2ForCausalLM as Qwen2

from specworker.layer_cut import cut

DEPTH = 4
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
TOKENS = torch.arange(12).reshape(2, 6) * 5 % 64


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine threads that wait for each other take longer than sums this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def target(folder: Path, *, tied: bool = False, shards: str = "1GB") -> Any:
    """A small random model, also written to `folder`."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied)).eval()
    model.save_pretrained(folder, max_shard_size=shards)
    return model


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        result: torch.Tensor = model(TOKENS).logits
    return result


def built_by_hand(model: Any, layers: Sequence[int]) -> Any:
    """The model with its other layers taken out of the list that holds them."""
    kept = [model.model.layers[layer] for layer in layers]
    for position, layer in enumerate(kept):
        layer.self_attn.layer_idx = position
    model.model.layers = torch.nn.ModuleList(kept)
    model.config.num_hidden_layers = len(layers)
    return model


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layers", [[0], [0, 2], [1, 3], [3, 0], range(DEPTH)])
def test_a_cut_computes_what_the_kept_layers_compute(
    tmp_path: Path, layers: Sequence[int], *, tied: bool
) -> None:
    model = target(tmp_path / "target", tied=tied)
    whole = logits(model)
    folder = cut(tmp_path / "target", layers, tmp_path / "draft")
    draft, notes = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(notes.values()), notes
    assert torch.equal(logits(draft.eval()), logits(built_by_hand(model, layers)))
    assert torch.equal(logits(draft), whole) == (list(layers) == list(range(DEPTH)))
    assert (draft.lm_head.weight is draft.model.embed_tokens.weight) == tied


def test_a_target_in_several_files_gives_a_draft_in_one(tmp_path: Path) -> None:
    model = target(tmp_path / "target", shards="20KB")
    assert len(list((tmp_path / "target").glob("*.safetensors"))) > 2
    folder = cut(tmp_path / "target", [0, 3], tmp_path / "draft")
    assert [file.name for file in folder.glob("model*")] == ["model.safetensors"]
    draft = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert torch.equal(logits(draft), logits(built_by_hand(model, [0, 3])))


def test_a_list_of_layer_kinds_is_cut_with_the_layers(tmp_path: Path) -> None:
    kinds = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    config = Qwen2Config(**SIZES, layer_types=kinds, use_sliding_window=True, sliding_window=4)
    Qwen2(config).save_pretrained(tmp_path / "target")
    folder = cut(tmp_path / "target", [0, 1, 3], tmp_path / "draft")
    draft = AutoModelForCausalLM.from_pretrained(folder)
    assert draft.config.layer_types == [kinds[layer] for layer in (0, 1, 3)]


def test_a_cut_has_the_targets_tokenizer_and_settings_and_nothing_else(tmp_path: Path) -> None:
    target(tmp_path / "target")
    (tmp_path / "target" / "tokenizer.json").write_text('{"a": 1}')
    (tmp_path / "target" / "folder").mkdir()
    folder = cut(tmp_path / "target", [1], tmp_path / "below" / "draft")
    assert folder == tmp_path / "below" / "draft"
    assert {file.name for file in folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert (folder / "tokenizer.json").read_text() == '{"a": 1}'
    before = json.loads((tmp_path / "target" / "config.json").read_text())
    after = json.loads((folder / "config.json").read_text())
    assert after == before | {"num_hidden_layers": 1}


@pytest.mark.parametrize("layers", [[], [DEPTH], [-1], [0, 9], [0, 0]])
def test_layers_that_cannot_be_kept_are_refused(tmp_path: Path, layers: list[int]) -> None:
    target(tmp_path / "target")
    with pytest.raises(ValueError, match="layers"):
        cut(tmp_path / "target", layers, tmp_path / "draft")
    assert not (tmp_path / "draft").exists()
