from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specworker import engine_flags, former_options
from specworker.errors import ConfigurationError


def read(environment: Mapping[str, str] | None = None, **defaults: Any) -> Namespace:
    """The arguments of a case about which there is nothing to note."""
    args, notes = engine_flags.read(environment or {}, defaults)
    assert notes == []
    return args


def notes(**environment: str) -> list[str]:
    args, noted = engine_flags.read(environment, {})
    assert args == read()
    return noted


def problems(**environment: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        engine_flags.read(environment, {})
    return caught.value.problems


# What a variable's text becomes.


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("MAX_MODEL_LEN", "4096", 4096),
        ("MAX_MODEL_LEN", " 4096 ", 4096),
        ("MAX_MODEL_LEN", "1e+06", 1_000_000),
        ("MAX_MODEL_LEN", "1.5e+06", 1_500_000),
        ("MAX_MODEL_LEN", "32k", 32_000),
        ("MAX_MODEL_LEN", "-1", -1),
        ("MAX_MODEL_LEN", "auto", -1),
        ("MAX_NUM_SEQS", "7", 7),
        ("GPU_MEMORY_UTILIZATION", "0.5", 0.5),
        ("SEED", "0", 0),
        ("SEED", "-1", -1),
        ("CPU_OFFLOAD_GB", "0", 0.0),
        ("MAX_LOGPROBS", "0", 0),
        ("DTYPE", "float32", "float32"),
        ("HF_OVERRIDES", '{"a": {"b": 1}}', {"a": {"b": 1}}),
        ("OVERRIDE_GENERATION_CONFIG", '{"temperature": 0}', {"temperature": 0}),
        ("LIMIT_MM_PER_PROMPT", '{"image": 1}', {"image": 1}),
        ("CHAT_TEMPLATE", "{% for m in messages %}{{ m }}{% endfor %}", ...),
        ("REASONING_PARSER", "deepseek_r1", "deepseek_r1"),
        ("STREAM_INTERVAL", "4", 4),
    ],
)
def test_an_option_is_set_by_its_upper_case_name(name: str, text: str, value: Any) -> None:
    other = None if value != 0 else 5
    args = read({name: text}, **{name.lower(): other})
    assert getattr(args, name.lower()) == (text if value is ... else value)


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "1", "yes", "on", " On "])
@pytest.mark.parametrize("name", ["ENFORCE_EAGER", "DISABLE_LOG_STATS", "TRUST_REMOTE_CODE"])
def test_true_in_every_spelling_switches_on(name: str, text: str) -> None:
    assert getattr(read({name: text}), name.lower()) is True


@pytest.mark.parametrize("text", ["false", "False", "FALSE", "0", "no", "off"])
def test_false_in_every_spelling_switches_off(text: str) -> None:
    args = read({"ENFORCE_EAGER": text, "DISABLE_LOG_STATS": text}, enforce_eager=True)
    assert (args.enforce_eager, args.disable_log_stats) == (False, False)


@pytest.mark.parametrize("name", ["ENFORCE_EAGER", "DISABLE_LOG_STATS"])
def test_a_boolean_is_never_guessed(name: str) -> None:
    assert problems(**{name: "maybe"}) == (
        f"{name}=maybe: is not a boolean; allowed: true, 1, yes, on, false, 0, no, off",
    )


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("a, b c", ["a", "b", "c"]),
        ('["a", "b c"]', ["a", "b c"]),
    ],
)
def test_a_list_is_json_or_separated_by_commas_or_blanks(text: str, items: list[str]) -> None:
    assert read({"SERVED_MODEL_NAME": text}).served_model_name == items
    assert read({"OPENAI_SERVED_MODEL_NAME_OVERRIDE": text}).served_model_name == items


def test_a_list_of_numbers_holds_numbers() -> None:
    assert read({"CUDAGRAPH_CAPTURE_SIZES": "1,2,4"}).cudagraph_capture_sizes == [1, 2, 4]
    assert read({"CUDAGRAPH_CAPTURE_SIZES": "[1, 2]"}).cudagraph_capture_sizes == [1, 2]


@pytest.mark.parametrize(
    "text",
    [
        "fast=/loras/a",
        '{"name": "fast", "path": "/loras/a"}',
        '[{"name":"fast","path":"/loras/a"}]',
    ],
)
def test_lora_modules_are_given_as_pairs_an_object_or_a_list(text: str) -> None:
    (module,) = read({"LORA_MODULES": text}).lora_modules
    assert (module.name, module.path) == ("fast", "/loras/a")


