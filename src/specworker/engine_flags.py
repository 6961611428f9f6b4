"""Any `vllm serve` option by its upper-case name, as vLLM's own parser knows it.

Nothing about the options is written down here but names that older workers used; those that
mean nothing any more are in `former_options`. Later sources win: the worker's defaults, the
file that VLLM_CONFIG_FILE names, variables, aliases, VLLM_EXTRA_ARGS.
"""

import argparse
import json
import re
import shlex
from collections.abc import Mapping
from typing import Any, NoReturn

from vllm.engine.arg_utils import union_dict_and_str
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from yaml import YAMLError

from specworker.errors import ConfigurationError
from specworker.former_options import OF_OTHER_WORKERS, REMOVED
from specworker.settings import Settings
from specworker.values import BOOLEANS, ZERO, is_unset, parse_boolean, plain_integer, shown

#: Names of older workers -> vLLM's option. They win over the option's own name.
ALIASES = {
    "MODEL_NAME": "--model",
    "MODEL_REVISION": "--revision",
    "TOKENIZER_NAME": "--tokenizer",
    "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "--served-model-name",
    "CUSTOM_CHAT_TEMPLATE": "--chat-template",
    "OPENAI_RESPONSE_ROLE": "--response-role",
    "VLLM_CONFIG_FILE": "--config",
}

#: Names that are not read as options: other software in a container sets them for
#: itself, or they decide how vLLM's own server listens, which does not run here.
NOT_OPTIONS = frozenset(
    {"API_KEY", "CONFIG", "GRPC", "HEADLESS", "HELP", "HF_TOKEN", "HOST", "MODEL", "PORT", "UDS"}
)

#: Sizes, counts and shares for which a console's 0 means that nobody filled the field in.
ZERO_IS_UNSET = frozenset(
    {
        "BLOCK_SIZE",
        "GPU_MEMORY_UTILIZATION",
        "KV_CACHE_MEMORY_BYTES",
        "MAX_CPU_LORAS",
        "MAX_LORAS",
        "MAX_LORA_RANK",
        "MAX_MODEL_LEN",
        "MAX_NUM_BATCHED_TOKENS",
        "MAX_NUM_SEQS",
        "MAX_PARALLEL_LOADING_WORKERS",
        "NUM_GPU_BLOCKS_OVERRIDE",
        "PIPELINE_PARALLEL_SIZE",
        "TENSOR_PARALLEL_SIZE",
    }
)

#: Options that another variable sets here.
ELSEWHERE = {
    "SPEC_METHOD": "SPECULATIVE_METHOD",
    "SPEC_MODEL": "SPECULATIVE_MODEL",
    "SPEC_TOKENS": "NUM_SPECULATIVE_TOKENS",
}

#: Options of vLLM's own HTTP server, which does not run here.
OF_ITS_SERVER = frozenset(
    {
        "API_SERVER_COUNT",
        "DISABLE_ACCESS_LOG_FOR_ENDPOINTS",
        "DISABLE_UVICORN_ACCESS_LOG",
        "ENABLE_SSL_REFRESH",
        "GRPC_PORT",
        "H11_MAX_HEADER_COUNT",
        "H11_MAX_INCOMPLETE_EVENT_SIZE",
        "SSL_CA_CERTS",
        "SSL_CERTFILE",
        "SSL_CERT_REQS",
        "SSL_CIPHERS",
        "SSL_KEYFILE",
        "UVICORN_LOG_LEVEL",
    }
)

#: How the parser says no: its own errors, broken JSON, a file that cannot be read or is no YAML.
_REFUSALS = (argparse.ArgumentTypeError, argparse.ArgumentError, ValueError, OSError, YAMLError)


class _Parser(FlexibleArgumentParser):  # type: ignore[misc]
    def error(self, message: str) -> NoReturn:
        raise argparse.ArgumentTypeError(message)


def parser() -> FlexibleArgumentParser:
    """vLLM's parser of `vllm serve`, whose errors are exceptions."""
    return make_arg_parser(_Parser(add_help=False, allow_abbrev=False))


