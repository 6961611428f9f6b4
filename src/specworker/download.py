"""Models from the hub, before the engine needs them: only the files that vLLM reads."""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch

from specworker.errors import ConfigurationError
from specworker.hub_cache import Found, Models, is_hub_id

#: Weights in formats that are not needed beside safetensors.
OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx*", "*.gguf", "*.ckpt")
#: The same weights a second time, in the layout of another library.
SECOND_COPIES = ("original/*", "consolidated*.safetensors", "onnx/*", "openvino/*", "coreml/*")


def unneeded(files: Sequence[str]) -> list[str]:
    """The files of a repository that vLLM does not read."""
    copies = [file for file in files if _is(file, SECOND_COPIES)]
    weights = [file for file in files if file.endswith(".safetensors") and file not in copies]
    if not weights:
        return []
    return [file for file in files if file in copies or _is(file, OTHER_WEIGHTS)]


def fetch(variable: str, model: Found, token: str | None) -> Found:
    """Download `model`, which `variable` gave, unless it is here already.

    Shows its progress on stderr.

    Raises:
        ConfigurationError: the hub does not have it, does not give it, or is out of reach.
    """
    if model.is_cached or not is_hub_id(model.name):
        return model
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        files = HfApi(token=token).list_repo_files(model.name, revision=model.revision)
        place = snapshot_download(
            model.name, revision=model.revision, token=token, ignore_patterns=unneeded(files)
        )
    except GatedRepoError:
        reason = "is gated; accept its licence on the hub and set HF_TOKEN"
    except RepositoryNotFoundError:
        reason = "is not on the hub, or is private; check the name, or set HF_TOKEN"
    except RevisionNotFoundError:
        reason = f"has no revision {model.revision}"
    except (OSError, ValueError) as error:
        reason = f"cannot be downloaded ({type(error).__name__}); is the hub in reach?"
    else:
        return replace(model, place=place)
    raise ConfigurationError([f"{variable}={model.name}: {reason}; allowed: a model or a folder"])


def fetch_all(models: Models, token: str | None) -> Models:
    """Download the target and the draft, as far as they are not here already.

    Raises:
        ConfigurationError: with one line for each that cannot be had.
    """
    here: dict[str, Found | None] = {}
    problems: list[str] = []
    for variable, model in (("MODEL_NAME", models.target), ("SPECULATIVE_MODEL", models.draft)):
        try:
            here[variable] = model and fetch(variable, model, token)
        except ConfigurationError as error:
            problems.extend(error.problems)
    if problems:
        raise ConfigurationError(problems)
    return Models(*here.values())


def _is(file: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(file, pattern) for pattern in patterns)
