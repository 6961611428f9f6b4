"""The variables that the worker itself reads, each declared once.

vLLM's own options are not here: `engine_flags` takes them from vLLM's parser.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from specworker.errors import ConfigurationError
from specworker.speculative_settings import SpeculativeSettings
from specworker.variables import (
    CASELESS,
    Boolean,
    Integer,
    legacy,
    means_unset,
    problem,
    variable,
)

Mode = Literal["serverless", "pod", "lb", "local"]
#: The value of API_KEY that asks for no key. In lower case alone: consoles send None for a
#: field that nobody filled in, which must open nothing.
NO_KEY = "none"


class Settings(SpeculativeSettings):
    """Every variable of the worker. A field's environment name is its own in upper case."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    model_name: str | None = variable(
        None,
        "The model to serve: a hub id or folder. Unset and local: the demo.",
        group="Model",
        place="first",
        label="Model",
    )
    vllm_config_file: str | None = variable(
        None, "A YAML file of vLLM options; may name the model.", group="Model"
    )
    hf_token: SecretStr | None = variable(
        None,
        "Hugging Face token for gated models, target and draft.",
        group="Model",
        place="absent",  # the form's picker of models asks for it
    )
    base_path: str | None = variable(
        None, "The volume that caches go on; the platform's own when unset.", group="Model"
    )

    mode: Annotated[Mode, CASELESS] | None = variable(
        None,
        "Where work comes from: the queue (serverless), HTTP (pod, lb), or a file (local); read "
        "off the platform's variables when unset.",
        group="Worker",
        place="absent",
    )
    max_concurrency: Integer = variable(
        30, "Jobs taken from the queue at a time.", group="Worker", place="first", ge=1
    )
    stream_interval_ms: Integer = variable(
        50, "Milliseconds of a stream's events sent in one piece.", group="Worker", ge=0, le=10_000
    )

    on_start_failure: Annotated[Literal["answer", "exit"], CASELESS] = variable(
        "answer",
        "When the worker cannot start: answer each job or request with the reason, or exit.",
        group="Worker",
    )
    drain_timeout_s: Integer = variable(
        300,
        "Seconds that running jobs and requests have to finish when the platform says stop.",
        group="Worker",
        ge=0,
    )
    max_result_mb: Integer = variable(
        10,
        "Largest result of a job, in MB; the platform drops what is larger.",
        group="Worker",
        ge=1,
    )

    port: Integer | None = variable(
        None,
        "The port of HTTP; 8000 when unset, 80 on a load-balancing endpoint.",
        group="Server",
        place="absent",
        zero_is_unset=True,
        ge=1,
        le=65_535,
    )
    port_health: Integer | None = variable(
        None,
        "Another port for health checks (/ping) alone; PORT when unset.",
        group="Server",
        place="absent",
        zero_is_unset=True,
        ge=1,
        le=65_535,
    )
    api_key: SecretStr | None = variable(
        None,
        "The key that requests over HTTP must bring; none for no key. A pod makes one when unset.",
        group="Server",
        place="absent",
        word=NO_KEY,
    )
    max_body_mb: Integer = variable(
        30, "Largest body of a request over HTTP, in MB.", group="Server", place="absent", ge=1
    )
    vllm_server_dev_mode: Boolean = variable(
        False,
        "Serve vLLM's development routes too, which run code and reset state.",
        group="Server",
        place="absent",
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
        None,
        "Older name of DEFAULT_MIN_BATCH_SIZE, which wins.",
        place="absent",
        ge=1,
        le=1_000_000,
    )
    default_batch_size_growth_factor: float | None = legacy(
        None, "Native streams: growth from batch to batch; 3 when unset.", gt=0, le=1_000_000
    )
    batch_size_growth_factor: float | None = legacy(
        None,
        "Older name of DEFAULT_BATCH_SIZE_GROWTH_FACTOR, which wins.",
        place="absent",
        gt=0,
        le=1_000_000,
    )

    runpod_endpoint_id: str | None = variable(
        None,
        "The endpoint that the worker belongs to; set by the platform.",
        group="Platform",
        place="absent",
    )
    runpod_webhook_get_job: str | None = variable(
        None,
        "Where the Runpod queue hands out jobs; set by the platform.",
        group="Platform",
        place="absent",
    )
    runpod_pod_id: str | None = variable(
        None,
        "The pod or worker that this is; set by the platform.",
        group="Platform",
        place="absent",
    )
    public_key: str | None = variable(
        None,
        "Who may open SSH sessions on a pod: public keys, one a line; set by the platform.",
        group="Platform",
        place="absent",
    )
    baked_models: str | None = variable(
        None,
        "The folder of the models that the image brings along; set by the image.",
        group="Platform",
        place="absent",
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
            if not means_unset(text := environment.get(name.upper(), "").strip(), field)
        }
        try:
            return cls.model_validate(given), []
        except ValidationError as invalid:
            wrong = {str(error["loc"][0]): error["msg"] for error in invalid.errors()}
        problems = [
            problem(name, cls.model_fields[name], given[name], message)
            for name, message in wrong.items()
        ]
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
        if self.runpod_webhook_get_job:
            return "serverless"
        if self.runpod_endpoint_id:
            return "lb"
        return "pod" if self.runpod_pod_id else "local"

    @property
    def on_platform(self) -> bool:
        """Whether the platform runs the worker, and collects its log."""
        return self.runpod_endpoint_id is not None or self.runpod_pod_id is not None

    @property
    def host(self) -> str:
        """The address to listen on: this machine alone where nobody else should come."""
        return "127.0.0.1" if self.where == "local" else "0.0.0.0"  # noqa: S104

    @property
    def ports(self) -> dict[str, int]:
        """The ports to listen on, by the variables that set them."""
        port = self.port or (80 if self.where == "lb" else 8000)
        health = self.port_health or port
        return {"PORT": port} if health == port else {"PORT": port, "PORT_HEALTH": health}

    @property
    def health_port(self) -> int | None:
        """The port for health checks alone; None where there is no such port."""
        return self.ports.get("PORT_HEALTH")

    @property
    def key(self) -> str | None:
        """API_KEY in plain text, `NO_KEY` included."""
        return self.api_key.get_secret_value() if self.api_key else None

    @property
    def stream_interval(self) -> float:
        """Seconds of a stream's events sent in one piece."""
        return self.stream_interval_ms / 1000

    @property
    def serves_demo(self) -> bool:
        """Whether nothing names a model, so that the demo model serves."""
        return self.model_name is None and self.vllm_config_file is None