def options(known: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Environment name -> the option it sets."""
    return {
        flag[2:].replace("-", "_").upper(): action
        for action in known._actions
        for flag in action.option_strings
        if flag.startswith("--") and not _is_negation(flag, action)
    }


def read(
    environment: Mapping[str, str], defaults: Mapping[str, Any]
) -> tuple[argparse.Namespace, list[str]]:
    """The arguments of `vllm serve` that `environment` asks for, and notes for the user.

    Args:
        environment: the variables.
        defaults: the worker's own choices by option name (`max_model_len`), which
            anything that the user sets replaces.

    Raises:
        ConfigurationError: with one line for every variable that is wrong.
    """
    known = parser()
    known.set_defaults(**defaults)
    by_name = options(known)
    notes, problems, arguments = [], [], []
    for variable, text in _set_variables(environment, by_name):
        if variable in ELSEWHERE:
            notes.append(f"{variable}: no effect; set {ELSEWHERE[variable]}")
            continue
        if variable in REMOVED:
            notes.append(f"{variable}: no effect, vLLM no longer has it; {REMOVED[variable]}")
            continue
        if variable in OF_OTHER_WORKERS:
            notes.append(f"{variable}: no effect, {OF_OTHER_WORKERS[variable]}")
            continue
        if variable in OF_ITS_SERVER:
            notes.append(f"{variable}: no effect, vLLM's own HTTP server does not run here")
            continue
        action = by_name.get(variable) or by_name[_env_name(ALIASES[variable])]
        try:
            words = _accepted_words(known, action, text.strip())
        except _REFUSALS as error:
            problems.append(_problem(variable, text, action, str(error)))
        else:
            arguments += words
    extra = environment.get("VLLM_EXTRA_ARGS", "")
    try:
        arguments += [] if is_unset(extra) else shlex.split(extra)
        args = known.parse_args(arguments)
        if args.model_tag is not None:
            raise ValueError("a word that belongs to no option")
        if not problems:
            return args, notes
    except _REFUSALS as error:
        problems.append(f"VLLM_EXTRA_ARGS: {shown(str(error), 400)}")  # its text may hold secrets
    raise ConfigurationError(problems)


def _set_variables(
    environment: Mapping[str, str], by_name: Mapping[str, argparse.Action]
) -> list[tuple[str, str]]:
    """The variables that are set and mean an option, aliases last so that they win."""
    own = {name.upper() for name in Settings.model_fields}
    former = {*REMOVED, *OF_OTHER_WORKERS}
    names = sorted((set(by_name) | former) - NOT_OPTIONS - own) + list(ALIASES)
    return [
        (name, text)
        for name in names
        if not is_unset(text := environment.get(name, ""))
        and not (name in ZERO_IS_UNSET and ZERO.fullmatch(text.strip()))
    ]


def _accepted_words(known: FlexibleArgumentParser, action: argparse.Action, text: str) -> list[str]:
    """A variable's text as command-line words that the parser accepts.

    A number that a console wrote with an exponent is tried in plain digits as well.
    """
    words = _words(action, text)
    try:
        known.parse_args(words)
    except _REFUSALS:
        if (plain := plain_integer(text)) == text:
            raise
        words = _words(action, plain)
        known.parse_args(words)
    return words


def _words(action: argparse.Action, text: str) -> list[str]:
    """A variable's text as command-line words."""
    flag = action.option_strings[0]
    if flag == "--config":  # vLLM finds the file only as a word of its own
        return [flag, text]
    if isinstance(action, argparse.BooleanOptionalAction):
        return [flag if parse_boolean(text) else f"--no-{flag[2:]}"]
    if action.nargs == 0:
        return [flag] if parse_boolean(text) else []
    if action.nargs == "+":
        return [flag, *_items(text)]
    if action.type is union_dict_and_str and text.startswith("{"):
        json.loads(text)  # vLLM takes an object without its closing brace for a plain text
    return [f"{flag}={text}"]


def _items(text: str) -> list[str]:
    """A list's items: of a JSON list, or separated by commas or blanks."""
    if text.startswith("{"):
        return [text]
    if text.startswith("["):
        items = json.loads(text)
        return [item if isinstance(item, str) else json.dumps(item) for item in items]
    return [item for item in re.split(r"[,\s]+", text) if item]


def _problem(variable: str, text: str, action: argparse.Action, error: str) -> str:
    error = re.sub(r"^argument [^:]*: ", "", error)
    error = re.sub(r"<function loads at \w+>", "JSON", error)
    error = re.sub(r"\s*\[type=.*", "", error, flags=re.DOTALL)  # pydantic's own appendix
    line = f"{variable}={shown(text)}: {shown(error, 400)}"
    if action.nargs == 0:
        return f"{line}; allowed: {', '.join(BOOLEANS)}"
    if action.choices is not None and "choose from" not in error:
        return f"{line}; allowed: {', '.join(map(str, action.choices))}"
    return line


def _is_negation(flag: str, action: argparse.Action) -> bool:
    return isinstance(action, argparse.BooleanOptionalAction) and flag.startswith("--no-")


def _env_name(flag: str) -> str:
    return flag[2:].replace("-", "_").upper()
