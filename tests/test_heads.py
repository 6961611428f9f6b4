import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers import Qwen2ForCausalLM as Qwen2

from builder import heads
from builder.__main__ import main
from builder.mtp import mtp
from specworker import checkpoint, drafting
from specworker.main import configure

V, H, INNER, QUERIES, KEYS = 64, 32, 48, 32, 16
DEPTH = 8
#: The weights of a Llama layer without its input norm, whose attention reads H values a token.
LAYER = {
    "self_attn.q_proj.weight": (QUERIES, H),
    "self_attn.k_proj.weight": (KEYS, H),
    "self_attn.v_proj.weight": (KEYS, H),
    "self_attn.o_proj.weight": (H, QUERIES),
    "mlp.gate_proj.weight": (INNER, H),
    "mlp.up_proj.weight": (INNER, H),
    "mlp.down_proj.weight": (H, INNER),
    "post_attention_layernorm.weight": (H,),
}
EAGLE3_LAYER = LAYER | {
    "self_attn.q_proj.weight": (QUERIES, 2 * H),
    "self_attn.k_proj.weight": (KEYS, 2 * H),
    "self_attn.v_proj.weight": (KEYS, 2 * H),
    "hidden_norm.weight": (H,),
    "input_layernorm.weight": (H,),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine threads that wait for each other take longer than sums this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def written(folder: Path, *, depth: int = DEPTH, tied: bool = False) -> Any:
    """A small random Llama, also written to `folder`."""
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "hidden_size": H, "intermediate_size": INNER}
    config = LlamaConfig(
        **sizes,
        num_hidden_layers=depth,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.fixture
def target(tmp_path: Path) -> Path:
    written(tmp_path / "target")
    return tmp_path / "target"


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in load_file(folder / "model.safetensors").items()}


def config_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


def under(prefix: str, tensors: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}{name}": shape for name, shape in tensors.items()}


# What is written.


def test_medusa_has_a_block_and_an_output_layer_a_head(target: Path, tmp_path: Path) -> None:
    assert shapes(heads.medusa(target, 2, tmp_path / "head")) == {
        "blocks.0.layers.0.weight": (H, H),
        "blocks.1.layers.0.weight": (H, H),
        "lm_heads.0.weight": (V, H),
        "lm_heads.1.weight": (V, H),
    }


def test_an_mlp_speculator_has_its_weights_a_stage(target: Path, tmp_path: Path) -> None:
    head = heads.mlp_speculator(target, 2, tmp_path / "head", inner=24)
    stage = {"emb": (V, 24), "head": (V, 24)}
    assert shapes(head) == {
        **{f"speculator.{part}.{i}.weight": stage[part] for part in stage for i in (0, 1)},
        **{f"speculator.ln.{i}.{part}": (24,) for part in ("weight", "bias") for i in (0, 1)},
        "speculator.proj.0.weight": (24, H),
        "speculator.proj.1.weight": (24, 24),
    }
    assert config_of(head)["inner_dim"] == 24


def test_a_tied_mlp_speculator_keeps_what_its_stages_share_once(
    target: Path, tmp_path: Path
) -> None:
    head = heads.mlp_speculator(target, 4, tmp_path / "head", tied=True, scaled=True)
    assert shapes(head) == {
        "speculator.emb.0.weight": (V, H),
        "speculator.head.0.weight": (V, H),
        "speculator.ln.0.weight": (H,),
        "speculator.ln.0.bias": (H,),
        "speculator.proj.0.weight": (H, H),
        "speculator.proj.1.weight": (H, H),
    }
    config = config_of(head)
    assert (config["tie_weights"], config["scale_input"], config["n_predict"]) == (True, True, 4)


