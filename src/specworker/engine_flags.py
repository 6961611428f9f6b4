"""Any `vllm serve` option by its upper-case name, as vLLM's own parser knows it.

Nothing about the options is written down here but history: names that older workers
used, and names that vLLM has dropped. Later sources win: the worker's defaults, the
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

#: Sizes and counts for which a console's 0 means that nobody filled the field in.
ZERO_IS_UNSET = frozenset(
    {
        "BLOCK_SIZE",
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

#: Options that workers offered and the pinned vLLM no longer has, and what serves instead.
REMOVED = {
    "CALCULATE_KV_SCALES": "scales come from the checkpoint",
    "CUDA_GRAPH_SIZES": "use CUDAGRAPH_CAPTURE_SIZES",
    "DEVICE": "vLLM finds the device itself",
    "DISABLE_FRONTEND_MULTIPROCESSING": "the front end runs in the worker's process",
    "DISABLE_LOG_REQUESTS": "requests are not logged unless ENABLE_LOG_REQUESTS=true",
    "DISABLE_LOGGING_REQUEST": "requests are not logged unless ENABLE_LOG_REQUESTS=true",
    "DISABLE_MM_PREPROCESSOR_CACHE": "use MM_PROCESSOR_CACHE_GB=0",
    "ENABLE_LORA_BIAS": "LoRA biases are no longer supported",
    "ENABLE_MULTIMODAL_ENCODER_DATA_PARALLEL": "use MM_ENCODER_TP_MODE=data",
    "ENABLE_PROMPT_ADAPTER": "prompt adapters are no longer supported",
    "EPLB_LOG_BALANCEDNESS": "use EPLB_CONFIG",
    "EPLB_STEP_INTERVAL": "use EPLB_CONFIG",
    "EPLB_WINDOW_SIZE": "use EPLB_CONFIG",
    "GUIDED_DECODING_BACKEND": "use STRUCTURED_OUTPUTS_CONFIG",
    "GUIDED_DECODING_DISABLE_ADDITIONAL_PROPERTIES": "use STRUCTURED_OUTPUTS_CONFIG",
    "GUIDED_DECODING_DISABLE_ANY_WHITESPACE": "use STRUCTURED_OUTPUTS_CONFIG",
    "GUIDED_DECODING_DISABLE_FALLBACK": "use STRUCTURED_OUTPUTS_CONFIG",
    "LOGITS_PROCESSOR_PATTERN": "use LOGITS_PROCESSORS",
    "LONG_LORA_SCALING_FACTORS": "long LoRA is no longer supported",
    "LORA_EXTRA_VOCAB_SIZE": "LoRA adapters no longer add tokens",
    "MAX_CONTEXT_LEN_TO_CAPTURE": "use CUDAGRAPH_CAPTURE_SIZES",
    "MAX_LONG_PARTIAL_PREFILLS": "prefills are scheduled by MAX_NUM_BATCHED_TOKENS",
    "MAX_NUM_PARTIAL_PREFILLS": "prefills are scheduled by MAX_NUM_BATCHED_TOKENS",
    "MAX_SEQ_LEN_TO_CAPTURE": "use CUDAGRAPH_CAPTURE_SIZES",
    "NUM_REDUNDANT_EXPERTS": "use EPLB_CONFIG",
    "NUM_SCHEDULER_STEPS": "use ASYNC_SCHEDULING",
    "OVERRIDE_ATTENTION_DTYPE": "use DTYPE",
    "OVERRIDE_POOLER_CONFIG": "use POOLER_CONFIG",
    "PREEMPTION_MODE": "preempted requests are always recomputed",
    "QUANTIZATION_PARAM_PATH": "scales come from the checkpoint",
    "ROPE_SCALING": "use HF_OVERRIDES",
    "ROPE_THETA": "use HF_OVERRIDES",
    "SCHEDULER_DELAY_FACTOR": "the scheduler no longer waits",
    "SWAP_SPACE": "preempted requests are recomputed, not swapped",
    "TASK": "use RUNNER and CONVERT",
    "TOKENIZER_POOL_SIZE": "use RENDERER_NUM_WORKERS",
    "USE_V2_BLOCK_MANAGER": "there is one block manager",
    "VLLM_ATTENTION_BACKEND": "use ATTENTION_BACKEND",
    "WORKER_USE_RAY": "use DISTRIBUTED_EXECUTOR_BACKEND=ray",
}


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
    names = sorted((set(by_name) | set(REMOVED)) - NOT_OPTIONS - own) + list(ALIASES)
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
