"""The listing in Runpod's Hub, `.runpod/hub.json`: what it is, presets, and the form.

The form is made of the declarations of the worker's variables, those of speculation on
top. Whoever deploys from the Hub sends every variable in it, empty where it has no default.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

from pydantic.fields import FieldInfo

from specworker.form_options import OPTIONS, Option
from specworker.presets import PRESETS
from specworker.settings import Settings
from specworker.variables import Group, declared, kinds

#: The host's CUDA that vLLM's image needs, lowest first: that one is taken as the minimum.
CUDA_VERSIONS = ("13.0", "13.1", "13.2")
#: Pools of GPUs with 48 and 80 GB, which hold the presets of one GPU.
GPU_POOLS = ("AMPERE_48", "ADA_48_PRO", "AMPERE_80", "ADA_80_PRO")
#: Holds a model of 70B parameters in 16 bits and its draft.
DISK_GB = 200
TITLE = "vLLM with speculative decoding"
DESCRIPTION = (
    "OpenAI-compatible LLM endpoints on vLLM 0.32, sped up by speculative decoding: n-gram, "
    "suffix, EAGLE-3, MTP, Medusa or a draft model, with acceptance figures in every answer."
)
ICON = (
    "https://raw.githubusercontent.com/vllm-project/vllm/main/docs/assets/logos/"
    "vllm-logo-only-light.png"
)

#: How words of a variable are written in its label.
SPELLING = {"ngram": "n-gram", "mb": "(MB)", "ms": "(ms)", "s": "(s)", "openai": "OpenAI"}


def listing() -> dict[str, Any]:
    """The content of `hub.json`."""
    return {
        "title": TITLE,
        "description": DESCRIPTION,
        "type": "serverless",
        "category": "language",
        "iconUrl": ICON,
        "config": {
            "runsOn": "GPU",
            "containerDiskInGb": DISK_GB,
            "gpuCount": 1,
            "gpuIds": ",".join(GPU_POOLS),
            "allowedCudaVersions": [*CUDA_VERSIONS],
            "presets": [
                {"name": preset.name, "defaults": dict(preset.values)} for preset in PRESETS
            ],
            "env": [{"key": key, "input": asked} for key, asked in form().items()],
        },
    }


def form() -> dict[str, dict[str, Any]]:
    """What the form asks for, by variable."""
    options = {option.name: _of_option(option) for option in OPTIONS}
    worker = dict(_of_group("Worker")) | dict(_of_group("Legacy"))
    return dict(_of_group("Speculation")) | dict(_of_group("Model")) | options | worker


def _of_group(group: Group) -> Iterator[tuple[str, dict[str, Any]]]:
    """The variables of a group, the first ones first."""
    fields = {
        name: field
        for name, field in Settings.model_fields.items()
        if declared(field)["group"] == group
    }
    for place in ("first", "advanced"):
        for name, field in fields.items():
            if declared(field)["place"] == place:
                yield name.upper(), _of_variable(name, field)


def _of_variable(name: str, field: FieldInfo) -> dict[str, Any]:
    extra = declared(field)
    asked: dict[str, Any] = {
        "name": _label(name, field),
        "type": "string",
        "description": field.description,
    }
    (kind,) = kinds(field.annotation)
    if kind is bool:
        asked |= _boolean(field.default)
    elif getattr(kind, "__origin__", None) is Literal:
        asked |= _choice(get_args(kind), field.default)
    elif kind in (int, float):
        asked["type"] = "number"
        asked |= _bounds(field)
        if field.default is not None:
            asked["default"] = field.default
    elif name == "model_name":
        asked |= {"type": "huggingface", "required": True}
    return asked if extra["place"] == "first" else asked | {"advanced": True}


def _of_option(option: Option) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "name": option.label,
        "type": option.kind,
        "description": option.text,
    }
    if option.kind == "boolean":
        asked |= _boolean(option.default)
    elif option.choices:
        asked |= _choice(option.choices, option.default)
    elif option.default is not None:
        asked["default"] = option.default
    if option.kind == "number":
        asked["min"] = 0
        if option.highest is not None:
            asked["max"] = option.highest
    return asked if option.place == "first" else asked | {"advanced": True}


def _label(name: str, field: FieldInfo) -> str:
    extra = declared(field)
    words = [SPELLING.get(word, word) for word in name.split("_")]
    in_speculation = extra["group"] == "Speculation"
    if in_speculation and words[0] in ("speculative", "speculation"):
        words = words[1:]
    label = str(extra["label"] or " ".join(words))
    return f"Speculation: {label}" if in_speculation else f"{label[0].upper()}{label[1:]}"


def _boolean(default: Any) -> dict[str, Any]:
    """A switch; a choice with an empty value where nothing is the default."""
    if default is not None:
        return {"type": "boolean", "default": default}
    return {"type": "string"} | _choice(("true", "false"), None)


def _choice(values: Sequence[str], default: Any) -> dict[str, Any]:
    options = [{"label": value, "value": value} for value in values]
    if default is None:
        options.insert(0, {"label": "(unset)", "value": ""})
    return {"options": options, "default": default or ""}


def _bounds(field: FieldInfo) -> dict[str, Any]:
    """The ends of a number. Zero is let through where it means unset: consoles send it."""
    ends: dict[str, Any] = {}
    for constraint in field.metadata:
        for attribute, end in (("ge", "min"), ("gt", "min"), ("le", "max")):
            if hasattr(constraint, attribute):
                ends[end] = getattr(constraint, attribute)
    return ends | {"min": 0} if declared(field)["zero_is_unset"] else ends
