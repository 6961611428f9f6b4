"""What a model folder or hub repository holds, as far as its small files tell."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specworker import model_size, vocabulary
from specworker.errors import ConfigurationError
from specworker.values import parse_json_object

#: Where the config of a model of several parts keeps that of its language model.
OF_LANGUAGE = ("text_config", "thinker_config", "llm_config", "transformer_layer_config")
#: What names the longest sequence, in vLLM's words for all architectures.
OF_CONTEXT = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
#: Kinds of RoPE whose factor is not in that length yet.
SCALING_ROPE = ("linear", "dynamic")
#: Names the files of a model's weights and says how large they are.
INDEX = "model.safetensors.index.json"
#: Weights in vLLM's order: those of the first kind that is there are loaded.
WEIGHTS = ("*.safetensors", "*.bin")


@dataclass(frozen=True)
class Checkpoint:
    """A model, as far as its small files tell.

    Attributes:
        name: what the user wrote: a hub id or a folder.
        config: its `config.json`; None where it could not be read.
        tensors: shapes of its tensors by name; empty where they could not be read.
        folder: where its small files are; None where they could not be read.
        weight_bytes: size of its weights; None where it is not known, or was not asked for.
        tokenizer: where its tokenizer is; None where it has none, or was not asked for.
    """

    name: str
    config: Mapping[str, Any] | None = None
    tensors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    folder: Path | None = field(default=None, compare=False)
    weight_bytes: int | None = None
    tokenizer: Path | None = field(default=None, compare=False)

    @property
    def language(self) -> Mapping[str, Any]:
        """The config of its language model; empty where it could not be read."""
        config = self.config or {}
        for part in OF_LANGUAGE:
            if isinstance(inner := config.get(part), dict):
                return replace(self, config=inner).language
        return config

    @property
    def hidden_size(self) -> int | None:
        """Width of its hidden states."""
        return _count(self.language.get("hidden_size"))

    @property
    def vocabulary_size(self) -> int | None:
        """Rows of its embedding: the size of its vocabulary, padding included."""
        return _count(self.language.get("vocab_size"))

    @property
    def context(self) -> int | None:
        """The longest sequence that it was made for, in tokens."""
        lengths = [length for key in OF_CONTEXT if (length := _count(self.language.get(key)))]
        if not lengths:
            return None
        rope = self.language.get("rope_parameters") or self.language.get("rope_scaling") or {}
        scales = isinstance(rope, dict) and rope.get("rope_type", rope.get("type")) in SCALING_ROPE
        return int(min(lengths) * (rope.get("factor") or 1)) if scales else min(lengths)

    @property
    def parameters(self) -> int | None:
        """About how many parameters a token passes through."""
        if (estimate := model_size.parameters(self.language)) is not None:
            return estimate
        return self.weight_bytes and self.weight_bytes // model_size.BYTES

    @property
    def drafted_tokens(self) -> int | None:
        """The K that the checkpoint was made for, where it declares one."""
        if self.config is None:
            return None
        speculators = self.config.get("speculators_config") or {}
        proposals = speculators.get("proposal_methods") or [{}]
        declared = (
            proposals[0].get("speculative_tokens"),
            self.config.get("n_predict"),
            self.config.get("medusa_num_heads"),
            self.config.get("num_heads") if self.config.get("model_type") == "medusa" else None,
        )
        return next((int(tokens) for tokens in declared if tokens), None)


def is_path(name: str) -> bool:
    """Whether a model's name can only mean a place in the file system."""
    return name.startswith(("/", "./", "../"))


def check(variable: str, name: str) -> None:
    """Refuse a path at which there is no folder.

    Raises:
        ConfigurationError: `name`, which `variable` gave, is such a path.
    """
    if name.startswith("~"):
        raise ConfigurationError(
            [f"{variable}={name}: nothing expands ~ here; allowed: a hub id or a whole path"]
        )
    if is_path(name) and not Path(name).exists():
        raise ConfigurationError(
            [f"{variable}={name}: there is no such folder; allowed: a hub id or an existing folder"]
        )


def read(
    variable: str,
    name: str,
    revision: str | None = None,
    token: str | None = None,
    place: str | None = None,
) -> Checkpoint:
    """Read what can be read of the model `name`, which `variable` gave.

    A hub repository that cannot be reached is no error here: vLLM reports it when it
    needs the weights. Nor is it asked where `place`, the folder of its files, is known.

    Raises:
        ConfigurationError: `name` is a path and no folder stands there, or its
            `config.json` is no JSON object.
    """
    check(variable, name)
    folder = Path(place or name)
    file = folder / "config.json" if folder.is_dir() else _from_hub(name, revision, token)
    if file is None or not file.is_file():
        return Checkpoint(name)
    try:
        config = parse_json_object(file.read_text())
    except ValueError as error:
        raise ConfigurationError([f"{variable}={name}: its config.json {error}"]) from None
    return Checkpoint(name, config, dict(_tensors(file.parent)), file.parent)


def complete(
    checkpoint: Checkpoint, revision: str | None = None, token: str | None = None
) -> Checkpoint:
    """`checkpoint` with its tokenizer and the size of its weights, as far as they can be had.

    Of a hub repository small files are downloaded. That is no error where it fails.
    """
    folder = checkpoint.folder
    if folder is None:
        return checkpoint
    if folder != Path(checkpoint.name):
        _download_small_files(checkpoint.name, folder, revision, token)
    tokenizer = folder if vocabulary.is_in(folder) else None
    return replace(checkpoint, tokenizer=tokenizer, weight_bytes=_weight_bytes(folder))


def _from_hub(name: str, revision: str | None, token: str | None) -> Path | None:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, "config.json", revision=revision, token=token))
    except (OSError, ValueError):  # every error of the hub's client is one of these
        return None


def _download_small_files(name: str, folder: Path, revision: str | None, token: str | None) -> None:
    """Have the hub's files that tell vocabulary and size in `folder`, its snapshot."""
    from huggingface_hub import HfApi, hf_hub_download

    if any(any(folder.glob(kind)) for kind in WEIGHTS):
        return  # the snapshot is whole, or as whole as it can be had
    try:
        present = set(HfApi(token=token).list_repo_files(name, revision=revision))
        whole = vocabulary.TOKENIZER in present
        wanted = (INDEX, vocabulary.TOKENIZER) if whole else (INDEX, *vocabulary.FILES)
        for file in wanted:
            if file in present and not (folder / file).exists():
                hf_hub_download(name, file, revision=revision, token=token)
    except (OSError, ValueError):
        return


def _tensors(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors in `folder`, without reading any."""
    from safetensors import SafetensorError, safe_open

    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, framework="np") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                    yield name, tuple(tensors.get_slice(name).get_shape())
        except (OSError, SafetensorError):
            continue  # vLLM says what is wrong with it when it loads the weights


def _weight_bytes(folder: Path) -> int | None:
    try:
        metadata = parse_json_object((folder / INDEX).read_text()).get("metadata")
    except (OSError, ValueError):
        metadata = None
    if isinstance(metadata, dict) and (total := _count(metadata.get("total_size"))):
        return total
    kinds = ([file for file in folder.glob(kind) if file.exists()] for kind in WEIGHTS)
    return next((sum(file.stat().st_size for file in files) for files in kinds if files), None)


def _count(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and value > 0 else None
