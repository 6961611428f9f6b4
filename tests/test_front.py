import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from specworker.front import Front, State
from specworker.server import listen
from tests.ports import Counting, on_a_port, on_ports


def assert_refused(answer: httpx.Response, *says: str) -> None:
    assert answer.status_code == 503
    error = answer.json()["error"]
    assert (error["code"], error["type"], error["param"]) == (503, "ServiceUnavailableError", None)
    for words in says:
        assert words in error["message"]


async def test_while_the_model_loads_pings_say_so_and_requests_are_asked_to_come_again() -> None:
    async with on_a_port(Front()) as client:
        for method in ("GET", "HEAD", "POST"):
            assert (await client.request(method, "/ping")).status_code == 204
        for path in ("/v1/models", "/health", "/metrics", "/nothing"):
            answer = await client.get(path)
            assert_refused(answer, "loading")
            assert int(answer.headers["retry-after"]) > 0
        asked = {"model": "x", "messages": [{"role": "user", "content": "x" * 100_000}]}
        assert_refused(await client.post("/v1/chat/completions", json=asked), "loading")


async def test_once_the_engine_serves_its_application_answers_all_but_pings() -> None:
    front, app = Front(), Counting()
    async with on_a_port(front) as client:
        assert (await client.get("/ping")).status_code == 204
        front.serve(app)
        assert (await client.get("/ping")).status_code == 200
        assert (await client.get("/v1/models")).json()["path"] == "/v1/models"
        assert (await client.get("/ping/")).json()["path"] == "/ping/"
        assert (await client.get("/")).json()["path"] == "/"
    assert app.called == 3


@pytest.mark.parametrize(
    ("state", "says", "comes_again"),
    [
        (State.FAILED, "could not start: MODEL_NAME=x: there is no such folder", False),
        (State.STOPPING, "shutting down", True),
        (State.DEAD, "engine has died", True),
    ],
)
async def test_a_worker_that_cannot_serve_fails_its_pings_and_says_why(
    state: State, says: str, comes_again: bool
) -> None:
    front = Front()
    front.serve(Counting())
    reason = "MODEL_NAME=x: there is no such folder" if state is State.FAILED else ""
    front.refuse(state, reason)
    async with on_a_port(front) as client:
        assert (await client.get("/ping")).status_code == 503
        answer = await client.get("/health")
        assert_refused(answer, says)
        assert ("retry-after" in answer.headers) == comes_again


async def test_a_port_for_health_checks_answers_nothing_else() -> None:
    main, health = (listen("127.0.0.1", 0) for _ in range(2))
    port, health_port = (listener.getsockname()[1] for listener in (main, health))
    front = Front(b"<p>page</p>", health_port)
    front.serve(Counting())
    async with on_ports(front, main, health), httpx.AsyncClient() as client:
        for asked in (port, health_port):
            assert (await client.get(f"http://127.0.0.1:{asked}/ping")).status_code == 200
        assert (await client.get(f"http://127.0.0.1:{port}/v1/models")).status_code == 200
        for path in ("/v1/models", "/"):
            answer = await client.get(f"http://127.0.0.1:{health_port}{path}")
            assert answer.status_code == 404
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{health_port}/v1/realtime")
        assert refused.value.response.status_code == 404


async def test_the_page_is_there_before_the_engine_is() -> None:
    front = Front("<p>é</p>".encode())
    async with on_a_port(front) as client:
        answer = await client.get("/")
        assert (answer.status_code, answer.text) == (200, "<p>é</p>")
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert (await client.head("/")).headers["content-length"] == "9"
        assert_refused(await client.post("/"))
        front.serve(Counting())
        assert (await client.get("/")).text == "<p>é</p>"
        assert (await client.post("/")).json()["path"] == "/"


async def test_a_websocket_that_comes_early_is_refused_in_words() -> None:
    async with on_a_port(Front()) as client:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{client.base_url.port}/v1/realtime")
    assert refused.value.response.status_code == 503
    assert b"loading" in refused.value.response.body


async def test_a_connection_is_kept_from_before_the_engine_serves_to_after() -> None:
    def connection(answer: httpx.Response) -> object:
        return answer.extensions["network_stream"].get_extra_info("client_addr")

    front = Front()
    async with on_a_port(front) as client:
        early = await client.get("/v1/models")
        assert_refused(early)
        front.serve(Counting())
        late = await client.get("/v1/models")
        assert late.status_code == 200
        assert connection(late) == connection(early)