# What means that nobody set it.


@pytest.mark.parametrize("text", ["", "  ", "None", "none", "null"])
def test_an_empty_field_means_unset_for_every_option(text: str) -> None:
    every = engine_flags.options(engine_flags.parser())
    names = {*every, *engine_flags.ALIASES, *former_options.REMOVED, "VLLM_EXTRA_ARGS"}
    assert len(names) > 300
    assert read(dict.fromkeys(names, text)) == read()


@pytest.mark.parametrize("name", sorted(engine_flags.ZERO_IS_UNSET))
@pytest.mark.parametrize("zero", ["0", " 0 ", "0.0"])
def test_zero_means_unset_for_sizes_and_counts(name: str, zero: str) -> None:
    assert read({name: zero}) == read()
    assert getattr(read({name: "64"}), name.lower()) == 64


# What is not an option here.


def test_names_that_other_software_sets_have_no_effect() -> None:
    assert read(dict.fromkeys(engine_flags.NOT_OPTIONS, "7")) == read()


def test_the_variables_that_the_worker_reads_itself_are_left_to_it() -> None:
    assert read({"SPECULATIVE_CONFIG": "{bad", "MAX_CONCURRENCY": "x", "MODE": "x"}) == read()


def test_the_token_goes_into_no_argument() -> None:
    args = read({"HF_TOKEN": "hf_do_not_show_me"})
    assert "hf_do_not_show_me" not in repr(args)


def test_lower_case_names_are_no_variables() -> None:
    assert read({"max_model_len": "7"}) == read()


@pytest.mark.parametrize(("name", "instead"), engine_flags.ELSEWHERE.items())
def test_an_option_that_another_variable_sets_is_noted(name: str, instead: str) -> None:
    assert notes(**{name: "7"}) == [f"{name}: no effect; set {instead}"]


@pytest.mark.parametrize("name", sorted(engine_flags.OF_ITS_SERVER))
def test_an_option_of_the_server_that_does_not_run_is_noted(name: str) -> None:
    noted = [f"{name}: no effect, vLLM's own HTTP server does not run here"]
    assert notes(**{name: "7"}) == noted


@pytest.mark.parametrize(("name", "instead"), former_options.REMOVED.items())
def test_an_option_that_is_gone_is_noted_with_what_serves_instead(name: str, instead: str) -> None:
    assert notes(**{name: "7"}) == [f"{name}: no effect, vLLM no longer has it; {instead}"]


@pytest.mark.parametrize(("name", "why"), former_options.OF_OTHER_WORKERS.items())
def test_a_variable_of_another_kind_of_worker_is_noted_with_the_reason(name: str, why: str) -> None:
    assert notes(**{name: "7"}) == [f"{name}: no effect, {why}"]
    assert notes(**{name: ""}) == []


def test_other_variables_are_nobodys_business() -> None:
    assert notes(PATH="/bin", VLLM_LOGGING_LEVEL="ERROR", RUNPOD_POD_ID="x") == []


# Which source wins.


@pytest.mark.parametrize(
    ("alias", "own"),
    [
        ("MODEL_REVISION", "REVISION"),
        ("TOKENIZER_NAME", "TOKENIZER"),
        ("CUSTOM_CHAT_TEMPLATE", "CHAT_TEMPLATE"),
        ("OPENAI_RESPONSE_ROLE", "RESPONSE_ROLE"),
    ],
)
def test_a_name_of_older_workers_wins_over_the_options_own(alias: str, own: str) -> None:
    field = own.lower()
    assert getattr(read({own: "theirs"}), field) == "theirs"
    assert getattr(read({alias: "ours", own: "theirs"}), field) == "ours"
    assert getattr(read({alias: "", own: "theirs"}), field) == "theirs"


def test_the_model_is_named_by_model_name_alone() -> None:
    assert read({"MODEL_NAME": "org/model", "MODEL": "org/other"}).model == "org/model"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "options.yaml"
    path.write_text("model: org/from-file\nmax-model-len: 100\nmax-num-seqs: 10\nseed: 1\n")
    return str(path)


