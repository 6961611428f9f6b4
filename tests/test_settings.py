from collections.abc import Mapping
from typing import Any

import pydantic
import pytest

from specworker.errors import ConfigurationError
from specworker.settings import NO_KEY, Settings
from specworker.variables import allowed, problem

SPECULATIVE_INTEGERS = (
    "NUM_SPECULATIVE_TOKENS",
    "NGRAM_PROMPT_LOOKUP_MIN",
    "NGRAM_PROMPT_LOOKUP_MAX",
    "SPECULATIVE_DISABLE_BY_BATCH_SIZE",
    "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE",
    "SPECULATIVE_MAX_MODEL_LEN",
    "SPECULATIVE_MAX_PROMPT_LEN",
    "NUM_LOOKAHEAD_SLOTS",
)
SPECULATIVE_NUMBERS = (
    "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD",
    "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA",
)
BOOLEANS = ("SPECULATIVE_ENFORCE_EAGER", "DISABLE_LOGPROBS_DURING_SPEC_DECODING")
DEFAULTS = Settings.from_env({})
FIELDS = Settings.model_fields
ANYWHERE = "0.0.0.0"  # noqa: S104
POD = {"RUNPOD_POD_ID": "pod-1"}
ENDPOINT = {"RUNPOD_ENDPOINT_ID": "endpoint-1"}


def read(**environment: str) -> Settings:
    return Settings.from_env(environment)


def problems(**environment: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        read(**environment)
    return caught.value.problems


def test_an_empty_environment_gives_the_defaults() -> None:
    assert DEFAULTS.max_concurrency == 30
    assert DEFAULTS.stream_interval == 0.05
    assert DEFAULTS.spec_decoding_acceptance_method == "rejection_sampler"
    assert (DEFAULTS.on_start_failure, DEFAULTS.drain_timeout_s) == ("answer", 300)
    assert (DEFAULTS.max_result_mb, DEFAULTS.default_batch_size) == (10, 50)
    assert (DEFAULTS.max_body_mb, DEFAULTS.vllm_server_dev_mode) == (30, False)
    assert (DEFAULTS.preflight, DEFAULTS.speculative_fallback) == ("error", "off")
    assert DEFAULTS.speculative_unsupported == "reject"
    assert (DEFAULTS.speculative_adaptive, DEFAULTS.speculative_prediction) == (False, True)
    assert (DEFAULTS.raw_openai_output, DEFAULTS.legacy_native_output) == (True, False)
    others = DEFAULTS.model_dump(
        exclude={
            "max_concurrency",
            "stream_interval_ms",
            "spec_decoding_acceptance_method",
            "on_start_failure",
            "drain_timeout_s",
            "max_result_mb",
            "max_body_mb",
            "vllm_server_dev_mode",
            "default_batch_size",
            "raw_openai_output",
            "legacy_native_output",
            "preflight",
            "speculative_fallback",
            "speculative_unsupported",
            "speculative_adaptive",
            "speculative_prediction",
        }
    )
    assert set(others.values()) == {None}


def test_settings_come_from_the_given_mapping_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUM_SPECULATIVE_TOKENS", "9")
    assert read() == DEFAULTS


def test_names_are_upper_case() -> None:
    assert Settings.from_env({"num_speculative_tokens": "9"}) == DEFAULTS


def test_settings_are_frozen() -> None:
    with pytest.raises(pydantic.ValidationError):
        DEFAULTS.max_concurrency = 1  # type: ignore[misc]


@pytest.mark.parametrize("name", [field.upper() for field in Settings.model_fields])
@pytest.mark.parametrize("text", ["", "  ", "None", "none", " None ", "null"])
def test_an_empty_field_means_unset_for_every_variable(name: str, text: str) -> None:
    if (name, text) == ("API_KEY", NO_KEY):
        return  # asks for no key, and is a test of its own
    assert read(**{name: text}) == DEFAULTS


@pytest.mark.parametrize("name", SPECULATIVE_INTEGERS + SPECULATIVE_NUMBERS)
@pytest.mark.parametrize("zero", ["0", " 0 ", "0.0"])
def test_zero_means_unset_for_every_speculative_number(name: str, zero: str) -> None:
    assert read(**{name: zero}) == DEFAULTS


def test_the_speculative_numbers_above_are_all_there_are() -> None:
    declared = {
        name.upper()
        for name, field in Settings.model_fields.items()
        if isinstance(field.json_schema_extra, dict)
        and field.json_schema_extra["group"] == "Speculation"
        and allowed(field).startswith(("an integer", "a number"))
    }
    assert declared == set(SPECULATIVE_INTEGERS + SPECULATIVE_NUMBERS)


@pytest.mark.parametrize("name", BOOLEANS)
def test_zero_is_false_for_a_speculative_boolean(name: str) -> None:
    assert getattr(read(**{name: "0"}), name.lower()) is False


def test_zero_stays_zero_for_the_stream_interval() -> None:
    assert read(STREAM_INTERVAL_MS="0").stream_interval == 0


def test_zero_jobs_at_a_time_are_refused() -> None:
    assert problems(MAX_CONCURRENCY="0") == (
        "MAX_CONCURRENCY=0: is not allowed; allowed: an integer at least 1",
    )


@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("True", True),
        ("1", True),
        ("YES", True),
        ("on", True),
        ("false", False),
        ("FALSE", False),
        ("0", False),
        ("no", False),
        ("Off", False),
    ],
)
def test_booleans_in_every_spelling(name: str, text: str, *, value: bool) -> None:
    assert getattr(read(**{name: text}), name.lower()) is value


