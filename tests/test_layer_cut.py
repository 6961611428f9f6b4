import json
import os
import shutil
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
)
from transformers import Qwen2ForCausalLM as Qwen2

from specworker import layer_cut
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
@pytest.mark.parametrize("layers", [[0], [0, 2], [1, 3], range(DEPTH)])
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


@pytest.mark.parametrize("tied", [False, True])
def test_a_target_in_several_files_gives_a_draft_in_several(tmp_path: Path, *, tied: bool) -> None:
    model = target(tmp_path / "target", tied=tied, shards="20KB")
    (tmp_path / "target" / "consolidated.safetensors").write_bytes(b"a second copy")
    folder = cut(tmp_path / "target", [0, 3], tmp_path / "draft")
    files = sorted(file.name for file in folder.glob("*.safetensors"))
    assert len(files) > 1
    assert files[-1] == f"model-{len(files):05}-of-{len(files):05}.safetensors"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(files)
    draft, notes = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(notes.values()), notes
    assert torch.equal(logits(draft.eval()), logits(built_by_hand(model, [0, 3])))
    sizes = {tensor.data_ptr(): tensor.nbytes for tensor in draft.state_dict().values()}
    assert index["metadata"]["total_size"] == sum(sizes.values())


def test_files_that_only_the_index_names_are_the_weights(tmp_path: Path) -> None:
    model = target(tmp_path / "target", shards="20KB")
    shutil.copy(
        next((tmp_path / "target").glob("*.safetensors")), tmp_path / "target" / "a.safetensors"
    )
    folder = cut(tmp_path / "target", [1, 2], tmp_path / "draft")
    draft = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert torch.equal(logits(draft), logits(built_by_hand(model, [1, 2])))


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.int32, torch.uint8]
)
def test_weights_of_any_type_are_copied_as_they_are(tmp_path: Path, dtype: torch.dtype) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text('{"num_hidden_layers": 2}')
    (tmp_path / "target" / "hf_quant_config.json").write_text(
        '{"quantization": {"exclude_modules": ["model.layers.0.a", "model.layers.1.b"]}}'
    )
    tensors = {
        f"model.layers.{layer}.mlp.{name}": (torch.arange(12).reshape(3, 4) + layer).to(dtype)
        for layer in (0, 1)
        for name in ("weight_packed", "weight_scale")
    }
    save_file(tensors | {"odd": torch.ones(1, dtype=dtype)}, tmp_path / "target" / "x.safetensors")
    folder = cut(tmp_path / "target", [1], tmp_path / "draft")
    start = int.from_bytes((folder / "model.safetensors").read_bytes()[:8], "little")
    assert start % 8 == 0  # as the format asks for
    copied = load_file(folder / "model.safetensors")
    assert set(copied) == {
        "model.layers.0.mlp.weight_packed",
        "model.layers.0.mlp.weight_scale",
        "odd",
    }
    for name in ("weight_packed", "weight_scale"):
        own, whole = copied[f"model.layers.0.mlp.{name}"], tensors[f"model.layers.1.mlp.{name}"]
        assert own.dtype == whole.dtype
        assert torch.equal(own.view(torch.uint8), whole.view(torch.uint8))
    quantization = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]
    assert quantization == {"exclude_modules": ["model.layers.0.b"]}


def test_a_target_is_never_in_memory_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text('{"num_hidden_layers": 2}')
    large = {f"model.layers.{layer}.mlp": torch.full((2**23,), layer + 1.0) for layer in (0, 1)}
    save_file(large, tmp_path / "target" / "model.safetensors")
    monkeypatch.setattr(layer_cut, "PIECE", 2**20)
    tracemalloc.start()
    folder = cut(tmp_path / "target", [1], tmp_path / "draft")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 2**20
    copied = load_file(folder / "model.safetensors")
    assert torch.equal(copied["model.layers.0.mlp"], large["model.layers.1.mlp"])


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
    (tmp_path / "target" / "pytorch_model.bin").write_text("the weights a second time")
    (tmp_path / "target" / "consolidated.safetensors").write_text("and a third time")
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


@pytest.mark.parametrize("layers", [[], [DEPTH], [-1], [0, 9], [0, 0], [3, 0]])
def test_layers_that_cannot_be_kept_are_refused(tmp_path: Path, layers: list[int]) -> None:
    target(tmp_path / "target")
    with pytest.raises(ValueError, match="layers"):
        cut(tmp_path / "target", layers, tmp_path / "draft")
    assert not (tmp_path / "draft").exists()


def test_a_model_of_another_layout_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=16)).save_pretrained(
        tmp_path / "target"
    )
    with pytest.raises(ValueError, match="num_hidden_layers=None"):
        cut(tmp_path / "target", [0], tmp_path / "draft")
    assert not (tmp_path / "draft").exists()


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("model.safetensors", None, "it has no weights in safetensors"),
        ("model.safetensors", b"\xff" * 64, "model.safetensors is no safetensors file"),
        ("model.safetensors", b"\x10\0\0\0\0\0\0\0no JSON in this..", "is not valid JSON"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "gone.safetensors"}}', "gone"),
    ],
)
def test_weights_that_cannot_be_read_are_named(
    tmp_path: Path, file: str, content: bytes | None, said: str
) -> None:
    target(tmp_path / "target")
    if content is None:
        (tmp_path / "target" / file).unlink()
    else:
        (tmp_path / "target" / file).write_bytes(content)
    with pytest.raises((ValueError, OSError), match=said):
        cut(tmp_path / "target", [0], tmp_path / "draft")
    assert not (tmp_path / "draft").exists()


def test_weights_that_end_too_early_are_named(tmp_path: Path) -> None:
    target(tmp_path / "target")
    file = tmp_path / "target" / "model.safetensors"
    os.truncate(file, file.stat().st_size - 100)
    with pytest.raises(ValueError, match=r"model\.safetensors ends too early"):
        cut(tmp_path / "target", range(DEPTH), tmp_path / "draft")
