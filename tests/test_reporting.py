import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from specworker import gauges, reporting
from specworker.acceptance import Acceptance
from specworker.live import Live, Setup

STEP = Acceptance(3, 1, 3, 2, (1, 1, 0), (1, 1, 1))


def gauge(name: str, model: str) -> float | None:
    return REGISTRY.get_sample_value(f"specworker:{name}", {"model_name": model})


def test_the_gauges_are_in_the_registry_that_vllm_serves() -> None:
    live = Live(Setup("ngram", None, 3))
    gauges.show(live, "a-model")
    assert gauge("num_speculative_tokens", "a-model") == 3
    assert gauge("mean_acceptance_length", "a-model") == 1
    live.change(2)
    live.count(STEP, None)
    gauges.show(live, "a-model")
    assert gauge("num_speculative_tokens", "a-model") == 2
    assert gauge("mean_acceptance_length", "a-model") == 3


def test_the_gauges_are_there_with_several_processes_too(tmp_path: Path) -> None:
    script = """
from prometheus_client import generate_latest
from vllm.v1.metrics.prometheus import get_prometheus_registry
from specworker import gauges
from specworker.live import Live, Setup
gauges.show(Live(Setup("ngram", None, 3)), "a-model")
print(generate_latest(get_prometheus_registry()).decode())
"""
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    shown = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert list(tmp_path.glob("gauge_mostrecent_*.db"))
    assert 'specworker:num_speculative_tokens{model_name="a-model"} 3.0' in shown
    assert 'specworker:mean_acceptance_length{model_name="a-model"} 1.0' in shown


@pytest.fixture
def lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """The log, with minutes and seconds that pass quickly."""
    monkeypatch.setattr(reporting, "LOG_SECONDS", 0.2)
    monkeypatch.setattr(reporting, "GAUGE_SECONDS", 0.02)
    monkeypatch.setattr(logging.getLogger("specworker"), "propagate", True)
    caplog.set_level(logging.INFO, logger="specworker")
    return caplog


async def test_a_line_is_logged_while_there_is_traffic(lines: pytest.LogCaptureFixture) -> None:
    live = Live(Setup("ngram", None, 3))
    reports = asyncio.create_task(reporting.report(live, "reported"))
    await asyncio.sleep(0.5)
    assert not lines.messages
    for _ in range(2):
        live.count(STEP, (1, 0))
        await asyncio.sleep(0.35)
    told = list(lines.messages)
    assert len(told) == 2
    assert all(line.startswith("speculation: 3.0 tokens per step: paying off") for line in told)
    assert gauge("mean_acceptance_length", "reported") == 3
    await asyncio.sleep(0.5)
    assert lines.messages == told
    reports.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reports
