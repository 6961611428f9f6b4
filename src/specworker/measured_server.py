"""A server while it is measured: its model, its counters, its K and its caches."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp
import psutil

from specworker import counters
from specworker.counters import Reading
from specworker.measured import MeasuringError

#: Seconds in which a server must answer what is no completion.
SOON = 60
#: Seconds that the counters have to be up to date after the last answer.
LAG = 2.0


class Setting(NamedTuple):
    """K, and whether it adapts up to that."""

    tokens: int
    adapts: bool = False

    def __str__(self) -> str:
        return f"K adapts up to {self.tokens}" if self.adapts else f"K = {self.tokens}"


class MeasuredServer:
    """A server that is measured.

    Attributes:
        url: where it is, without `/v1`.
        headers: what requests bring, such as a key.
        processes: its own, where they are ours to stop; else none.
        model: the model's name there.
        version: of vLLM, where the server tells it.
        overview: what `/speculation` said at first; None where there is no such route.
        initial: K as it was set at first; None where the server does not tell it.
        setting: K as it is set now; None where that is not known.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        processes: Sequence[psutil.Process] = (),
    ) -> None:
        self.url = url
        self.headers = dict(headers or {})
        self.processes = list(processes)
        self.model = self.version = ""
        self.overview: dict[str, Any] | None = None
        self.initial: Setting | None = None
        self.setting: Setting | None = None

    @classmethod
    def of(cls, url: str, key: str) -> "MeasuredServer":
        """A server that runs, and asks for `key` where that is not empty."""
        return cls(url, {"authorization": f"Bearer {key}"} if key else {})

    async def look(self) -> None:
        """Learn what the server is.

        Raises:
            MeasuringError: it does not answer, or is none that can be measured.
        """
        models = await self._json("GET", "/v1/models")
        self.model = str(models["data"][0]["id"])
        self.version = str((await self._json_if_there("GET", "/version") or {}).get("version", ""))
        self.overview = await self._json_if_there("GET", "/speculation")
        if self.overview is not None:
            self.initial = self.setting = _setting(self.overview)
        await self.read()

    @property
    def largest(self) -> int:
        """The largest K that it can be set to; 0 where it has none."""
        return int((self.overview or {}).get("max_num_speculative_tokens", 0))

    @property
    def draft_cost(self) -> float | None:
        """What drafting a token is taken to cost, as a share of a step; None for unknown."""
        return (self.overview or {}).get("draft_cost")

    @property
    def dtype(self) -> str:
        """Of the model's sums, as vLLM names it; empty where the server does not tell it."""
        return str((self.overview or {}).get("dtype") or "")

    @property
    def off_costs(self) -> str | None:
        """What a step at K = 0 is slowed down by, where K was not 0 from the start."""
        reason = (self.overview or {}).get("at_zero")
        return f"off is K = 0 in the same engine: {reason}" if reason else None

    async def set(self, setting: Setting) -> None:
        """Set K, or have it adapt.

        Raises:
            MeasuringError: the server refuses.
        """
        if setting != self.setting:
            was, self.setting = self.setting, None  # who stops this does not know if it was done
            adapts = {"adaptive": True} if setting.adapts else {}
            asked = {"num_speculative_tokens": setting.tokens} | adapts
            status, text = await self._asked("PATCH", "/speculation", asked)
            if status != 200:
                self.setting = was
                raise MeasuringError(
                    f"PATCH {self.url}/speculation: HTTP {status}: {_shown(text)}; allowed: a "
                    "server whose K can be changed, or one without speculation beside it "
                    "(--off engine, --off-url)"
                )
            self.setting = setting

    @contextlib.asynccontextmanager
    async def restored(self) -> AsyncIterator[None]:
        """Set K back to what it was at first, whatever happens meanwhile."""
        try:
            yield
        finally:
            if self.initial is not None:
                await self.set(self.initial)

    async def forget(self) -> bool:
        """Have the server empty its prefix cache. Returns whether it did.

        It cannot while it still holds what a request has just used.
        """
        deadline = asyncio.get_running_loop().time() + LAG
        while (said := await self._json_if_there("POST", "/reset_prefix_cache")) is not None:
            if said.get("success"):
                return True
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.05)
        return False

    async def read(self) -> Reading:
        """The counters.

        Raises:
            MeasuringError: there are none.
        """
        status, page = await self._asked("GET", "/metrics")
        reading = counters.of(page) if status == 200 else None
        if reading is None:
            raise MeasuringError(
                f"{self.url}/metrics: has no counters of vLLM (HTTP {status}); allowed: a worker "
                "of this project that answers HTTP, or `vllm serve`"
            )
        return reading

    async def settled(self, generated: int) -> Reading:
        """The counters once they have come to `generated` tokens and no request is there.

        They are brought up to date after an answer is sent; they are taken as they are when
        this takes too long.
        """
        deadline = asyncio.get_running_loop().time() + LAG
        while True:
            reading = await self.read()
            is_settled = reading.is_idle and reading.counts.generated >= generated
            if is_settled or asyncio.get_running_loop().time() > deadline:
                return reading
            await asyncio.sleep(0.05)

    async def _json(self, method: str, path: str) -> Any:
        status, text = await self._asked(method, path)
        if status == 200:
            with contextlib.suppress(json.JSONDecodeError):
                return json.loads(text)
        raise MeasuringError(f"{method} {self.url}{path}: HTTP {status}: {_shown(text)}")

    async def _json_if_there(self, method: str, path: str) -> Any:
        """The answer of a route; None where there is none that answers so."""
        status, text = await self._asked(method, path)
        if status == 200:
            with contextlib.suppress(json.JSONDecodeError):
                return json.loads(text)
        return None

    async def _asked(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        # A connection of its own: a server that was stopped meanwhile has closed the old ones.
        timeout = aiohttp.ClientTimeout(total=SOON)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
                session.request(
                    method, self.url + path, json=body, headers=self.headers
                ) as response,
            ):
                return response.status, await response.text(errors="replace")
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = str(error) or f"no answer in {SOON} s"
            raise MeasuringError(f"{method} {self.url}{path}: {reason}") from None


def _setting(overview: Mapping[str, Any]) -> Setting:
    """K as an overview has it."""
    if adaptive := overview.get("adaptive"):
        return Setting(int(adaptive["max_num_speculative_tokens"]), adapts=True)
    return Setting(int(overview["num_speculative_tokens"]))


def _shown(text: str) -> str:
    return " ".join(text.split())[:600] or "it said nothing"
