import asyncio
import base64
import hmac
import itertools
import logging
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from specworker import api_key
from specworker.api_key import ApiKey
from specworker.settings import Settings
from tests.ports import Counting, on_a_port

KEY = "sk-right"


def guarded(key: str | None = KEY) -> ApiKey:
    guard = ApiKey(Counting(), without=("/ping", "/"))
    guard.accept(key)
    return guard


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


LET_IN = [
    {"authorization": f"Bearer {KEY}"},
    {"authorization": f"bearer  {KEY}"},
    {"authorization": basic(f"anyone:{KEY}")},
    {"api-key": KEY},
    {"x-api-key": KEY},
    {"authorization": "Bearer unused", "x-api-key": KEY},
]
REFUSED = [
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": KEY},
    {"authorization": f"Bearer {KEY}x"},
    {"authorization": f"Bearer {KEY[:-1]}"},
    {"authorization": f"Token {KEY}"},
    {"authorization": basic(KEY)},
    {"authorization": basic(f"{KEY}:")},
    {"authorization": "Basic é"},
    {"api-key": ""},
    {"x-api-key": KEY.upper()},
    {"cookie": KEY},
]
PATHS = ("/v1/models", "/health", "/metrics", "/docs", "/openapi.json", "/speculation", "//ping")


async def test_the_key_lets_in_however_a_client_sends_it() -> None:
    async with on_a_port(guarded()) as client:
        for headers in LET_IN:
            answer = await client.get("/v1/models", headers=headers)
            assert answer.status_code == 200, headers


async def test_who_does_not_bring_it_is_refused() -> None:
    async with on_a_port(guarded()) as client:
        for path, headers in itertools.product(PATHS, REFUSED):
            url = httpx.URL(f"{client.base_url}{path}")
            sent = {name.encode(): text.encode() for name, text in headers.items()}
            answer = await client.get(url, headers=sent)
            assert answer.status_code == 401, (path, headers)
            error = answer.json()["error"]
            assert (error["code"], error["type"]) == (401, "AuthenticationError")
            assert KEY not in answer.text
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_pings_and_the_page_need_no_key() -> None:
    async with on_a_port(guarded()) as client:
        for path in ("/ping", "/"):
            assert (await client.get(path)).status_code == 200
        for path in ("/ping/x", "/PING", "/%70ing/../v1/models", "/?/ping"):
            expected = 200 if path == "/?/ping" else 401
            assert (await client.get(path)).status_code == expected, path


async def test_without_a_key_everyone_is_let_in() -> None:
    async with on_a_port(guarded(None)) as client:
        assert (await client.get("/v1/models")).status_code == 200


async def test_nobody_is_let_in_before_the_key_is_known() -> None:
    async with on_a_port(ApiKey(Counting(), without=())) as client:
        for key in ("", "None", KEY):
            answer = await client.get("/v1/models", headers={"api-key": key})
            # Not 401: the key may be the right one.
            assert answer.status_code == answer.json()["error"]["code"] == 503
            assert answer.headers["retry-after"] == "1"


async def test_a_browser_asks_its_user_for_the_key_of_a_page_and_of_nothing_else() -> None:
    async with on_a_port(guarded()) as client:
        page = await client.get("/docs", headers={"accept": "text/html,*/*;q=0.8"})
        fetched = await client.get("/openapi.json", headers={"accept": "*/*"})
    assert page.headers["www-authenticate"].startswith("Basic ")
    assert fetched.headers["www-authenticate"] == "Bearer"


async def test_a_browser_may_ask_what_a_page_elsewhere_may_send() -> None:
    asks = {"origin": "http://elsewhere", "access-control-request-method": "POST"}
    async with on_a_port(guarded()) as client:
        assert (await client.options("/v1/models", headers=asks)).status_code == 200
        assert (await client.options("/v1/models")).status_code == 401
        assert (await client.post("/v1/models", headers=asks)).status_code == 401


async def test_a_websocket_needs_the_key_too() -> None:
    async with on_a_port(guarded()) as client:
        url = f"ws://127.0.0.1:{client.base_url.port}/v1/realtime"
        with pytest.raises(InvalidStatus) as refused:
            await connect(url)
        assert refused.value.response.status_code == 401
        with pytest.raises((InvalidStatus, EOFError)) as passed:  # the stand-in speaks HTTP alone
            await connect(url, additional_headers={"authorization": f"Bearer {KEY}"})
    assert not (
        isinstance(passed.value, InvalidStatus) and passed.value.response.status_code == 401
    )