def test_a_single_stage_cannot_be_tied(target: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allowed: two or more"):
        heads.mlp_speculator(target, 1, tmp_path / "head", tied=True)


def test_eagle_shares_the_targets_embedding_and_output_layer(target: Path, tmp_path: Path) -> None:
    head = heads.eagle(target, tmp_path / "head")
    assert shapes(head) == {"fc.weight": (H, 2 * H)} | under("layers.0.", LAYER)
    config, of_target = config_of(head), config_of(target)
    assert config["num_hidden_layers"] == 1
    same = ("hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    assert [config[key] for key in same] == [of_target[key] for key in same]


def test_eagle3_reads_three_hidden_states(target: Path, tmp_path: Path) -> None:
    rest = {"norm.weight": (H,), "fc.weight": (H, 3 * H), "lm_head.weight": (V, H)}
    head = heads.eagle3(target, tmp_path / "head")
    assert shapes(head) == rest | under("midlayer.", EAGLE3_LAYER)
    # Where they are read is left to the engine.
    assert "eagle_aux_hidden_state_layer_ids" not in config_of(head)
    head = heads.eagle3(target, tmp_path / "speculators", speculators=True)
    assert shapes(head) == rest | under("layers.0.", EAGLE3_LAYER)
    assert config_of(head)["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]


@pytest.mark.parametrize(("depth", "read"), [(2, [0, 1, 2]), (6, [0, 3, 6])])
def test_eagle3_says_where_it_reads_a_shallow_target(
    tmp_path: Path, depth: int, read: list[int]
) -> None:
    written(tmp_path / "target", depth=depth)
    head = heads.eagle3(tmp_path / "target", tmp_path / "head")
    assert config_of(head)["eagle_aux_hidden_state_layer_ids"] == read


def test_eagle3_needs_three_places_to_read(tmp_path: Path) -> None:
    written(tmp_path / "target", depth=1)
    with pytest.raises(ValueError, match="allowed: two or more"):
        heads.eagle3(tmp_path / "target", tmp_path / "head")


@pytest.mark.parametrize("speculators", [False, True])
def test_a_reduced_vocabulary_maps_to_distinct_tokens_of_the_target(
    target: Path, tmp_path: Path, *, speculators: bool
) -> None:
    head = heads.eagle3(target, tmp_path / "head", vocabulary=24, speculators=speculators)
    tensors = load_file(head / "model.safetensors")
    assert tensors["lm_head.weight"].shape == (24, H)
    assert config_of(head)["draft_vocab_size"] == 24
    of_target = torch.arange(24) + tensors["d2t"]
    assert of_target.unique().tolist() == of_target.tolist()
    assert (tensors["d2t"].dtype, tensors["t2d"].dtype) == (torch.int64, torch.bool)
    assert tensors["t2d"].nonzero().flatten().tolist() == of_target.tolist()
    assert tensors["t2d"].shape == (V,)
    assert tensors["d2t"].any()


@pytest.mark.parametrize("vocabulary", [0, V + 1])
def test_a_vocabulary_that_is_no_part_of_the_targets_is_refused(
    target: Path, tmp_path: Path, vocabulary: int
) -> None:
    with pytest.raises(ValueError, match=f"allowed: 1 to {V}"):
        heads.eagle3(target, tmp_path / "head", vocabulary=vocabulary)


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_with_mtp_computes_what_its_target_does(tmp_path: Path, *, tied: bool) -> None:
    model = written(tmp_path / "target", depth=2, tied=tied)
    (tmp_path / "target" / "tokenizer.json").write_text("{}")
    folder = mtp(tmp_path / "target", tmp_path / "mtp")
    assert (folder / "tokenizer.json").is_file()
    config = config_of(folder)
    assert config["architectures"] == ["MiMoForCausalLM"]
    assert config["num_nextn_predict_layers"] == 1
    own = {
        name.removeprefix("model.mtp_layers.0."): shape
        for name, shape in shapes(folder).items()
        if "mtp_layers" in name
    }
    norms = ("token_layernorm", "hidden_layernorm", "input_layernorm", "final_layernorm")
    assert own == {
        **LAYER,
        **{f"{norm}.weight": (H,) for norm in norms},
        "input_proj.weight": (H, 2 * H),
        "self_attn.q_proj.bias": (QUERIES,),
        "self_attn.k_proj.bias": (KEYS,),
        "self_attn.v_proj.bias": (KEYS,),
    }
    tokens = torch.arange(12).reshape(2, 6) * 5 % V
    rest = {
        name: t for name, t in load_file(folder / "model.safetensors").items() if "mtp" not in name
    }
    kept = {
        key: value for key, value in config.items() if key not in ("architectures", "model_type")
    }
    qwen2 = Qwen2(Qwen2.config_class(**kept)).eval()
    missing = qwen2.load_state_dict(rest, strict=False)
    assert set(missing.missing_keys) <= ({"lm_head.weight"} if tied else set())
    qwen2.tie_weights()
    with torch.inference_mode():
        torch.testing.assert_close(qwen2(tokens).logits, model(tokens).logits)


def test_mtp_is_refused_where_the_heads_are_not_those_of_qwen2(tmp_path: Path) -> None:
    written(tmp_path / "target", depth=1)
    file = tmp_path / "target" / "config.json"
    file.write_text(json.dumps(config_of(tmp_path / "target") | {"head_dim": 16}))
    with pytest.raises(ValueError, match="do not make up the hidden size"):
        mtp(tmp_path / "target", tmp_path / "mtp")


# What the worker takes them for.

MADE: dict[str, tuple[Callable[[Path, Path], Path], str, int | None]] = {
    "eagle": (heads.eagle, "eagle", None),
    "eagle3": (heads.eagle3, "eagle3", None),
    "eagle3, part of the vocabulary": (
        lambda target, head: heads.eagle3(target, head, vocabulary=24),
        "eagle3",
        None,
    ),
    "eagle3 of speculators": (
        lambda target, head: heads.eagle3(target, head, speculators=True, tokens=5),
        "eagle3",
        5,
    ),
    "medusa": (lambda target, head: heads.medusa(target, 4, head), "medusa", 4),
    "mlp_speculator": (
        lambda target, head: heads.mlp_speculator(target, 4, head),
        "mlp_speculator",
        4,
    ),
    "tied mlp_speculator": (
        lambda target, head: heads.mlp_speculator(target, 2, head, tied=True),
        "mlp_speculator",
        2,
    ),
    "mtp": (mtp, "mtp", None),
}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("folder", ["head", "my-eagle-medusa-mtp"])
def test_a_folder_alone_says_its_method_and_how_many_tokens(
    target: Path, tmp_path: Path, kind: str, folder: str
) -> None:
    make, method, tokens = MADE[kind]
    head = make(target, tmp_path / folder)
    _, decided, _ = configure({"MODEL_NAME": str(target), "SPECULATIVE_MODEL": str(head)})
    assert decided.config == {
        "method": method,
        "model": str(head),
        "num_speculative_tokens": tokens or drafting.DEFAULT_TOKENS,
    }
    assert (decided.notes, decided.problems) == ((), ())


def test_a_head_is_the_same_in_every_run(target: Path, tmp_path: Path) -> None:
    first, second = (heads.eagle(target, tmp_path / name) for name in ("one", "two"))
    for name, tensor in load_file(first / "model.safetensors").items():
        assert torch.equal(tensor, load_file(second / "model.safetensors")[name])


# The command.


@pytest.mark.parametrize(
    ("words", "method"),
    [
        ("eagle", "eagle"),
        ("eagle3 --vocabulary 24 --speculators", "eagle3"),
        ("medusa --heads 2", "medusa"),
        ("mlp_speculator --heads 2 --inner 24 --tied --scaled", "mlp_speculator"),
        ("mtp", "mtp"),
    ],
)
def test_the_command_writes_a_head_and_says_how_to_run_it(
    target: Path, tmp_path: Path, words: str, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head = tmp_path / "head"
    named, *options = words.split()
    assert main(["heads", named, str(target), str(head), *options]) == 0
    known = checkpoint.read("SPECULATIVE_MODEL", str(head))
    assert drafting.method_of(known)[0] == method
    served = head if method == "mtp" else target
    said = f"MODEL_NAME={served} SPECULATIVE_MODEL={head} python handler.py"
    assert capsys.readouterr().out.startswith(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("eagle missing {head}", "has no config.json"),
        ("eagle3 {target} {head} --vocabulary 65", "allowed: 1 to 64"),
        ("medusa {target} {head} --heads 0", "no positive number"),
        ("eagle {target} {head} --heads 2", "unrecognized arguments: --heads"),
        ("ngram {target} {head}", "invalid choice"),
    ],
)
def test_the_command_says_what_is_wrong(
    target: Path, tmp_path: Path, words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = words.format(target=target, head=tmp_path / "head").split()
    with pytest.raises(SystemExit) as ended:
        main(["heads", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "head").exists()


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_embd": 768, "vocab_size": 9}')
    with pytest.raises(ValueError, match="hidden_size, intermediate_size, num_attention_heads"):
        heads.eagle(tmp_path, tmp_path / "head")
