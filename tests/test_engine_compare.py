"""Comparisons on the demo model: real engines, prompts and times."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from psutil import process_iter

from specworker import child_server
from specworker.rounds_file import NAME
from tests.servers import ENGINE_SOON, ROOT, SOON

pytestmark = pytest.mark.engine("of its own")

#: Small enough for a CPU, and 32 bits, in which the texts of the variants are the same.
VARIABLES = {"DTYPE": "float32", "MAX_MODEL_LEN": "1024", "KV_CACHE_MEMORY_BYTES": "268435456"}
NGRAM = {
    "SPECULATIVE_METHOD": "ngram",
    "NGRAM_PROMPT_LOOKUP_MIN": "1",
    "NGRAM_PROMPT_LOOKUP_MAX": "4",
    "NUM_SPECULATIVE_TOKENS": "8",
}
#: What must be won where answers copy from the prompt.
AHEAD = 1.5
#: Many short rounds: a verdict that rests on them stands though one of them is slowed down.
ROUNDS = 5
SHORT = ("--concurrency", "1", "--limit", "1", "--rounds", str(ROUNDS), "--tokens", "40")
#: Those that come first are a prompt whose answer copies from its first line on, and one of whose
#: answer no draft is right.
SEEDS = {"copy": "6", "chat": "19"}


def command(workload: str, *options: str) -> list[str]:
    own = ("--workload", workload, "--seed", SEEDS[workload], *SHORT, "--json", *options)
    return [sys.executable, "-m", "specworker", "compare", *own]


def compare(workload: str, *options: str) -> dict[str, Any]:
    """What is printed of a comparison, which must succeed."""
    done = subprocess.run(
        command(workload, *options),
        cwd=ROOT,
        env=os.environ | VARIABLES,
        capture_output=True,
        text=True,
        timeout=ENGINE_SOON,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def row_of(found: dict[str, Any], variant: str) -> dict[str, Any]:
    (row,) = (row for row in found["rows"] if row["variant"] == variant)
    return dict(row)


def workers_of(parent: int) -> list[int]:
    """The workers that the process `parent` started and that still run."""
    named = [(process.pid, process.info["cmdline"] or []) for process in process_iter(["cmdline"])]
    return [pid for pid, words in named if words[2:] == ["specworker.child_worker", str(parent)]]


@pytest.fixture
async def server(demo_folder: Path, tmp_path: Path) -> AsyncIterator[str]:
    """A worker that drafts by n-grams, also by those of one token: open questions repeat these."""
    log, own = tmp_path / "server", {"MODEL_NAME": str(demo_folder), **NGRAM}
    with child_server.worker(os.environ | VARIABLES | own, log) as (process, url):
        await child_server.ready(process, url, log, print)
        yield url


async def test_ngram_is_clearly_ahead_where_answers_copy_and_not_in_a_chat(
    server: str, tmp_path: Path
) -> None:
    options = ("--url", server, "--out")
    copied = compare("copy", *options, str(tmp_path / "copy"))
    row = row_of(copied, "ngram")
    assert row["speedup"]["median"] >= AHEAD
    assert row["verdict"]["kind"] == "pays"
    assert row["mean_acceptance_length"] > 2
    assert row["accepted"] == pytest.approx(sum(row["acceptance_by_position"]) * row["drafts"])
    assert row_of(copied, "off")["drafted"] == 0
    assert row_of(copied, "off")["generated"] == row["generated"]
    assert [text["identical"] for text in copied["texts"]] == [True]
    assert copied["dtype"] == "float32"  # as the server tells it
    assert copied["notes"] == []  # no other traffic: the counters are those of the answers
    chat = compare("chat", *options, str(tmp_path / "chat"))
    missing = row_of(chat, "ngram")
    assert missing["drafted"] > 10 * missing["accepted"]
    assert missing["speedup"]["median"] < AHEAD
    assert missing["verdict"]["kind"] != "pays"
    async with httpx.AsyncClient(base_url=server) as client:
        assert (await client.get("/speculation")).json()["num_speculative_tokens"] == 8


def test_a_run_that_was_killed_goes_on_and_suffix_is_clearly_ahead(tmp_path: Path) -> None:
    # Verifying all 24 tokens that suffix decoding may draft is dear on a CPU.
    suffix = "SPECULATIVE_METHOD=suffix,NUM_SPECULATIVE_TOKENS=6"
    options = ("--with", suffix)
    out, rounds = tmp_path / "out", tmp_path / "out" / NAME
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            command("copy", *options, "--out", str(out)),
            cwd=ROOT,
            env=os.environ | VARIABLES,
            stdout=subprocess.DEVNULL,
            stderr=log,
        ) as running,
    ):
        deadline = time.monotonic() + ENGINE_SOON
        while not rounds.is_file() or rounds.read_bytes().count(b"\n") < 3:
            assert running.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        running.send_signal(signal.SIGKILL)
    # Its engine ends with it.
    deadline = time.monotonic() + SOON
    while workers_of(running.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    kept = rounds.read_text().splitlines()
    assert len(kept) == 3
    found = compare("copy", *options, "--resume", str(out))
    assert rounds.read_text().splitlines()[:3] == kept
    assert rounds.read_text().count("\n") == 1 + 2 * ROUNDS
    row = row_of(found, "suffix")
    assert row["speedup"]["median"] >= AHEAD
    assert row["verdict"]["kind"] == "pays"
    assert "resumed" in found["provenance"]
    assert (out / "comparison.html").is_file()