def test_later_sources_win(file: str) -> None:
    environment = {
        "VLLM_CONFIG_FILE": file,
        "MAX_NUM_SEQS": "20",
        "SEED": "2",
        "VLLM_EXTRA_ARGS": "--seed 3 --served-model-name 'a b'",
    }
    args = read(environment, max_model_len=5, max_num_seqs=5, seed=5, block_size=64)
    assert args.model == "org/from-file"
    assert (args.block_size, args.max_model_len, args.max_num_seqs, args.seed) == (64, 100, 20, 3)
    assert args.served_model_name == ["a b"]


def test_a_model_name_wins_over_the_file(file: str) -> None:
    args = read({"VLLM_CONFIG_FILE": file, "MODEL_NAME": "org/model"}, model="org/default")
    assert args.model == "org/model"


def test_the_workers_own_choices_stand_where_nothing_is_set() -> None:
    args = read({"MAX_MODEL_LEN": "0", "SEED": ""}, max_model_len=100, seed=7, worker_cls="a.B")
    assert (args.max_model_len, args.seed, args.worker_cls) == (100, 7, "a.B")


def test_reading_leaves_no_trace_on_the_next_reading() -> None:
    before = read()
    read({"MAX_MODEL_LEN": "7"}, seed=7)
    assert read() == before


# What is wrong.


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("MAX_NUM_SEQS", "many", "invalid int value: 'many'"),
        ("GPU_MEMORY_UTILIZATION", "all", "invalid float value: 'all'"),
        ("DTYPE", "float7", "invalid choice: 'float7' (choose from 'auto', "),
        ("KV_CACHE_DTYPE", "fp7", "invalid choice: 'fp7' (choose from 'auto', "),
        ("LIMIT_MM_PER_PROMPT", "image=1,video=0", ""),
        ("OVERRIDE_GENERATION_CONFIG", "{bad", ""),
        ("HF_OVERRIDES", "{bad", "Expecting property name"),
        ("HF_OVERRIDES", "{bad}", ""),
        ("COMPILATION_CONFIG", "{bad", ""),
        ("SERVED_MODEL_NAME", '["a"', "Expecting ',' delimiter"),
        ("SERVED_MODEL_NAME", ",", "expected at least one argument"),
        ("VLLM_CONFIG_FILE", "/does/not/exist.yaml", ""),
    ],
)
def test_a_wrong_value_is_refused_by_the_variables_name(name: str, text: str, reason: str) -> None:
    (problem,) = problems(**{name: text})
    assert problem.startswith(f"{name}={text}: {reason}")
    assert "\n" not in problem
    assert " at 0x" not in problem


def test_a_config_file_that_is_no_yaml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_text("model: [")
    (problem,) = problems(VLLM_CONFIG_FILE=str(path))
    assert problem.startswith(f"VLLM_CONFIG_FILE={path}"[:90])


def test_the_alias_that_was_set_is_the_one_that_is_named() -> None:
    (problem,) = problems(OPENAI_SERVED_MODEL_NAME_OVERRIDE="[1")
    assert problem.startswith("OPENAI_SERVED_MODEL_NAME_OVERRIDE=[1: ")


def test_every_wrong_variable_is_reported_at_once() -> None:
    found = problems(MAX_NUM_SEQS="a", DTYPE="b", ENFORCE_EAGER="c", VLLM_EXTRA_ARGS="'")
    assert [problem.split(":")[0] for problem in found] == [
        "DTYPE=b",
        "ENFORCE_EAGER=c",
        "MAX_NUM_SEQS=a",
        "VLLM_EXTRA_ARGS",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("'", "No closing quotation"),
        ("--no-such-option 1", "unrecognized arguments: --no-such-option"),
        ("--seed x", "argument --seed: invalid int value: 'x'"),
        ("--help", "unrecognized arguments: --help"),
    ],
)
def test_wrong_extra_arguments_are_refused_by_the_variables_name(text: str, reason: str) -> None:
    (problem,) = problems(VLLM_EXTRA_ARGS=text)
    assert problem.startswith(f"VLLM_EXTRA_ARGS: {reason}")


def test_a_token_among_extra_arguments_does_not_show_when_another_is_wrong() -> None:
    found = problems(VLLM_EXTRA_ARGS="--hf-token hf_do_not_show_me --seed x")
    assert "hf_do_not_show_me" not in str(found)