async def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def watched(one: bytes, other: bytes) -> bool:
        lengths.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    async with on_a_port(guarded()) as client:
        for key in ("s", KEY, "x" * 1000):
            await client.get("/v1/models", headers={"api-key": key, "x-api-key": key})
    assert lengths == [(32, 32)] * 6


def shown_keys(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [word for message in caplog.messages for word in message.split() if "sk-" in word]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "specworker")
    logging.getLogger("specworker").propagate = True
    return caplog


def test_a_pod_makes_a_key_keeps_it_for_its_owner_and_shows_it_once(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    folders = [tmp_path / "volume" / "specworker"]
    key = api_key.of(Settings.from_env({"RUNPOD_POD_ID": "x"}), folders)
    file = folders[0] / "api-key"
    assert key is not None
    assert len(key) > 40
    assert file.read_text().strip() == key
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in folders[0].iterdir()] == ["api-key"]
    assert shown_keys(log) == [key]
    log.clear()
    assert api_key.of(Settings.from_env({"RUNPOD_POD_ID": "x"}), folders) == key
    assert shown_keys(log) == []
    assert str(file) in log.text


def test_keys_differ_from_pod_to_pod(tmp_path: Path) -> None:
    assert len({api_key.stored([tmp_path / str(n)]) for n in range(20)}) == 20


def test_a_key_that_others_could_read_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "api-key"
    file.write_text("sk-mine\n")
    file.chmod(0o644)
    assert api_key.stored([tmp_path]) == "sk-mine"
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_empty_file_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "api-key").write_text("\n")
    key = api_key.stored([tmp_path])
    assert key.startswith("sk-")
    assert (tmp_path / "api-key").read_text().strip() == key


def test_two_workers_that_start_at_once_take_one_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = api_key._new

    def slow() -> str:
        monkeypatch.setattr(api_key, "_new", first)
        api_key.stored([tmp_path])  # the other worker is quicker
        return first()

    monkeypatch.setattr(api_key, "_new", slow)
    key = api_key.stored([tmp_path])
    assert (tmp_path / "api-key").read_text().strip() == key
    assert [path.name for path in tmp_path.iterdir()] == ["api-key"]


def test_a_key_is_kept_in_the_first_place_that_takes_it(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "full").write_text("no folder")
    key = api_key.stored([tmp_path / "full", tmp_path / "home"])
    assert (tmp_path / "home" / "api-key").read_text().strip() == key
    assert f"no API key can be kept in {tmp_path / 'full'}" in log.text


def test_a_key_that_cannot_be_kept_is_shown_at_each_start(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "full").write_text("no folder")
    keys = [api_key.stored([tmp_path / "full"]) for _ in range(2)]
    assert keys[0] != keys[1]
    assert shown_keys(log) == keys


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RUNPOD_POD_ID": "x", "API_KEY": "mine"}, "mine"),
        ({"RUNPOD_ENDPOINT_ID": "x"}, None),
        ({"RUNPOD_ENDPOINT_ID": "x", "API_KEY": "mine"}, "mine"),
        ({"MODE": "local"}, None),
        ({"MODE": "local", "API_KEY": "mine"}, "mine"),
    ],
)
def test_what_is_set_is_the_key_and_only_a_pod_makes_one(
    environment: dict[str, str], expected: str | None, tmp_path: Path
) -> None:
    assert api_key.of(Settings.from_env(environment), [tmp_path]) == expected
    assert list(tmp_path.iterdir()) == []


def test_a_pod_is_open_only_where_the_user_says_none_and_then_says_so_loudly(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    pod = {"RUNPOD_POD_ID": "x"}
    assert api_key.of(Settings.from_env(pod | {"API_KEY": "none"}), [tmp_path]) is None
    (record,) = log.records
    assert record.levelno == logging.WARNING
    assert "WHOEVER FINDS THIS SERVER CAN USE IT" in record.message
    # What consoles send for a field that nobody filled in.
    for unset in ("", " ", "None", "null", "NULL"):
        assert api_key.of(Settings.from_env(pod | {"API_KEY": unset}), [tmp_path]) is not None


async def test_a_refusal_takes_no_longer_than_reading_the_head() -> None:
    app = Counting()
    guard = ApiKey(app, without=())
    guard.accept(KEY)
    async with on_a_port(guard) as client, asyncio.timeout(5):
        answer: httpx.Response = await client.post("/v1/models", content=b"x" * 1024**2)
    assert answer.status_code == 401
    assert app.called == 0
