"""The worker's process over HTTP, up to where an engine is needed."""

import signal
import socket
import time
from pathlib import Path

import httpx
import pytest

from tests.servers import SOON, free_port, process, start

#: Seconds from the start of the process to the first answer.
AT_ONCE = 2.0


@pytest.fixture
def hanging(tmp_path: Path) -> dict[str, str]:
    """The variables of a worker whose import of vLLM takes for ever."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("import time\ntime.sleep(600)\n")
    return {"PYTHONPATH": str(tmp_path), "MODEL_NAME": "org/model", "HF_HUB_OFFLINE": ""}


@pytest.mark.parametrize(
    "mode", [{"RUNPOD_POD_ID": "p"}, {"RUNPOD_POD_ID": "p", "RUNPOD_ENDPOINT_ID": "e"}]
)
def test_health_is_answered_at_once_and_requests_are_before_vllm_is_imported(
    tmp_path: Path, hanging: dict[str, str], mode: dict[str, str]
) -> None:
    with process(tmp_path, API_KEY="k", **hanging, **mode) as worker:
        assert worker.first == 204
        assert worker.answered < AT_ONCE
        headers = {"authorization": "Bearer k"}
        early = worker.client.post("/v1/chat/completions", json={}, headers=headers)
        assert early.status_code == 503
        assert int(early.headers["retry-after"]) > 0
        assert early.json()["error"]["code"] == 503
        with_page = "RUNPOD_ENDPOINT_ID" not in mode
        assert worker.client.get("/").status_code == (200 if with_page else 401)
        assert worker.client.get("/v1/models").status_code == 401
        assert worker.client.get("/ping").status_code == 204
        stopped_at = time.monotonic()
        assert worker.stop() == 0
        assert time.monotonic() - stopped_at < 10


def test_a_load_balancing_endpoint_asks_for_no_key_of_its_own(
    tmp_path: Path, hanging: dict[str, str]
) -> None:
    with process(tmp_path, **hanging, RUNPOD_ENDPOINT_ID="e") as worker:
        assert worker.client.get("/v1/models").status_code == 503
        assert worker.client.get("/").status_code == 503


def test_a_port_for_health_alone_is_open_as_early(tmp_path: Path, hanging: dict[str, str]) -> None:
    health = free_port()
    with process(tmp_path, **hanging, MODE="lb", PORT_HEALTH=str(health)) as worker:
        url = f"http://127.0.0.1:{health}"
        assert httpx.get(f"{url}/ping").status_code == 204
        assert httpx.get(f"{url}/v1/models").status_code == 404
        assert worker.client.get("/ping").status_code == 204


def test_a_pod_makes_a_key_prints_it_once_and_asks_for_it_at_the_next_start(
    tmp_path: Path, hanging: dict[str, str]
) -> None:
    pod = hanging | {"RUNPOD_POD_ID": "p", "BASE_PATH": str(tmp_path)}
    with process(tmp_path, **pod) as worker:
        file = tmp_path / "specworker" / "api-key"
        deadline = time.monotonic() + SOON
        while not file.exists() or "sk-" not in worker.log:
            assert time.monotonic() < deadline, worker.log
            time.sleep(0.02)
        key = file.read_text().strip()
        assert file.stat().st_mode & 0o777 == 0o600
        assert worker.log.count(key) == 1
        headers = {"authorization": f"Bearer {key}"}
        assert worker.client.get("/v1/models", headers=headers).status_code == 503
    with process(tmp_path, **pod) as worker:
        # Until the worker has read its key, it answers everybody with 503.
        deadline = time.monotonic() + SOON
        while (status := worker.client.get("/v1/models").status_code) == 503:
            assert time.monotonic() < deadline, worker.log
            time.sleep(0.02)
        assert status == 401
        assert worker.client.get("/v1/models", headers=headers).status_code == 503
        assert key not in worker.log


def test_a_start_that_fails_is_told_to_each_request_in_words_that_give_nothing_away(
    tmp_path: Path,
) -> None:
    environment = {"MODE": "lb", "MODEL_NAME": "/does/not/exist", "MAX_BODY_MB": "none at all"}
    with process(tmp_path, **environment) as worker:
        worker.ping_turns(503)
        for _ in range(2):
            answer = worker.client.post("/v1/completions", json={"prompt": "x"})
            assert answer.status_code == 503
            assert "retry-after" not in answer.headers
            message = answer.json()["error"]["message"]
            assert "there is no such folder" in message
            assert "MAX_BODY_MB=none at all" in message
            assert "/does" not in message
        assert worker.client.get("/health").status_code == 503
        assert "MODEL_NAME=/does/not/exist" in worker.log
        assert worker.stop() == 1


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--serve"], {"MODEL_NAME": "/does/not/exist"}),
        ([], {"MODE": "pod", "MODEL_NAME": "/does/not/exist", "ON_START_FAILURE": "exit"}),
        ([], {"MODE": "lb", "MODEL_NAME": "/does/not/exist", "ON_START_FAILURE": "exit"}),
    ],
)
def test_a_start_that_fails_ends_a_local_worker_and_whoever_asks_for_that(
    tmp_path: Path, arguments: list[str], environment: dict[str, str]
) -> None:
    with start(tmp_path, *arguments, PORT=str(free_port()), **environment) as popen:
        assert popen.wait(SOON) == 2
    log = (tmp_path / "log").read_text()
    assert "cannot start:" in log
    assert "MODEL_NAME=/does/not/exist: there is no such folder" in log
    assert "Traceback" not in log


def test_an_endpoint_without_a_model_says_so(tmp_path: Path) -> None:
    with process(tmp_path, MODE="lb") as worker:
        worker.ping_turns(503)
        message = worker.client.get("/v1/models").json()["error"]["message"]
        assert "MODEL_NAME: is not set" in message


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with start(tmp_path, "--serve", PORT=port) as popen:
            assert popen.wait(SOON) == 2
    log = (tmp_path / "log").read_text()
    assert f"PORT={port}: nothing can listen there (Address already in use" in log
    assert "allowed: a free port" in log
    assert "Traceback" not in log


def test_on_the_platform_the_log_is_lines_of_json(tmp_path: Path) -> None:
    environment = {"RUNPOD_POD_ID": "p", "MODEL_NAME": "/does/not/exist"}
    with process(tmp_path, **environment) as worker:
        worker.ping_turns(503)
        worker.client.get("/v1/models")
        assert worker.stop() == 1
        assert all(line.startswith('{"requestId"') for line in worker.log.splitlines())


def test_ctrl_c_ends_a_worker_that_still_loads(tmp_path: Path, hanging: dict[str, str]) -> None:
    with process(tmp_path, "--serve", **hanging) as worker:
        assert worker.client.get("/v1/models").status_code == 503  # no key on one's own machine
        assert worker.stop(signal.SIGINT) == 0
        assert "Traceback" not in worker.log
