"""What a model folder or hub repository holds, read from its `config.json` alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specworker.errors import ConfigurationError
from specworker.values import parse_json_object


@dataclass(frozen=True)
class Checkpoint:
    """A model, as far as its small files tell.

    Attributes:
        name: what the user wrote: a hub id or a folder.
        config: its `config.json`; None where it could not be read.
        tensors: names of its tensors; empty where they could not be read.
    """

    name: str
    config: Mapping[str, Any] | None = None
    tensors: frozenset[str] = frozenset()

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
    return Checkpoint(name, config, _tensor_names(file.parent))


def _from_hub(name: str, revision: str | None, token: str | None) -> Path | None:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, "config.json", revision=revision, token=token))
    except (OSError, ValueError):  # every error of the hub's client is one of these
        return None


def _tensor_names(folder: Path) -> frozenset[str]:
    from safetensors import SafetensorError, safe_open

    names: set[str] = set()
    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, framework="np") as tensors:
                names.update(tensors.keys())
        except (OSError, SafetensorError):
            continue  # vLLM says what is wrong with it when it loads the weights
    return frozenset(names)
