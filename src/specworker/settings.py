"""The variables that the worker itself reads, each declared once.

vLLM's own options are not here: `engine_flags` takes them from vLLM's parser.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, JsonValue, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from specworker.errors import ConfigurationError
from specworker.values import (
    BOOLEANS,
    ZERO,
    is_unset,
    parse_boolean,
    parse_integer,
    parse_json_object,
    parse_lower,
    shown,
)

Boolean = Annotated[bool, BeforeValidator(parse_boolean)]
Integer = Annotated[int, BeforeValidator(parse_integer)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(parse_json_object)]

Group = Literal["Speculation", "Model", "Worker", "Legacy", "Platform"]
Mode = Literal["serverless", "local"]
Method = Literal[
    "ngram", "draft_model", "suffix", "eagle", "eagle3", "medusa", "mlp_speculator", "mtp"
]
AcceptanceMethod = Literal["rejection_sampler", "typical_acceptance_sampler"]
CASELESS = BeforeValidator(parse_lower)


def variable(
    default: Any, text: str, *, group: Group, zero_is_unset: bool = False, **bounds: Any
) -> Any:
    """Declare one variable: default, one line of help, group, and pydantic's bounds."""
    extra: dict[str, JsonValue] = {"group": group, "zero_is_unset": zero_is_unset}
    return Field(default, description=text, json_schema_extra=extra, **bounds)


def speculative(default: Any, text: str, **bounds: Any) -> Any:
    """Declare a variable of speculation. A number's zero means unset, as consoles send it."""
    return variable(default, text, group="Speculation", zero_is_unset=True, **bounds)


def legacy(default: Any, text: str, **bounds: Any) -> Any:
    """Declare a variable of older workers' output shapes. A number's zero means unset."""
    return variable(default, text, group="Legacy", zero_is_unset=True, **bounds)


class Settings(BaseSettings):
    """Every variable of the worker. A field's environment name is its own in upper case."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    speculative_config: JsonObject | None = speculative(
        None, "vLLM's whole speculative_config as a JSON object; wins over the variables below."
    )
    speculative_method: Annotated[Method, CASELESS] | None = speculative(
        None, "How tokens are drafted; inferred from the draft when unset."
    )
    speculative_model: str | None = speculative(
        None, "The draft: a hub id or folder, or [ngram] for prompt lookup."
    )
    num_speculative_tokens: Integer | None = speculative(
        None, "K, the tokens drafted per step; from the draft, or 3, when unset.", ge=1, le=128
    )
    ngram_prompt_lookup_min: Integer | None = speculative(
        None, "Shortest n-gram to look up in the prompt and output.", ge=1
    )
    ngram_prompt_lookup_max: Integer | None = speculative(
        None, "Longest n-gram to look up in the prompt and output.", ge=1
    )
    speculative_disable_by_batch_size: Integer | None = speculative(
        None, "Draft for up to this many running requests, and not above.", ge=1, le=1_000_000
    )
    speculative_draft_tensor_parallel_size: Integer | None = speculative(
        None, "Tensor parallelism of the draft: 1 or the target's.", ge=1
    )
    speculative_max_model_len: Integer | None = speculative(
        None, "Longest sequence, in tokens, that the draft model drafts for.", ge=1
    )
    speculative_model_revision: str | None = speculative(
        None, "Branch, tag or commit of the draft."
    )
    speculative_quantization: str | None = speculative(
        None, "Quantization method of the draft's weights."
    )
    speculative_enforce_eager: Boolean | None = speculative(
        None, "Run the draft without CUDA graphs."
    )
    spec_decoding_acceptance_method: Annotated[AcceptanceMethod, CASELESS] = speculative(
        "rejection_sampler", "The rule by which drafted tokens are accepted."
    )
    typical_acceptance_sampler_posterior_threshold: float | None = speculative(
        None, "Typical acceptance: lower bound on the target's probability.", gt=0, le=1
    )
    typical_acceptance_sampler_posterior_alpha: float | None = speculative(
        None, "Typical acceptance: factor of the entropy-dependent bound.", gt=0, le=1
    )
    disable_logprobs_during_spec_decoding: Boolean | None = speculative(
        None, "Has no effect: logprobs are right under speculation."
    )
    num_lookahead_slots: Integer | None = speculative(
        None, "Has no effect: vLLM sizes its look-ahead itself.", ge=1
    )

    model_name: str | None = variable(
        None, "The model to serve: a hub id or folder. Unset and local: the demo.", group="Model"
    )
    vllm_config_file: str | None = variable(
        None, "A YAML file of vLLM options; may name the model.", group="Model"
    )
    hf_token: SecretStr | None = variable(
        None, "Hugging Face token for gated models, target and draft.", group="Model"
    )
    base_path: str | None = variable(
        None, "The volume that caches go on; the platform's own when unset.", group="Model"
    )

    mode: Annotated[Mode, CASELESS] | None = variable(
        None, "Where jobs come from; read off the platform's variables when unset.", group="Worker"
    )
    max_concurrency: Integer = variable(
        30, "Jobs taken from the queue at a time.", group="Worker", ge=1
    )
    stream_interval_ms: Integer = variable(
        50, "Milliseconds of a stream's events sent in one piece.", group="Worker", ge=0, le=10_000
    )

    on_start_failure: Annotated[Literal["answer", "exit"], CASELESS] = variable(
        "answer",
        "When a Serverless worker cannot start: fail each job with the reason, or exit.",
        group="Worker",
    )
    drain_timeout_s: Integer = variable(
        300,
        "Seconds that running jobs have to finish when the platform says stop.",
        group="Worker",
        ge=0,
    )
    max_result_mb: Integer = variable(
        10,
        "Largest result of a job, in MB; the platform drops what is larger.",
        group="Worker",
        ge=1,
    )

    legacy_native_output: Boolean = legacy(
        False, "Answer prompt and messages jobs in the native format of workers before 2.24."
    )
    raw_openai_output: Boolean = legacy(
        True, "Stream other jobs as text of server-sent events; false: as lists of chunks."
    )
    default_batch_size: Integer = legacy(
        50, "Native streams: most deltas in a batch.", ge=1, le=1_000_000
    )
    default_min_batch_size: Integer | None = legacy(
        None, "Native streams: deltas in the first batch; 1 when unset.", ge=1, le=1_000_000
    )
    min_batch_size: Integer | None = legacy(
        None, "Older name of DEFAULT_MIN_BATCH_SIZE, which wins.", ge=1, le=1_000_000
    )
    default_batch_size_growth_factor: float | None = legacy(
        None, "Native streams: growth from batch to batch; 3 when unset.", gt=0, le=1_000_000
    )
    batch_size_growth_factor: float | None = legacy(
        None, "Older name of DEFAULT_BATCH_SIZE_GROWTH_FACTOR, which wins.", gt=0, le=1_000_000
    )

    runpod_endpoint_id: str | None = variable(
        None, "The endpoint that the worker belongs to; set by the platform.", group="Platform"
    )
    runpod_webhook_get_job: str | None = variable(
        None, "Where the Runpod queue hands out jobs; set by the platform.", group="Platform"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values from the caller alone, so that reading is pure."""
        return (init_settings,)

    @classmethod
    def from_env(cls, environment: Mapping[str, str]) -> "Settings":
        """The settings in `environment`.

        Raises:
            ConfigurationError: with one line for every variable that is wrong.
        """
        settings, problems = cls.read(environment)
        if problems:
            raise ConfigurationError(problems)
        return settings

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> tuple["Settings", list[str]]:
        """The settings in `environment` without those that are wrong, and a line on each of them.

        For a caller that has more to check before it reports everything at once.
        """
        given = {
            name: text
            for name, field in cls.model_fields.items()
            if not _means_unset(text := environment.get(name.upper(), "").strip(), field)
        }
        try:
            return cls.model_validate(given), []
        except ValidationError as invalid:
            wrong = {str(error["loc"][0]): error["msg"] for error in invalid.errors()}
        problems = [_problem(name, given[name], message) for name, message in wrong.items()]
        right = {name: text for name, text in given.items() if name not in wrong}
        return cls.model_validate(right), problems

    @property
    def token(self) -> str | None:
        """The hub's token in plain text; for the hub alone."""
        return self.hf_token.get_secret_value() if self.hf_token else None

    @property
    def where(self) -> Mode:
        """The mode that `MODE` or the platform's variables name."""
        if self.mode:
            return self.mode
        return "serverless" if self.runpod_webhook_get_job else "local"

    @property
    def stream_interval(self) -> float:
        """Seconds of a stream's events sent in one piece."""
        return self.stream_interval_ms / 1000

    @property
    def serves_demo(self) -> bool:
        """Whether nothing names a model, so that the demo model serves."""
        return self.model_name is None and self.vllm_config_file is None


