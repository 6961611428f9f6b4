"""What is set to a setting that was found: lines of `NAME=value`, as consoles and files take."""

import json
from collections.abc import Iterable, Mapping

from specworker import candidates, variants
from specworker.candidates import Candidate
from specworker.choosing import limit
from specworker.settings import Settings
from specworker.speculation import REPLACED
from specworker.tuning import Setting

SCHEDULE = "num_speculative_tokens_per_batch_size"
LIMIT = "SPECULATIVE_DISABLE_BY_BATCH_SIZE"
CONFIG = "SPECULATIVE_CONFIG"
LAYERS = "SPECULATIVE_SELF_LAYERS"


def variables(candidate: Candidate, setting: Setting) -> dict[str, str]:
    """The worker's variables for a setting of a candidate, which drafts at some batch size."""
    own = candidates.with_tokens(candidate.own, setting.largest)
    rows = setting.schedule
    if len(rows) == 1:
        return own
    if CONFIG in own:
        return {**own, CONFIG: _shown({**json.loads(own[CONFIG]), SCHEDULE: rows})}
    if largest := limit(rows):
        return {**own, LIMIT: str(largest)}
    config = {**candidate.variant.config, "num_speculative_tokens": setting.largest, SCHEDULE: rows}
    if candidates.drafts_itself(candidate.variant.config):
        config |= {"method": "self", "layers": own[LAYERS]} if LAYERS in own else {"method": "self"}
    rest = {name: text for name, text in own.items() if name.lower() not in REPLACED}
    return {CONFIG: _shown(config), **rest}


def block(
    environment: Mapping[str, str], chosen: Mapping[str, str], comments: Iterable[str]
) -> str:
    """The lines that turn a worker of `environment` into one of `chosen`; nothing for off.

    What is set there and is not chosen is emptied, which the worker takes for unset.
    """
    said = [f"# {line}" for text in comments for line in text.splitlines()]
    emptied = [name for name in variants.SPECULATION if environment.get(name)]
    lines = [f"{name}={text}" for name, text in chosen.items()]
    lines += [f"{name}=" for name in emptied if name not in chosen]
    if not lines:
        lines = [f"# {_nothing(environment)}"]
    return "\n".join([*said, *lines, ""])


def _nothing(environment: Mapping[str, str]) -> str:
    settings, _ = Settings.read(environment)
    if settings.serves_demo:
        return "Nothing to set: a worker whose MODEL_NAME is set drafts only where that is set too."
    return "Nothing to set: speculation is off."


def _shown(config: Mapping[str, object]) -> str:
    return json.dumps(config, ensure_ascii=False, separators=(",", ":"))
