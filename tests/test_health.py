import asyncio

import pytest

from specworker import health
from specworker.__main__ import main
from specworker.front import Front, State
from specworker.server import listen
from tests.engines import NGRAM
from tests.ports import on_ports
from tests.servers import free_port


async def answer(front: Front, **environment: str) -> int:
    listener = listen("127.0.0.1", 0)
    port = str(listener.getsockname()[1])
    asked = {name: text.replace("PORT", port) for name, text in environment.items()}
    async with on_ports(front, listener):
        return await asyncio.to_thread(health.check, asked)


async def ready(*_: object) -> None:
    """An application that nothing asks."""


async def test_a_server_is_well_once_it_is_ready(capsys: pytest.CaptureFixture[str]) -> None:
    front = Front()
    assert await answer(front, MODE="pod", PORT="PORT") == 1
    assert capsys.readouterr().out.endswith(": 204\n")
    front.serve(ready)
    assert await answer(front, MODE="pod", PORT="PORT") == 0
    assert await answer(front, RUNPOD_ENDPOINT_ID="x", PORT="PORT") == 0
    front.refuse(State.FAILED)
    assert await answer(front, MODE="pod", PORT="PORT") == 1


async def test_it_is_asked_on_the_port_for_health_where_there_is_one() -> None:
    front = Front()
    front.serve(ready)
    free = str(free_port())
    assert await answer(front, MODE="lb", PORT=free, PORT_HEALTH="PORT") == 0
    assert await answer(front, MODE="lb", PORT="PORT", PORT_HEALTH=free) == 1


def test_a_server_that_does_not_answer_is_not_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert health.check({"MODE": "pod", "PORT": str(free_port())}) == 1
    assert "refused" in capsys.readouterr().out


@pytest.mark.parametrize(
    "environment",
    [
        {"RUNPOD_WEBHOOK_GET_JOB": "https://queue"},
        {"MODE": "serverless", "PORT": "9"},
        {"MODE": "local"},
        NGRAM,
    ],
)
def test_what_has_no_port_is_not_asked_and_counts_as_well(environment: dict[str, str]) -> None:
    assert health.check(environment) == 0


def test_the_command_reads_the_containers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODE", "pod")
    monkeypatch.setenv("PORT", str(free_port()))
    assert main(["health"]) == 1
    monkeypatch.setenv("MODE", "serverless")
    assert main(["health"]) == 0
