"""The reference of every variable, `docs/configuration.md`, made of the declarations."""

from collections.abc import Iterable, Iterator, Sequence

from specworker.form_options import OPTIONS, Option
from specworker.presets import PRESETS, Preset
from specworker.settings import Settings
from specworker.variables import Group, allowed, declared

HEAD = """\
# Configuration

<!-- Written by `python -m specworker docs` from the declarations in src/specworker. -->

Everything is set by environment variables. They are read once, at the start:

- Empty values, `None`, `null` and blanks count as unset, as consoles send them for a field
  that nobody filled in. So does a zero in the numbers that cannot be zero: all of
  speculation, the batch sizes of older workers, ports, and vLLM's sizes, counts and shares.
- A switch is `true`, `1`, `yes`, `on` or `false`, `0`, `no`, `off`, in any case.
- Numbers may have an exponent (`1e+06`).
- What is wrong stops the start with one message, a line for each variable:

```text
NUM_SPECULATIVE_TOKENS=many: is not an integer; allowed: an integer at least 1 and at most 128
MAX_CONCURRENCY=0: is not allowed; allowed: an integer at least 1
```

What is set and cannot take effect is named in the log with the reason.
"""

#: What a section begins with.
INTRODUCTIONS: dict[Group, str] = {
    "Speculation": "What they do together is told in [speculation.md](speculation.md).",
    "Model": "",
    "Worker": "",
    "Server": "Of a pod, a load-balancing endpoint, or `handler.py --serve`.",
    "Legacy": "The output shapes of older workers; see [migrating.md](migrating.md).",
    "Platform": "",
}

OPTIONS_HEAD = """\
## vLLM's options

Every option of `vllm serve` works by its upper-case name, with `_` for `-`:
`--max-num-seqs` is `MAX_NUM_SEQS`. The names, types and values are read from the parser of
the installed vLLM, so there is no list of them here. Switches take `false` for their
`--no-…` form; options with several values take them separated by commas, or a JSON list.

Later sources win: the worker's own choices, the file that `VLLM_CONFIG_FILE` names, variables,
the names of older workers (`MODEL_NAME`, `MODEL_REVISION`, `TOKENIZER_NAME`,
`OPENAI_SERVED_MODEL_NAME_OVERRIDE`, `CUSTOM_CHAT_TEMPLATE`, `OPENAI_RESPONSE_ROLE`), and
`VLLM_EXTRA_ARGS`.

Those that the form of the Hub listing offers:
"""

PRESETS_HEAD = """\
## Presets

What the form of the Hub listing offers to start from.
"""


def text() -> str:
    """The whole page."""
    groups: Sequence[Group] = ("Speculation", "Model", "Worker", "Server", "Legacy", "Platform")
    sections = [HEAD, *map(_section, groups)]
    sections.append(OPTIONS_HEAD + "\n" + _table(map(_row_of_option, OPTIONS)))
    sections.append(PRESETS_HEAD + "\n" + "\n".join(map(_preset, PRESETS)))
    return "\n".join(sections)


def _section(group: Group) -> str:
    introduction = f"{INTRODUCTIONS[group]}\n\n" if INTRODUCTIONS[group] else ""
    return f"## {group}\n\n{introduction}{_table(_rows(group))}"


def _rows(group: Group) -> Iterator[Sequence[str]]:
    for name, field in Settings.model_fields.items():
        if declared(field)["group"] == group:
            yield f"`{name.upper()}`", _shown(field.default), allowed(field), str(field.description)


def _row_of_option(option: Option) -> Sequence[str]:
    values = ", ".join((*option.choices, "…")) if option.choices else f"a {option.kind}"
    if option.kind == "string" and not option.choices:
        values = "text"
    elif option.kind == "boolean":
        values = "true, false"
    return f"`{option.name}`", _shown(option.default), values, option.text


def _table(rows: Iterable[Sequence[str]]) -> str:
    lines = ["| Variable | Default | Allowed | Meaning |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _shown(default: object) -> str:
    """A default as a user would write it."""
    if default is None:
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _preset(preset: Preset) -> str:
    values = "\n".join(f"{name}={value}" for name, value in preset.values.items())
    return f"{preset.name}:\n\n```sh\n{values}\n```\n"
