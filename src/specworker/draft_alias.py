"""A neutral path for a draft whose own path would mislead vLLM.

vLLM 0.32.0 looks for method names in the draft's path even where the method is given: a
plain model in a folder named `my-eagle-draft` would be loaded as an EAGLE head.
"""

import atexit
import logging
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

#: What vLLM takes for a method when it stands anywhere in the path, in any case.
MISLEADING = ("eagle-", "eagle3", "dflash", "dspark")
#: Methods that vLLM keeps whatever the path says.
KEPT = ("eagle", "eagle3", "dflash", "dspark")


def apply(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with the draft's folder under a neutral name, where its own would mislead."""
    model, method = config.get("model"), config.get("method")
    misleads = isinstance(model, str) and any(word in model.lower() for word in MISLEADING)
    if not misleads or method in (None, "ngram", "suffix", "custom_class", *KEPT):
        return dict(config)
    folder = Path(str(model))
    if not folder.is_dir():
        logger.warning(
            "SPECULATIVE_MODEL=%s: vLLM takes this name for another method than %s; "
            "if the draft does not load, download it to a folder and name that",
            model,
            method,
        )
        return dict(config)
    home = Path(tempfile.mkdtemp(prefix="specworker-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    alias = home / "draft"
    alias.symlink_to(folder.resolve(), target_is_directory=True)
    return {**config, "model": str(alias)}
