"""The examples of README.md and docs/ are run, and what the pages name is there."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from vllm.envs import environment_variables

from specworker import (
    __main__,
    demo_model,
    engine_flags,
    former_options,
    jobs,
    local,
    main,
    speculation,
    variants,
)
from specworker.door import Door
from specworker.engine import Engine
from specworker.errors import ConfigurationError
from specworker.settings import Settings
from tests import examples, hubs
from tests.endpoints import ENGINE_SOON, SOON
from tests.engines import Rack
from tests.examples import PAGES, ROOT, Example
from tests.ports import on_a_port
from tests.servers import free_port

Way = Literal["make", "configure", "endpoint", "server", "command", "measure"]

#: How each command is run, by how it begins; the longest beginning decides. Of `handler.py`
#: the configuration is made and the job is answered, by an engine that runs already. Of what
#: measures for minutes, options and variables are read; tests/test_engine_compare.py and
#: tests/test_engine_tune.py run it.
WAYS: Mapping[str, Way] = {
    "make ": "make",
    ".venv/bin/python handler.py": "configure",
    "curl -s https://api.runpod.ai/": "endpoint",
    "curl -s http://127.0.0.1:8000/": "server",
    "curl -s -X PATCH http://127.0.0.1:8000/": "server",
    "curl -s -o /dev/null -w '%{http_code}\\n' http://127.0.0.1:8000/": "server",
    ".venv/bin/python -m builder ": "command",
    ".venv/bin/python -m specworker compare ": "measure",
    ".venv/bin/python -m specworker compare --workload rag --dry-run": "command",
    ".venv/bin/python -m specworker docs --check": "command",
    ".venv/bin/python -m specworker health": "command",
    ".venv/bin/python -m specworker plan --model ~": "command",
    ".venv/bin/python -m specworker tune ": "measure",
    ".venv/bin/python -m specworker tune --workload copy --methods ngram,suffix,self --dry-run": (
        "command"
    ),
    ".venv/bin/pytest tests/": "command",
}
#: Commands that are not run here, and why.
NOT_RUN = {
    "docker build ": "needs Docker; its arguments are compared with the Dockerfile",
    "docker run ": "needs Docker and a GPU; its variables are configured",
    ".venv/bin/python -m specworker docs": "writes files; tests/test_generated.py runs it",
    ".venv/bin/python -m specworker plan --model meta-llama/": (
        "needs the hub; tests/test_plan_command.py plans for folders"
    ),
    ".venv/bin/python -m specworker platform": "is what the examples of an endpoint run under",
    ".venv/bin/python -m specworker platform --no-worker": "tests/test_rehearsal.py runs it",
    '.venv/bin/pytest -m "not engine"': "is part of the run that runs this",
}
#: Text blocks that are no message of the configuration, and what they are.
OUTPUTS = {"job 8315a086": "a line of the log, whose form is in tests/test_job_record.py"}
#: Examples that show a failure, by what they say.
FAILING = {"/does/not/exist": "there is no such folder", '"max_tokens": -1': "max_tokens"}
#: Names in the pages that are no variables of the worker or options of vLLM.
OTHER_NAMES = {
    "HF_HOME": "the hub's client",
    "OPENAI_API_KEY": "OpenAI's clients",
    "HF_HUB_CACHE": "the hub's client",
    "PYTORCH_ALLOC_CONF": "PyTorch",
    "RUNPOD_INIT_TIMEOUT": "the platform",
    "RUNPOD_LOG_LEVEL": "the SDK",
}

HERE = "http://127.0.0.1:8000"
ENDPOINT = "https://api.runpod.ai/v2/ENDPOINT_ID"
REHEARSAL = "http://127.0.0.1:PORT/v2/rehearsal"
POD = "https://POD_ID-8000.proxy.runpod.net"
KEY = "sk-mine"


def way(command: str) -> Way | None:
    """How a command is run; None for one that nobody has decided about, or that is not."""
    _, words = examples.split(command)
    bare = command if command.startswith(tuple(WAYS)) else " ".join(words)
    beginnings = [begins for begins in WAYS if bare.startswith(begins)]
    return WAYS[max(beginnings, key=len)] if beginnings else None


def commands(wanted: Way) -> list[str]:
    return [command for command in examples.commands() if way(command) == wanted]


def is_python_of(text: str) -> Way | None:
    """Where an example in Python is to be run; None for one that asks nobody."""
    if ENDPOINT in text or REHEARSAL in text:
        return "endpoint"
    return "server" if POD in text else None


def run(command: str, shell: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the shell, or text in Python, in the repository's root."""
    words = ["/bin/bash", "-c", command] if shell else [sys.executable, "-c", command]
    return subprocess.run(
        words,
        cwd=ROOT,
        env=dict(os.environ) | environment,
        capture_output=True,
        text=True,
        timeout=ENGINE_SOON,
        check=False,
    )