@pytest.mark.parametrize("name", SPECULATIVE_INTEGERS)
def test_integers_are_read_in_digits_and_in_exponent_form(name: str) -> None:
    assert getattr(read(**{name: " 7 "}), name.lower()) == 7
    assert getattr(read(**{name: "1.2e+01"}), name.lower()) == 12


def test_a_length_as_a_console_prints_a_million() -> None:
    assert read(SPECULATIVE_MAX_MODEL_LEN="1e+06").speculative_max_model_len == 1_000_000


@pytest.mark.parametrize("name", SPECULATIVE_INTEGERS)
@pytest.mark.parametrize("text", ["-1", "1.5", "three", "nan", "true"])
def test_an_integer_that_cannot_be_is_refused_by_name(name: str, text: str) -> None:
    (problem,) = problems(**{name: text})
    assert problem.startswith(f"{name}={text}: is not ")
    assert "; allowed: an integer at least 1" in problem


@pytest.mark.parametrize("name", SPECULATIVE_NUMBERS)
@pytest.mark.parametrize("text", ["-0.1", "1.1", "nan", "inf", "a lot"])
def test_a_share_that_cannot_be_is_refused_by_name(name: str, text: str) -> None:
    assert problems(**{name: text}) == (
        f"{name}={text}: is not allowed; allowed: a number above 0 and at most 1",
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"NUM_SPECULATIVE_TOKENS": "129"},
            "NUM_SPECULATIVE_TOKENS=129: is not allowed; "
            "allowed: an integer at least 1 and at most 128",
        ),
        (
            {"SPECULATIVE_METHOD": "magic"},
            "SPECULATIVE_METHOD=magic: is not allowed; allowed: ngram, draft_model, suffix, "
            "eagle, eagle3, medusa, mlp_speculator, mtp, self, prediction",
        ),
        (
            {"SPEC_DECODING_ACCEPTANCE_METHOD": "nonsense"},
            "SPEC_DECODING_ACCEPTANCE_METHOD=nonsense: is not allowed; "
            "allowed: rejection_sampler, typical_acceptance_sampler, block",
        ),
        (
            {"SPECULATIVE_ENFORCE_EAGER": "maybe"},
            "SPECULATIVE_ENFORCE_EAGER=maybe: is not a boolean; "
            "allowed: true, 1, yes, on, false, 0, no, off",
        ),
        (
            {"SPECULATIVE_CONFIG": "[1]"},
            "SPECULATIVE_CONFIG=[1]: is JSON, but not an object; allowed: a JSON object",
        ),
        ({"MODE": "http"}, "MODE=http: is not allowed; allowed: serverless, pod, lb, local"),
        (
            {"STREAM_INTERVAL_MS": "10001"},
            "STREAM_INTERVAL_MS=10001: is not allowed; "
            "allowed: an integer at least 0 and at most 10000",
        ),
        (
            {"MAX_CONCURRENCY": "-1"},
            "MAX_CONCURRENCY=-1: is not allowed; allowed: an integer at least 1",
        ),
    ],
)
def test_a_problem_names_variable_value_and_what_is_allowed(
    environment: dict[str, str], expected: str
) -> None:
    assert problems(**environment) == (expected,)


