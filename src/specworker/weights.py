"""What a model's weights take on the GPUs, from the headers of its files or its config."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from specworker import model_size
from specworker.checkpoint import Checkpoint

#: Bits of a weight by method of quantization, its scales included, where a config does not say.
QUANTIZED = {
    "fp8": 8.0,
    "fbgemm_fp8": 8.0,
    "experts_int8": 8.0,
    "mxfp4": 4.25,
    "modelopt": 8.0,
    "modelopt_fp4": 4.5,
    "bitsandbytes": 4.5,
    "torchao": 8.0,
}
#: Weights of one group share a scale of 16 bits, and a zero point; where a config says no size.
GROUP = 128
#: Types that are loaded in the type of the model's hidden states.
_PLAIN = ("F64", "F32", "F16", "BF16")
#: Of the language model; other parts number their layers too.
_LAYER = re.compile(r"(?:(?:language_)?model\.)*layers\.(\d+)\.")


class Tensor(NamedTuple):
    """A tensor, as the header of its file has it: name, type such as `BF16`, number of values."""

    name: str
    kind: str
    values: int


@dataclass(frozen=True)
class Weights:
    """The weights of a model.

    Attributes:
        parameters: how many there are; None where that is not known.
        size: bytes that they take once loaded.
        drafting: bytes of layers of multi-token prediction beside them, loaded for `mtp` alone.
        source: what tells: `headers`, `files` (their size) or `config` (an estimate).
    """

    parameters: int | None
    size: int
    drafting: int = 0
    source: str = "config"


def headers(
    model: Checkpoint, revision: str | None = None, token: str | None = None
) -> list[Tensor]:
    """The headers of a model's weights; of the hub's files, no more than these is downloaded.

    Empty where it has no safetensors under their usual names, or they are out of reach.
    """
    from huggingface_hub import HfApi, get_local_safetensors_metadata
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    local = model.folder is not None and any(model.folder.glob("*.safetensors"))
    try:
        if local or model.folder is None or model.folder == Path(model.name):
            found = get_local_safetensors_metadata(model.folder or model.name)
        else:
            found = HfApi(token=token).get_safetensors_metadata(model.name, revision=revision)
    except (OSError, ValueError, NotASafetensorsRepoError, SafetensorsParsingError):
        return []
    return [
        Tensor(name, tensor.dtype, tensor.parameter_count)
        for file in found.files_metadata.values()
        for name, tensor in file.tensors.items()
    ]


def of(
    model: Checkpoint,
    tensors: Iterable[Tensor],
    *,
    bits: float = 16,
    quantization: str | None = None,
) -> Weights | None:
    """The weights of `model` once loaded.

    Args:
        model: the model, with the size of its files where that is known.
        tensors: what the headers say; empty where they are not known.
        bits: of a weight that is not quantized.
        quantization: the method by which weights are quantized as they are loaded.

    Returns:
        None where nothing tells.
    """
    config, named = model.language, model_size.total(model.language)
    if tensors := list(tensors):
        return _loaded(model, tensors, bits, quantization)
    if model.weight_bytes:
        size = model.weight_bytes
        if not is_quantized(model):
            stored = 32 if config.get("dtype", config.get("torch_dtype")) == "float32" else 16
            size = _quantized(config, int(size * bits / stored), bits, quantization)
        return Weights(named, size, source="files")
    if named is None:
        return None
    each = stored_bits(model) or bits
    ends = model_size.embedded(config)
    size = int((named - ends) * each + ends * bits) // 8
    return Weights(
        named, size if stored_bits(model) else _quantized(config, size, bits, quantization)
    )


def is_quantized(model: Checkpoint) -> bool:
    """Whether its weights are stored quantized."""
    return bool(_quantization(model))


def stored_bits(model: Checkpoint) -> float | None:
    """Bits of a weight as it is stored, by the config; None for weights as they were trained."""
    given = _quantization(model)
    if not given:
        return None
    groups = given.get("config_groups")
    if isinstance(groups, dict) and groups:  # of compressed-tensors
        first = next(iter(groups.values()))
        given = (first.get("weights") if isinstance(first, dict) else None) or given
    width = given.get("num_bits") or given.get("bits") or given.get("w_bit")
    if isinstance(width, int):
        group = given.get("group_size") or given.get("q_group_size") or GROUP
        return width + (16 + width) / max(group, 1) if width < 8 else float(width)
    if given.get("load_in_8bit"):
        return 8.0
    return QUANTIZED.get(str(given.get("quant_method")))


def _quantization(model: Checkpoint) -> Mapping[str, Any]:
    places = (model.config or {}, model.language)
    given = (place.get("quantization_config") for place in places)
    return next((config for config in given if isinstance(config, dict)), {})


def _loaded(
    model: Checkpoint, tensors: Iterable[Tensor], bits: float, quantization: str | None
) -> Weights:
    layers = model_size.number(model.language, "num_hidden_layers")
    quantized = is_quantized(model)
    sizes, count = {False: 0.0, True: 0.0}, 0
    for name, kind, values in tensors:
        place = _LAYER.match(name)
        drafts = name.startswith("mtp.") or bool(place and layers and int(place[1]) >= layers)
        each = bits if kind in _PLAIN and not quantized else _width(kind)
        sizes[drafts] += values * each / 8
        count += 0 if drafts else values
    named = model_size.total(model.language) if quantized else count
    whole = int(sizes[False])
    size = whole if quantized else _quantized(model.language, whole, bits, quantization)
    return Weights(named, size, int(sizes[True]), "headers")


def _quantized(config: Mapping[str, Any], size: int, bits: float, method: str | None) -> int:
    """`size`, where all but the embeddings is quantized by `method`."""
    if (each := QUANTIZED.get(method or "")) is None:
        return size
    ends = min(size, int(model_size.embedded(config) * bits) // 8)
    return ends + int((size - ends) * each / bits)


def _width(kind: str) -> int:
    """Bits of a type of safetensors."""
    digits = re.search(r"\d+", kind)
    return int(digits[0]) if digits else 8