def expected_failure(text: str) -> str | None:
    return next((says for sign, says in FAILING.items() if sign in text), None)


def configured(variables: Mapping[str, str], cache: Path) -> None:
    """Make of `variables` what a start makes of them, up to the engine.

    The models of the hub that they name lie in `cache`.
    """
    for name in (variables.get("MODEL_NAME", ""), variables.get("SPECULATIVE_MODEL", "")):
        if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
            head: Any = {"speculators_model_type": "eagle3"}
            model: Any = {"model_type": "llama"}
            hubs.snapshot(cache, name, **(head if "eagle3" in name else model))
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache)}
    _, decided, _ = main.configure(dict(variables) | offline)
    notes = [*decided.notes, *engine_flags.read(variables, {})[1]]
    in_migrating = "NUM_LOOKAHEAD_SLOTS" in variables or "SPECULATIVE_FALLBACK" in variables
    assert in_migrating or notes == [], notes


# Every example is known.


def test_every_example_has_a_language_that_is_looked_at() -> None:
    found = list(examples.examples())
    assert len(found) > 30
    assert {example.language for example in found} <= {"sh", "python", "json", "text"}


@pytest.mark.parametrize("command", examples.commands())
def test_every_command_is_run_or_is_not_for_a_reason(command: str) -> None:
    reasons = [begins for begins in NOT_RUN if command.startswith(begins.rstrip())]
    assert way(command) or reasons, f"decide how to run it: {command}"


@pytest.mark.parametrize("table", [WAYS, NOT_RUN, OUTPUTS, FAILING])
def test_nothing_is_decided_about_examples_that_are_gone(table: Mapping[str, str]) -> None:
    pages = " ".join(page.read_text() for page in PAGES)
    flat = " ".join(pages.replace("\\\n", " ").split())
    assert [begins for begins in table if begins.strip() not in flat] == []


def test_the_two_commands_of_the_readme_come_first() -> None:
    assert examples.commands()[:2] == ["make run", "make test"]


# Those that need no engine.


@pytest.mark.parametrize(
    "example",
    [example for example in examples.of("sh") if example.variables is not None],
    ids=lambda example: next(iter(example.text.splitlines())),
)
def test_a_block_of_variables_configures_a_worker(example: Example, tmp_path: Path) -> None:
    variables = example.variables
    assert variables
    if "MODE" in variables:
        assert Settings.from_env(variables).where == variables["MODE"]
    configured(variables, tmp_path)


@pytest.mark.parametrize("command", commands("configure"))
def test_a_command_line_of_the_handler_configures_a_worker(
    command: str, demo_folder: Path, tmp_path: Path
) -> None:
    shown = command.replace("~/.cache/specworker/SmolLM2-135M-Instruct", str(demo_folder))
    if "/tmp/head" in shown:  # noqa: S108
        head = tmp_path / "head"
        head.mkdir()
        (head / "config.json").write_text('{"architectures": ["EagleLlamaForCausalLM"]}')
        shown = shown.replace("/tmp/head", str(head))  # noqa: S108
    variables, words = examples.split(shown)
    if says := expected_failure(command):
        with pytest.raises(ConfigurationError, match=says):
            configured(variables, tmp_path)
        return
    configured(variables, tmp_path)
    options = main._parser().parse_args(words[2:])
    if options.test_input:
        jobs.request_of(local.job(options.test_input)["input"], "model")


@pytest.mark.parametrize("command", commands("make"))
def test_a_target_of_make_is_there(command: str) -> None:
    done = run(f"{command} --dry-run")
    assert done.returncode == 0, done.stderr
    assert command.split()[1] in run("make --silent help").stdout


@pytest.mark.parametrize("command", commands("command"))
def test_a_command_runs(command: str, demo_folder: Path, tmp_path: Path) -> None:
    shown = command.replace("~/.cache/specworker/SmolLM2-135M-Instruct", str(demo_folder))
    shown = shown.replace("/tmp/head", str(tmp_path / "head"))  # noqa: S108
    shown = shown.replace(".venv/bin/pytest", ".venv/bin/python -m pytest --collect-only")
    done = run(shown.replace(".venv/bin/python", sys.executable))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", commands("measure"))
def test_a_measurement_is_understood(command: str, tmp_path: Path) -> None:
    given, words = examples.split(command)
    options = __main__._parser().parse_args(words[3:])
    configured(given, tmp_path)
    for text in getattr(options, "variants", ()):
        configured(variants.read(text), tmp_path)


