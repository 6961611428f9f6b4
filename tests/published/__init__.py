"""Published configs, as far as their models' sizes depend on them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: By the model's name in lower case.
CONFIGS: Mapping[str, dict[str, Any]] = {
    file.stem: json.loads(file.read_text()) for file in Path(__file__).parent.glob("*.json")
}