def test_broken_json_is_refused_by_name() -> None:
    (problem,) = problems(SPECULATIVE_CONFIG="{bad")
    assert problem.startswith("SPECULATIVE_CONFIG={bad: is not valid JSON (")
    assert problem.endswith("; allowed: a JSON object")


def test_zero_is_no_empty_json_object() -> None:
    assert problems(SPECULATIVE_CONFIG="0")


def test_every_wrong_variable_is_reported_at_once() -> None:
    found = problems(
        SPECULATIVE_CONFIG="{bad", NUM_SPECULATIVE_TOKENS="-1", MODE="http", MAX_CONCURRENCY="x"
    )
    assert [problem.split("=")[0] for problem in found] == [
        "SPECULATIVE_CONFIG",
        "NUM_SPECULATIVE_TOKENS",
        "MODE",
        "MAX_CONCURRENCY",
    ]


def test_reading_keeps_what_is_right_beside_what_is_wrong() -> None:
    settings, found = Settings.read(
        {"NUM_SPECULATIVE_TOKENS": "-1", "SPECULATIVE_METHOD": "Suffix", "MAX_CONCURRENCY": "4"}
    )
    assert len(found) == 1
    assert settings.num_speculative_tokens is None
    assert settings.speculative_method == "suffix"
    assert settings.max_concurrency == 4


@pytest.mark.parametrize(
    ("environment", "field", "value"),
    [
        ({"SPECULATIVE_METHOD": " EAGLE3 "}, "speculative_method", "eagle3"),
        (
            {"SPEC_DECODING_ACCEPTANCE_METHOD": "Typical_Acceptance_Sampler"},
            "spec_decoding_acceptance_method",
            "typical_acceptance_sampler",
        ),
        ({"MODE": "LOCAL"}, "mode", "local"),
        ({"SPECULATIVE_MODEL": " Org/Model "}, "speculative_model", "Org/Model"),
        ({"SPECULATIVE_CONFIG": '{"method": "ngram"}'}, "speculative_config", {"method": "ngram"}),
    ],
)
def test_choices_ignore_case_and_texts_keep_it(
    environment: Mapping[str, str], field: str, value: Any
) -> None:
    assert getattr(Settings.from_env(environment), field) == value


def test_the_token_shows_nowhere() -> None:
    token = "hf_do_not_show_me"  # noqa: S105
    settings, found = Settings.read({"HF_TOKEN": token, "MODE": "http", "MAX_CONCURRENCY": "x"})
    assert settings.hf_token is not None
    assert settings.hf_token.get_secret_value() == token
    shown = [repr(settings), str(settings), settings.model_dump_json(), *found]
    assert not any(token in text for text in shown)


def test_a_problem_with_the_token_would_not_show_it() -> None:
    name, token = "hf_token", "hf_do_not_show_me"
    assert token not in problem(name, FIELDS[name], token, "is too short")
    name = "speculative_method"
    assert "eagle9" in problem(name, FIELDS[name], "eagle9", "is unknown")