@pytest.mark.parametrize(
    "example", [e for e in examples.of("python") if not is_python_of(e.text)], ids=lambda e: e.page
)
def test_python_that_asks_nobody_prints_what_the_page_says(example: Example) -> None:
    done = run(example.text, shell=False)
    assert done.returncode == 0, done.stderr
    page = (ROOT / example.page).read_text()
    for figures in re.findall(r"\d\.\d\d(?: \d\.\d\d)+", page):
        assert figures in done.stdout


@pytest.mark.parametrize("example", examples.of("json"), ids=lambda example: example.page)
def test_json_is_jobs_that_are_understood(example: Example) -> None:
    for line in example.text.splitlines():
        assert jobs.request_of(json.loads(line)["input"], "model").path.startswith("/v1/")


@pytest.mark.parametrize("example", examples.of("text"), ids=lambda example: example.page)
def test_messages_are_as_the_worker_says_them(example: Example) -> None:
    if any(example.text.startswith(output) for output in OUTPUTS):
        return
    lines = example.text.splitlines()
    given = dict(line.split(":", 1)[0].split("=", 1) for line in lines)
    assert Settings.read(given)[1] == lines


@pytest.mark.parametrize(
    "command", [command for command in examples.commands() if command.startswith("docker ")]
)
def test_what_docker_is_told_is_read(command: str, tmp_path: Path) -> None:
    _, words = examples.split(command)
    told = dict(
        words[place + 1].split("=", 1)
        for place, word in enumerate(words)
        if word in ("-e", "--build-arg")
    )
    if words[1] == "run":
        configured(told, tmp_path)
        return
    dockerfile = (ROOT / "Dockerfile").read_text()
    for name in told:
        assert re.search(rf"^ARG {name}\b", dockerfile, re.MULTILINE), name


# Those that ask an endpoint: the rehearsal platform, the real SDK, a real worker and engine.


@pytest.fixture(scope="module")
async def endpoint(tmp_path_factory: pytest.TempPathFactory, rack: Rack) -> AsyncIterator[str]:
    """The base of an endpoint's routes, under the command that the pages name."""
    await rack.close()
    demo_model.prepare()
    port = free_port()
    log_file = tmp_path_factory.mktemp("documentation") / "log"
    own = {name: text for name, text in os.environ.items() if not name.startswith("RUNPOD_")}
    with log_file.open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-m", "specworker", "platform", "--port", str(port)],
            cwd=ROOT,
            env=own,
            stdout=log,
            stderr=log,
        )
        url = f"http://127.0.0.1:{port}/v2/rehearsal"
        try:
            async with httpx.AsyncClient(timeout=SOON) as client:
                await _worker_polls(client, url, process, log_file)
            yield url
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait, SOON)


async def _worker_polls(
    client: httpx.AsyncClient, url: str, process: "subprocess.Popen[bytes]", log_file: Path
) -> None:
    deadline = time.monotonic() + ENGINE_SOON
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if (await client.get(f"{url}/health")).json()["workers"]["idle"]:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.2)
    raise AssertionError(await asyncio.to_thread(log_file.read_text))


def jobs_in_json() -> list[str]:
    lines = (line for example in examples.of("json") for line in example.text.splitlines())
    return list(dict.fromkeys(lines))


@pytest.mark.engine("of its own")
@pytest.mark.parametrize("job", jobs_in_json())
async def test_a_job_of_the_pages_is_answered(endpoint: str, job: str) -> None:
    async with httpx.AsyncClient(timeout=SOON) as client:
        answer = (await client.post(f"{endpoint}/runsync", json=json.loads(job))).json()
    assert answer["status"] == "COMPLETED", answer
    assert answer["output"]


@pytest.mark.engine("of its own")
@pytest.mark.parametrize("command", commands("endpoint"))
async def test_a_command_that_asks_an_endpoint_is_answered(endpoint: str, command: str) -> None:
    asked = command.replace(ENDPOINT, endpoint).replace("curl ", "curl --fail ", 1)
    done = await asyncio.to_thread(run, asked, RUNPOD_API_KEY="any")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    if says := expected_failure(command):
        assert answer["status"] == "FAILED"
        assert says in json.loads(answer["error"])["error"]["message"]
        return
    assert answer["status"] == "COMPLETED", answer
    assert answer["output"]


@pytest.mark.engine("of its own")
@pytest.mark.parametrize(
    "text",
    [e.text for e in examples.of("python") if is_python_of(e.text) == "endpoint"],
    ids=lambda text: re.findall(r"base_url=\"(.*?)\"", text)[0],
)
async def test_python_that_asks_an_endpoint_is_answered(endpoint: str, text: str) -> None:
    asked = text.replace(ENDPOINT, endpoint).replace(REHEARSAL, endpoint)
    done = await asyncio.to_thread(run, asked, False, RUNPOD_API_KEY="any")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if "speculative_decoding" in text:
        assert "mean_acceptance_length" in done.stdout


