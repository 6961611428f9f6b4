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
from specworker.adaptation import Adaptation
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
    assert gauge("adaptive_k_changes", "a-model") == 0
    live.adapt(3)
    live.hear(Adaptation(3, 1, changes=8))
    gauges.show(live, "a-model")
    assert gauge("num_speculative_tokens", "a-model") == 1
    assert gauge("adaptive_k_changes", "a-model") == 8


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
    monkeypatch.setattr(reporting, "ADAPTING_SECONDS", 0.02)
    monkeypatch.setattr(logging.getLogger("specworker"), "propagate", True)
    caplog.set_level(logging.INFO, logger="specworker")
    return caplog


async def fixed() -> None:
    """A K that does not adapt."""


async def test_a_line_is_logged_while_there_is_traffic(lines: pytest.LogCaptureFixture) -> None:
    live = Live(Setup("ngram", None, 3))
    reports = asyncio.create_task(reporting.report(live, "reported", fixed))
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


class Adapting:
    """In the place of an engine whose K adapts: has another K each time that it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.dies = self.hangs = False

    async def __call__(self) -> dict[str, object]:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.dies:
            raise RuntimeError("the engine is dead")
        known = {"batch": 1, "yields": [], "seconds": [], "changes": 0, "trials": 0.0, "reason": ""}
        return {"most": 3, "tokens": self.asked % 4, **known}


async def test_a_k_that_adapts_is_followed_while_there_is_traffic(
    lines: pytest.LogCaptureFixture,
) -> None:
    live, engine = Live(Setup("ngram", None, 3)), Adapting()
    reports = asyncio.create_task(reporting.report(live, "followed", engine))
    live.count(STEP, (1, 0))
    await asyncio.sleep(0.1)
    assert engine.asked == 0  # K is as it was set
    live.adapt(3)
    await asyncio.sleep(0.1)
    assert engine.asked == live.tokens == 1
    await asyncio.sleep(0.1)
    assert engine.asked == 1  # nothing was generated since
    live.count(STEP, (1, 0))
    await asyncio.sleep(0.1)
    assert engine.asked == live.tokens == gauge("num_speculative_tokens", "followed") == 2
    live.change(3)
    live.count(STEP, (1, 0))
    await asyncio.sleep(0.1)
    assert (engine.asked, live.tokens) == (2, 3)
    assert not [line for line in lines.messages if "shown no more" in line]
    reports.cancel()


@pytest.mark.parametrize("trouble", ["dies", "hangs"])
async def test_an_engine_that_does_not_answer_keeps_nothing_else_from_being_said(
    lines: pytest.LogCaptureFixture, trouble: str
) -> None:
    live, engine = Live(Setup("ngram", None, 3, adaptive=True)), Adapting()
    setattr(engine, trouble, True)
    reports = asyncio.create_task(reporting.report(live, "in trouble", engine))
    for _ in range(3):
        live.count(STEP, (1, 0))
        await asyncio.sleep(0.15)
    assert engine.asked == 1
    assert gauge("mean_acceptance_length", "in trouble") == 3
    assert any(line.startswith("speculation: ") for line in lines.messages)
    told = [line for line in lines.messages if "shown no more" in line]
    assert len(told) == (trouble == "dies")
    reports.cancel()
