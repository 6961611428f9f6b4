"""The command, against servers that only count. What engines do is in test_engine_compare.py."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from specworker import __main__, child_server
from specworker.rounds_file import NAME, has_rounds
from tests import counted_server
from tests.counted_server import MODEL, Server
from tests.servers import ROOT, SOON

PROMPTS = [{"body": {"messages": [{"role": "user", "content": f"{n}?"}]}} for n in range(2)]


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(f"{json.dumps(prompt)}\n" for prompt in PROMPTS))
    return str(file)


def compare(*options: str) -> int:
    return __main__.main(["compare", "--concurrency", "1", "--rounds", "2", *options])


def test_a_server_that_runs_is_measured_and_left_as_it_was(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, out = Server(slow=0.02), tmp_path / "out"
    with counted_server.serving(server) as url:
        assert compare("--prompts", prompts, "--url", f"{url}/v1", "--out", str(out)) == 0
    said, told = capsys.readouterr()
    assert "ngram" in said
    assert MODEL in said
    assert "ngram, concurrency 1, round 2 of 2" in told
    assert server.tokens == 3
    assert {NAME, "comparison.json", "comparison.csv", "comparison.png", "comparison.html"} <= {
        file.name for file in out.iterdir()
    }


def test_a_k_that_adapts_is_what_is_compared_with_off(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server(adapts=True)
    seen: list[tuple[int | None, bool]] = []
    answer = server.answer

    async def noted(request: Any) -> Any:
        if request.url.path.endswith("/completions"):
            seen.append((server.tokens, server.adapts))
        return await answer(request)

    server.answer = noted  # type: ignore[method-assign]
    with counted_server.serving(server) as url:
        options = ("--prompts", prompts, "--url", url, "--out", str(tmp_path / "out"))
        assert compare(*options) == 0
    assert {*seen} == {(3, True), (0, False)}
    assert (server.tokens, server.adapts) == (3, True)
    report = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert "K adapts up to 3" in json.dumps(report)


def test_json_is_the_only_output(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with counted_server.serving(Server()) as url:
        options = ("--prompts", prompts, "--url", url, "--out", str(tmp_path / "out"), "--json")
        assert compare(*options) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert "prompts sha256" in json.dumps(found)


def test_two_servers_are_compared_where_k_cannot_be_changed(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, drafting = Server(tokens=None), Server(tokens=None)
    with counted_server.serving(plain) as off, counted_server.serving(drafting) as url:
        options = ("--prompts", prompts, "--url", url, "--out", str(tmp_path / "out"))
        assert compare(*options) == 2
        assert "K cannot be changed there" in capsys.readouterr().err
        assert compare(*options, "--off-url", off) == 0
    lines = (tmp_path / "out" / NAME).read_text().splitlines()[1:]
    assert [json.loads(line)["variant"] for line in lines] == ["off", "on", "on", "off"]
    assert len(plain.bodies) == len(drafting.bodies) == 5


def test_a_server_that_fails_requests_ends_in_no_verdict(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, out = Server(fails_from=7, failure=(503, "overloaded")), tmp_path / "out"
    with counted_server.serving(server) as url:
        assert compare("--prompts", prompts, "--url", url, "--out", str(out)) == 1
        said, told = capsys.readouterr()
        assert said == ""
        assert "ngram, concurrency 1, round 2: the request of prompt line " in told
        assert "HTTP 503" in told
        assert "overloaded" in told
        assert f"--resume {out} goes on" in told
        assert [file.name for file in out.iterdir()] == [NAME]
        assert len((out / NAME).read_text().splitlines()) == 1 + 2
        server.fails_from = None
        asked = len(server.bodies)
        assert compare("--prompts", prompts, "--url", url, "--resume", str(out)) == 0
    assert len(server.bodies) == asked + 2 + 4  # of the second round, once warmed up


def test_another_plan_is_not_gone_on_with(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    with counted_server.serving(Server()) as url:
        assert compare("--prompts", prompts, "--url", url, "--out", out) == 0
        assert compare("--prompts", prompts, "--url", url, "--out", out) == 2
        assert "there is a run in it" in capsys.readouterr().err
        assert compare("--prompts", prompts, "--url", url, "--resume", out, "--limit", "1") == 2
    told = capsys.readouterr().err
    assert "that run has another prompts: 2; allowed: the same, not 1" in told


def test_a_dry_run_asks_nothing_and_starts_nothing(
    prompts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    demo_folder: Path,
) -> None:
    monkeypatch.setattr(child_server, "worker", None)
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    assert compare("--prompts", prompts, "--dry-run", "--with", "SPECULATIVE_METHOD=suffix") == 0
    said = capsys.readouterr().out
    assert "variant suffix: " in said
    assert "variant off: K = 0 in the same engine" in said
    assert "time: at most about 2 min: 2048 tokens at 30 a second" in said
    server = Server()
    with counted_server.serving(server) as url:
        assert compare("--prompts", prompts, "--dry-run", "--url", url) == 0
    assert server.bodies == []
    assert f"the server at {url}, K = 3" in capsys.readouterr().out
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_sets_k_back_and_says_how_to_go_on(
    number: int, prompts: str, tmp_path: Path
) -> None:
    server, out = Server(slow=0.2), tmp_path / "out"
    options = ("compare", "--prompts", prompts, "--out", str(out), "--concurrency", "1")
    with (
        counted_server.serving(server) as url,
        subprocess.Popen(
            [sys.executable, "-m", "specworker", *options, "--url", url],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running,
    ):
        deadline = time.monotonic() + 3 * SOON
        while server.tokens != 0 or not has_rounds(out):
            assert running.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        running.send_signal(number)
        said, told = running.communicate(timeout=SOON)
    assert running.returncode == 130
    assert server.tokens == 3
    assert said == ""
    assert f"--resume {out} goes on" in told
    assert "Traceback" not in told


def test_a_server_that_is_not_there_or_counts_nothing_is_told(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--prompts", prompts, "--out", str(tmp_path / "out"))
    assert compare(*options, "--url", "http://127.0.0.1:9") == 1
    told = capsys.readouterr().err
    assert "http://127.0.0.1:9/v1/models: Cannot connect" in told
    assert "--resume" not in told
    assert compare(*options, "--url", "https://user:sk-mine@host") == 2
    told = capsys.readouterr().err
    assert "--url: is no address of a server" in told
    assert "sk-mine" not in told


def test_the_key_comes_from_the_variable_and_is_nowhere_in_the_results(
    prompts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    out = tmp_path / "out"
    with counted_server.serving(Server(key="sk-secret")) as url:
        options = ("--prompts", prompts, "--url", url, "--out", str(out))
        assert compare(*options) == 1
        assert "HTTP 401" in capsys.readouterr().err
        assert compare(*options, "--api-key-from", "MY_KEY") == 0
    said = "".join(capsys.readouterr())
    files = b"".join(file.read_bytes() for file in out.iterdir())
    assert "sk-secret" not in said
    assert b"sk-secret" not in files


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--concurrency", "0"), "'0'; allowed: an integer from 1 on"),
        (("--rounds", "x"), "'x'; allowed: an integer from 1 on"),
        (("--margin", "-1"), "'-1'; allowed: a share such as 0.1"),
    ],
)
def test_a_wrong_option_says_what_is_allowed(
    options: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        __main__.main(["compare", "--workload", "chat", *options])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