@pytest.mark.engine("of its own")
@pytest.mark.parametrize("command", [c for c in commands("configure") if "--test_input" in c])
async def test_the_job_of_a_command_line_is_answered(endpoint: str, command: str) -> None:
    options = main._parser().parse_args(examples.split(command)[1][2:])
    async with httpx.AsyncClient(timeout=SOON) as client:
        job = local.job(options.test_input)
        answer = (await client.post(f"{endpoint}/runsync", json=job)).json()
    assert answer["status"] == "COMPLETED", answer


# Those that ask over HTTP: the worker's own door, before an engine that other tests share.


@pytest.fixture
async def server(engine: Engine) -> AsyncIterator[dict[str, str]]:
    """The addresses in the pages, and what they stand for here; K is as before afterwards."""
    doors = Door(Settings()), Door(Settings())
    for door, key in zip(doors, (None, KEY), strict=True):
        door.guard.accept(key)
        door.front.serve(await engine.app())
    async with on_a_port(doors[0]) as local_client, on_a_port(doors[1]) as pod:
        yield {HERE: str(local_client.base_url), POD: str(pod.base_url)}
        before = {"num_speculative_tokens": 3}
        assert (await local_client.patch("/speculation", json=before)).status_code == 200


@pytest.mark.engine("ngram")
@pytest.mark.parametrize("command", commands("server"))
async def test_a_command_that_asks_over_http_is_answered(
    server: dict[str, str], command: str
) -> None:
    asked = command.replace(HERE, server[HERE].rstrip("/")).replace("curl ", "curl --fail ", 1)
    done = await asyncio.to_thread(run, asked)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if "num_speculative_tokens" in command:
        (asked_for,) = re.findall(r'"num_speculative_tokens": (\d)', command)
        assert json.loads(done.stdout)["num_speculative_tokens"] == int(asked_for)
    if command.endswith("/ping"):
        assert done.stdout == "200\n"


@pytest.mark.engine("ngram")
@pytest.mark.parametrize(
    "text", [e.text for e in examples.of("python") if is_python_of(e.text) == "server"]
)
async def test_python_that_asks_over_http_is_answered(server: dict[str, str], text: str) -> None:
    done = await asyncio.to_thread(run, text.replace(POD, server[POD].rstrip("/")), False)
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout
    refused = text.replace(POD, server[POD].rstrip("/")).replace(KEY, "sk-other")
    assert "AuthenticationError" in (await asyncio.to_thread(run, refused, False)).stderr


# What the pages name.

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+")
FOLDERS = ("src/", "tests/", "bench/", "builder/", "docs/", ".runpod/")


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    headings = HEADING.findall(prose(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if re.match(r"https://[\w.-]+/\S*$", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path) if path else page
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page: Path) -> None:
    for code in CODE.findall(prose(page)):
        if code.startswith(FOLDERS) and " " not in code:
            assert [*ROOT.glob(code.rstrip("/"))], code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_variables_that_are_named_are_read_by_somebody(page: Path) -> None:
    known = {name.upper() for name in Settings.model_fields}
    known |= set(engine_flags.options(engine_flags.parser())) | set(engine_flags.ALIASES)
    known |= {*former_options.REMOVED, *former_options.OF_OTHER_WORKERS, "VLLM_EXTRA_ARGS"}
    known |= {*environment_variables, *OTHER_NAMES}
    for code in CODE.findall(prose(page)):
        for name in NAME.findall(code):
            assert name in known, f"{name} in `{code}`"


def test_settings_in_the_decision_guide_configure_a_worker(tmp_path: Path) -> None:
    guide = (ROOT / "README.md").read_text().split("## Which method?")[1]
    cells = [row.split("|")[2] for row in guide.splitlines() if row.startswith("| ")]
    rows = [dict(re.findall(r"`([A-Z_]+)=([^`]+)`", cell)) for cell in cells]
    assert len([row for row in rows if row]) == 5
    for number, row in enumerate(filter(None, rows)):
        values = {name: re.sub(r"<.*>", "org/draft", value) for name, value in row.items()}
        settings = Settings.from_env(values)
        assert speculation.is_set(settings)
        configured(values | {"MODEL_NAME": "org/model"}, tmp_path / str(number))


def test_the_pages_have_the_default_numbers_right() -> None:
    defaults: dict[str, Any] = {
        name.upper(): field.default for name, field in Settings.model_fields.items()
    }
    for page in PAGES:
        for name, number in re.findall(r"`([A-Z_]+)` \((\d+)\b", prose(page)):
            if isinstance(defaults.get(name), int):
                assert defaults[name] == int(number), f"{page.name}: {name}"
