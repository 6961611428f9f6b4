"""Requests as vLLM's own benchmark makes and times them.

Its request functions are called here, and not its `benchmark()`: that prints its report to
stdout, keeps of a request that failed only the reason phrase, asks for the counters without a
key, and counts neither generated tokens nor those of other traffic.
"""

import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from vllm.benchmarks.lib.endpoint_request_func import (
    RequestFuncInput,
    RequestFuncOutput,
    async_request_openai_chat_completions,
    async_request_openai_completions,
)

from specworker.measured import Answered
from specworker.workloads import Prompt

#: The variable with the key that vLLM's request functions bring.
KEY = "OPENAI_API_KEY"
#: Seconds in which a server must send something.
SILENCE = 600
#: How an error is found at the end of the traceback that a request function keeps.
_ERROR = re.compile(r"(?:\w+\.)*(\w+)(?:: (.*))?")


class RefusedError(Exception):
    """An answer with a status of failure: the status and what was said."""


@asynccontextmanager
async def connections() -> AsyncIterator[aiohttp.ClientSession]:
    """Connections for requests, as many at a time as are asked for."""
    # The request functions would bring it to every server.
    withheld = os.environ.pop(KEY, None)
    try:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=SILENCE),
            raise_for_status=_refuse,
            trust_env=True,
        ) as session:
            yield session
    finally:
        if withheld is not None:
            os.environ[KEY] = withheld


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    headers: Mapping[str, str],
    number: int,
    prompt: Prompt,
    longest: int,
    *,
    ignore_eos: bool = False,
) -> Answered:
    """Ask the server at `url` for a greedy answer, streamed, and time it.

    Args:
        session: of `connections`.
        url: of the server, without `/v1`.
        model: the name of the model there.
        headers: of the request.
        number: of the prompt in its workload.
        prompt: what is asked.
        longest: the most tokens of the answer.
        ignore_eos: whether the answer has that many tokens whatever they are.
    """
    path = "/v1/chat/completions" if prompt.messages else "/v1/completions"
    request = async_request_openai_completions
    if prompt.messages:
        request = async_request_openai_chat_completions
    given = RequestFuncInput(
        prompt=prompt.text,
        chat_messages=[dict(message) for message in prompt.messages] or None,
        api_url=url + path,
        prompt_len=0,  # the server counts
        output_len=longest,
        model=model,
        extra_headers=dict(headers),
        extra_body={"temperature": 0, **prompt.extra},
        ignore_eos=ignore_eos,
    )
    return _answered(number, await request(given, session))


def _answered(number: int, output: RequestFuncOutput) -> Answered:
    if not output.success:
        return Answered(number, error=_reason(output.error))
    if not output.output_tokens:
        broken = "the stream ended without its usage, as where an engine fails or a proxy cuts it"
        return Answered(number, error=broken)
    return Answered(
        number, output.output_tokens, output.ttft, output.latency, output.generated_text
    )


def _reason(traceback: str) -> str:
    """The error at the end of a traceback, in a line."""
    last = traceback.strip().rpartition("\n")[2]
    found = _ERROR.fullmatch(last)
    if found is None or not found[2]:
        return last or "no reason was given"
    return found[2] if found[1] == RefusedError.__name__ else f"{found[1]}: {found[2]}"


async def _refuse(response: aiohttp.ClientResponse) -> None:
    """Raise what an answer with a status of failure says."""
    if response.status >= 400:
        said = " ".join((await response.text(errors="replace")).split())
        raise RefusedError(f"HTTP {response.status}: {said[:600] or response.reason}")
