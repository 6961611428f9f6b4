"""A draft made of some of a target's own layers (self-speculation, arXiv 2309.08168)."""

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from specworker import layer_layout
from specworker.checkpoint import INDEX
from specworker.values import parse_json_object

logger = logging.getLogger(__name__)

#: Files of a target that its draft shares, by their endings, but for those of its weights.
SHARED = (".json", ".jinja", ".model", ".py", ".tiktoken", ".txt")
NOT_SHARED = (INDEX, "params.json")
#: Files that name modules, of which some are cut.
NAMING = ("hf_quant_config.json",)
#: A second copy of the weights, in the layout of another library.
SECOND_COPY = "consolidated"
#: Bytes that are in memory at a time.
PIECE = 16 * 1024**2
#: Bytes from which on progress is logged.
LARGE = 1024**3


@dataclass(frozen=True)
class Part:
    """What a draft takes of one file of weights.

    Attributes:
        file: the file, in the safetensors format.
        start: where the tensors' bytes start in it.
        tensors: what is taken: the name in the draft, and what the file's header says.
        metadata: what the header says of all of it.
    """

    file: Path
    start: int
    tensors: Mapping[str, Mapping[str, Any]]
    metadata: Mapping[str, str]

    @property
    def size(self) -> int:
        """Bytes of the tensors."""
        spans = (header["data_offsets"] for header in self.tensors.values())
        return sum(int(end) - int(begin) for begin, end in spans)


def parts(target: Path, layers: Sequence[int]) -> list[Part]:
    """What a draft of `layers` takes of the weights in `target`.

    Raises:
        ValueError: no such draft can be made of it; the text is a clause for the user.
        OSError: a file cannot be read.
    """
    config = _json(target / "config.json")
    index = target / INDEX
    listed = _json(index).get("weight_map") if index.is_file() else None
    files = {target / file for file in listed.values()} if isinstance(listed, dict) else set()
    files = files or {
        file for file in target.glob("*.safetensors") if not file.name.startswith(SECOND_COPY)
    }
    if not files:
        raise ValueError("it has no weights in safetensors")
    headers = {file: _header(file) for file in sorted(files)}
    names = [name for header, _ in headers.values() for name in header]
    if reason := layer_layout.unfit(config, names):
        raise ValueError(reason)
    depth = config["num_hidden_layers"]
    rising = list(layers) == sorted(set(layers))
    if not layers or not rising or layers[0] < 0 or layers[-1] >= depth:
        raise ValueError(f"layers {list(layers)} are not some of its {depth}, in rising order")
    return [part for file in headers if (part := _part(file, *headers[file], layers)).tensors]


def cut(target: Path, layers: Sequence[int], draft: Path) -> Path:
    """Write a model to `draft` that keeps only `layers` of the one in `target`.

    Embeddings, final norm and output head are the target's. The weights are copied as
    they are, whatever their type, in as many files as there are.

    Args:
        target: a folder with config.json and safetensors.
        layers: the layers to keep, in rising order.
        draft: the folder to write.

    Raises:
        ValueError: no such draft can be made of the target; the text is a clause for the user.
        OSError: a file cannot be read or written.
    """
    taken = parts(target, layers)
    draft.mkdir(parents=True, exist_ok=True)
    total, written = sum(part.size for part in taken), 0
    place: dict[str, str] = {}
    for number, part in enumerate(taken, 1):
        name = f"model-{number:05}-of-{len(taken):05}.safetensors"
        name = name if len(taken) > 1 else "model.safetensors"
        _copy(part, draft / name)
        place |= dict.fromkeys(part.tensors, name)
        written += part.size
        if total >= LARGE:
            logger.info("%.1f of %.1f GiB of the draft written", written / LARGE, total / LARGE)
    if len(taken) > 1:
        _write(draft / INDEX, {"metadata": {"total_size": total}, "weight_map": place})
    config = layer_layout.config_of(_json(target / "config.json"), layers)
    for file in target.iterdir():
        if file.name in NAMING:
            _write(draft / file.name, layer_layout.renumbered(_json(file), layers))
        elif file.is_file() and file.suffix in SHARED and file.name not in NOT_SHARED:
            shutil.copyfile(file, draft / file.name)
    _write(draft / "config.json", config)
    return draft


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """What the header of a safetensors file says, and where the tensors' bytes start."""
    with file.open("rb") as source:
        length = int.from_bytes(source.read(8), "little")
        if length > file.stat().st_size:
            raise ValueError(f"{file.name} is no safetensors file")
        header = parse_json_object(source.read(length).decode())
    return header, 8 + length


def _part(file: Path, header: Mapping[str, Any], start: int, layers: Sequence[int]) -> Part:
    metadata = header.get("__metadata__") or {"format": "pt"}
    tensors = {
        kept: tensor
        for name, tensor in header.items()
        if name != "__metadata__" and (kept := layer_layout.kept(name, layers))
    }
    return Part(file, start, tensors, metadata)


def _copy(part: Part, target: Path) -> None:
    """Write a safetensors file with what is taken of one."""
    header: dict[str, Any] = {"__metadata__": dict(part.metadata)}
    end = 0
    for name, tensor in part.tensors.items():
        begin, end = end, end + tensor["data_offsets"][1] - tensor["data_offsets"][0]
        header[name] = {**tensor, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the bytes of tensors
    with part.file.open("rb") as source, target.open("wb") as written:
        written.write(len(text).to_bytes(8, "little") + text)
        for tensor in part.tensors.values():
            begin, end = tensor["data_offsets"]
            source.seek(part.start + begin)
            _copy_bytes(source, written, end - begin)


def _copy_bytes(source: BinaryIO, written: BinaryIO, count: int) -> None:
    while count:
        piece = source.read(min(count, PIECE))
        if not piece:
            raise ValueError(f"{Path(source.name).name} ends too early")
        written.write(piece)
        count -= len(piece)


def _json(file: Path) -> dict[str, Any]:
    value: dict[str, Any] = parse_json_object(file.read_text())
    return value


def _write(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n")