@pytest.mark.parametrize(
    ("environment", "where"),
    [
        ({}, "local"),
        ({"RUNPOD_WEBHOOK_GET_JOB": "https://api.runpod.ai/job"}, "serverless"),
        ({"RUNPOD_WEBHOOK_GET_JOB": ""}, "local"),
        ({"RUNPOD_WEBHOOK_GET_JOB": "https://api.runpod.ai/job", "MODE": "local"}, "local"),
        ({"MODE": "serverless"}, "serverless"),
        (POD, "pod"),
        (ENDPOINT, "lb"),
        (POD | ENDPOINT, "lb"),  # a worker of an endpoint is a pod too
        (POD | ENDPOINT | {"RUNPOD_WEBHOOK_GET_JOB": "https://x/job"}, "serverless"),
        (POD | {"MODE": "Local"}, "local"),
        ({"MODE": "lb"}, "lb"),
        ({"MODE": "pod"}, "pod"),
    ],
)
def test_the_mode_is_read_off_the_platform_unless_it_is_set(
    environment: dict[str, str], where: str
) -> None:
    assert read(**environment).where == where


@pytest.mark.parametrize(
    ("environment", "host", "ports"),
    [
        ({}, "127.0.0.1", {"PORT": 8000}),
        (POD, ANYWHERE, {"PORT": 8000}),
        (ENDPOINT, ANYWHERE, {"PORT": 80}),
        (ENDPOINT | {"PORT": "0", "PORT_HEALTH": ""}, ANYWHERE, {"PORT": 80}),
        (ENDPOINT | {"PORT": "5000"}, ANYWHERE, {"PORT": 5000}),
        (ENDPOINT | {"PORT_HEALTH": "80"}, ANYWHERE, {"PORT": 80}),
        (ENDPOINT | {"PORT_HEALTH": "81"}, ANYWHERE, {"PORT": 80, "PORT_HEALTH": 81}),
        (POD | {"PORT": "81", "PORT_HEALTH": "81"}, ANYWHERE, {"PORT": 81}),
    ],
)
def test_each_mode_listens_where_its_clients_come_from(
    environment: dict[str, str], host: str, ports: dict[str, int]
) -> None:
    settings = read(**environment)
    assert (settings.host, settings.ports) == (host, ports)
    assert settings.health_port == ports.get("PORT_HEALTH")


@pytest.mark.parametrize("port", ["-1", "65536", "http", "8000/http", "80.5"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    _, (problem,) = Settings.read({"PORT": port})
    assert problem.endswith("allowed: an integer at least 1 and at most 65535")


def test_only_none_in_lower_case_asks_for_no_key() -> None:
    assert read(API_KEY=" none ").key == NO_KEY
    assert read(API_KEY="sk-mine").key == "sk-mine"
    for unset in ("", "None", "NONE", "null"):
        assert read(API_KEY=unset).key is None


def test_the_api_key_shows_nowhere() -> None:
    settings, found = Settings.read({"API_KEY": "do-not-show-me", "MAX_BODY_MB": "0"})
    shown = [repr(settings), str(settings), settings.model_dump_json(), *found]
    assert not any("do-not-show-me" in text for text in shown)


@pytest.mark.parametrize(
    ("environment", "serves_demo"),
    [
        ({}, True),
        ({"MODEL_NAME": "None"}, True),
        ({"MODEL_NAME": "org/model"}, False),
        ({"VLLM_CONFIG_FILE": "/config.yaml"}, False),
    ],
)
def test_the_demo_model_serves_where_nothing_names_a_model(
    environment: dict[str, str], *, serves_demo: bool
) -> None:
    assert read(**environment).serves_demo is serves_demo


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_variable_has_a_line_of_help_a_group_and_an_allowed_range(name: str) -> None:
    field = Settings.model_fields[name]
    assert field.description
    assert field.description.endswith(".")
    assert "\n" not in field.description
    assert isinstance(field.json_schema_extra, dict)
    assert field.json_schema_extra["group"]
    assert allowed(field)