def _means_unset(text: str, field: FieldInfo) -> bool:
    if is_unset(text):
        return True
    extra = field.json_schema_extra
    if isinstance(extra, dict) and extra["zero_is_unset"] and _is_number(field):
        return bool(ZERO.fullmatch(text))
    return False


def _kinds(annotation: Any) -> set[Any]:
    """The plain types that a field takes, `None` and annotations taken off."""
    if hasattr(annotation, "__metadata__"):
        return _kinds(annotation.__origin__)
    if not get_args(annotation) or getattr(annotation, "__origin__", None) in (Literal, dict):
        return {annotation} - {type(None)}
    return set().union(*(_kinds(part) for part in get_args(annotation)))


def _is_number(field: FieldInfo) -> bool:
    return bool(_kinds(field.annotation) & {int, float})


def allowed(field: FieldInfo) -> str:
    """What a variable may be, in words."""
    kind = next(iter(_kinds(field.annotation)))
    if kind is bool:
        return ", ".join(BOOLEANS)
    if getattr(kind, "__origin__", None) is Literal:
        return ", ".join(get_args(kind))
    if kind in (int, float):
        bounds = [
            f"{word} {getattr(constraint, name)}"
            for constraint in field.metadata
            for name, word in (("ge", "at least"), ("gt", "above"), ("le", "at most"))
            if hasattr(constraint, name)
        ]
        return " ".join(["an integer" if kind is int else "a number", " and ".join(bounds)]).strip()
    return "a JSON object" if getattr(kind, "__origin__", None) is dict else "text"


def _problem(name: str, text: str, message: str) -> str:
    field = Settings.model_fields[name]
    value = "(hidden)" if SecretStr in _kinds(field.annotation) else shown(text)
    reason = message.removeprefix("Value error, ")
    if not reason.startswith("is "):
        reason = "is not allowed"
    return f"{name.upper()}={value}: {reason}; allowed: {allowed(field)}"
