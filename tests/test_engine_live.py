"""What speculation does while a real engine runs: figures, verdict, and a K that changes."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from vllm.v1.metrics.reader import Histogram, get_metrics_snapshot

from specworker import acceptance, asgi, overview, verdict
from specworker.acceptance import Acceptance
from specworker.engine import Engine
from tests.engines import Rack, complete, events, outputs

DASHBOARD = Path(__file__).parents[1] / "docs" / "grafana.json"
#: Configurations, and the largest K of each.
METHODS = {"ngram": 3, "self-draft": 8, "suffix up to two": 24, "medusa up to two": 3}
OF_TINY_MODELS = dict.fromkeys(
    ("tiny probabilistic", "eagle", "eagle3", "mtp", "mlp_speculator up to two"), 3
)
COPIED = 12 * "One two three four. " + "One two"
#: What the model goes on with for as long as it is asked to.
LETTERS = 12 * "a b c d e f g h " + "a b"
TINY_PROMPT = "w1 w2 w3 w1 w2 w3 w1 w2"

each_method = pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=pytest.mark.engine(name)) for name in METHODS | OF_TINY_MODELS],
)


async def ask(engine: Engine, method: str, body: Any = None) -> tuple[int, Any]:
    async with asgi.request(await engine.app(), method, "/speculation", body) as response:
        return response.status, json.loads(await response.read())


async def set_tokens(engine: Engine, tokens: int) -> dict[str, Any]:
    status, said = await ask(engine, "PATCH", {"num_speculative_tokens": tokens})
    assert status == 200, said
    return dict(said)


async def generated(tokens: int, request: "asyncio.Task[Any]") -> Acceptance:
    """The figures of at least so many tokens that a request under way generates from now on."""
    before = acceptance.read()
    while (figures := acceptance.read() - before).generated < tokens:
        assert not request.done()
        await asyncio.sleep(0.005)
    return figures


@pytest_asyncio.fixture(loop_scope="session")
async def running(request: pytest.FixtureRequest, rack: Rack) -> AsyncIterator[Engine]:
    """The engine of the configuration that the test names, with its largest K before and after."""
    engine = await rack.get(request.getfixturevalue("method"))
    yield engine
    await set_tokens(engine, engine.live.setup.tokens)


# K.


@each_method
async def test_k_takes_effect_while_a_request_runs_and_leaves_its_text_alone(
    method: str, running: Engine
) -> None:
    most = (METHODS | OF_TINY_MODELS)[method]
    prompt, tokens = (LETTERS, 70 + 4 * most) if method in METHODS else (TINY_PROMPT, 600)
    expected = await complete(running, prompt, max_tokens=tokens, ignore_eos=True)
    request = asyncio.create_task(complete(running, prompt, max_tokens=tokens, ignore_eos=True))
    await generated(16, request)
    assert await set_tokens(running, 1) == {
        "num_speculative_tokens": 1,
        "adaptive": False,
        "previous": most,
        "max_num_speculative_tokens": most,
        "takes_effect": "at the next step",
    }
    await generated(1, request)  # a step that was under way
    lowered = await generated(8, request)
    assert lowered.drafted <= lowered.drafts
    assert (await set_tokens(running, 0))["previous"] == 1
    await generated(1, request)
    off = await generated(8, request)
    assert off.drafts == 0
    assert (await ask(running, "GET"))[1]["verdict"]["kind"] == "off"
    assert (await set_tokens(running, most))["previous"] == 0
    before = acceptance.read()
    found = await request
    back = acceptance.read() - before
    assert back.drafted > back.drafts > 0
    assert found["choices"][0]["token_ids"] == expected["choices"][0]["token_ids"]
    assert not running.client.errored


@pytest.mark.parametrize(
    "method", [pytest.param("self-draft", marks=pytest.mark.engine("self-draft"))]
)
async def test_a_draft_model_drafts_as_well_after_a_rest(method: str, running: Engine) -> None:
    request = asyncio.create_task(complete(running, LETTERS, max_tokens=100, ignore_eos=True))
    await generated(10, request)
    await set_tokens(running, 0)
    await generated(20, request)
    await set_tokens(running, 4)
    await generated(6, request)
    figures = await generated(16, request)
    await request
    assert figures.rate_by_position[:4] == (1.0,) * 4
    assert figures.rate_by_position[4:] == (0.0,) * 4
    assert figures.drafted <= 4 * figures.drafts


@pytest.mark.engine("ngram")
@pytest.mark.parametrize("tokens", [-1, 4, True, "1", None])
async def test_no_other_k_is_taken(engine: Engine, tokens: Any) -> None:
    status, said = await ask(engine, "PATCH", {"num_speculative_tokens": tokens})
    assert status == said["error"]["code"] == 422
    assert "from 0 (off) to 3" in said["error"]["message"]
    assert engine.live.tokens == 3


@pytest.mark.engine("ngram")
async def test_the_engine_survives_a_k_that_only_its_scheduler_refuses(engine: Engine) -> None:
    with pytest.raises(Exception, match="allowed: set_num_speculative_tokens or adapt, from 0"):
        await engine.set_tokens(4)
    await complete(engine, COPIED, max_tokens=8)


@pytest.mark.engine("ngram")
async def test_k_adapts_to_the_text_that_is_written(engine: Engine) -> None:
    asked: dict[str, Any] = {"prompt": LETTERS, "max_tokens": 160, "ignore_eos": True}
    expected = await complete(engine, **asked)
    try:
        status, said = await ask(engine, "PATCH", {"adaptive": True})
        assert status == 200
        assert (said["adaptive"], said["num_speculative_tokens"], said["previous"]) == (True, 3, 3)
        before = acceptance.read()
        found = await complete(engine, **asked)
        assert found["choices"][0]["token_ids"] == expected["choices"][0]["token_ids"]
        copied = acceptance.read() - before
        assert copied.accepted > 60
        # As it shows at most a second later, without that anybody asks the engine.
        async with asyncio.timeout(10):
            while not (shown := (await ask(engine, "GET"))[1])["adaptive"]["changes"]:
                await asyncio.sleep(0.1)
        adaptive = shown["adaptive"]
        assert shown["num_speculative_tokens"] == adaptive["num_speculative_tokens"] > 0
        assert adaptive["reason"].startswith("K 0 → ")
        assert adaptive["tokens_per_step"]["3"] > 2
        assert adaptive["milliseconds_per_step"]["0"] > 0
        before = acceptance.read()
        await complete(engine, "Once", max_tokens=60, temperature=2.0, seed=1, ignore_eos=True)
        written = acceptance.read() - before
        assert written.drafted - written.accepted < 30
    finally:
        await set_tokens(engine, 3)
    shown = (await ask(engine, "GET"))[1]
    assert (shown["num_speculative_tokens"], shown["adaptive"]) == (3, None)


@pytest.mark.engine("ngram")
async def test_jobs_reach_the_routes_too(engine: Engine) -> None:
    change = {"route": "/speculation", "method": "PATCH", "body": {"num_speculative_tokens": 3}}
    (said,) = await outputs(engine, change)
    assert said["previous"] == 3
    (shown,) = await outputs(engine, {"route": "/speculation"})
    assert shown["method"] == "ngram"
    (schema,) = await outputs(engine, {"route": "/openapi.json"})
    assert {"get", "patch"} <= schema["paths"]["/speculation"].keys()


# Figures.


@pytest.mark.engine("ngram")
async def test_counters_are_those_of_vllm(engine: Engine) -> None:
    before = (await ask(engine, "GET"))[1]
    await asyncio.gather(
        *(complete(engine, f"{COPIED} ({number})", max_tokens=24) for number in range(3))
    )
    shown, counted = (await ask(engine, "GET"))[1], acceptance.read()
    total = shown["windows"]["since_start"]
    assert total["drafts"] > before["windows"]["since_start"]["drafts"]
    assert (total["drafts"], total["drafted"], total["accepted"]) == (
        counted.drafts,
        counted.drafted,
        counted.accepted,
    )
    assert total["acceptance_by_position"] == pytest.approx(counted.rate_by_position)
    assert total["mean_acceptance_length"] == pytest.approx(counted.mean_length)
    assert engine.live.total.generated == counted.generated
    lately = shown["windows"]["10s"]
    assert lately["drafts"] > 0
    assert lately["tokens_per_second"] > 0
    assert lately["tpot_ms"]["p95"] >= lately["tpot_ms"]["p50"] > 0
    assert shown["requests"] == {"running": 0, "waiting": 0}
    length = engine.live.since_change().counts.mean_length
    assert shown["verdict"]["text"].startswith(f"{length:.1f} tokens per step")


@pytest.mark.engine("ngram")
async def test_requests_that_run_and_wait_are_counted(engine: Engine) -> None:
    requests = [
        asyncio.create_task(complete(engine, COPIED, max_tokens=40, ignore_eos=True))
        for _ in range(3)
    ]
    most = 0
    while not all(request.done() for request in requests):
        most = max(most, (await ask(engine, "GET"))[1]["requests"]["running"])
        await asyncio.sleep(0.05)
    await asyncio.gather(*requests)
    assert most == 3


def times() -> tuple[int, float]:
    """How many requests vLLM has timed per token, and the sum of these times in seconds."""
    (histogram,) = (
        metric
        for metric in get_metrics_snapshot()
        if isinstance(metric, Histogram)
        and metric.name == "vllm:request_time_per_output_token_seconds"
    )
    return histogram.count, histogram.sum


@pytest.mark.engine("ngram")
async def test_the_time_per_token_is_that_of_vllm_and_not_that_of_chunks(engine: Engine) -> None:
    count, total = times()
    body = {"prompt": COPIED, "max_tokens": 60, "ignore_eos": True, "temperature": 0}
    pieces = await outputs(engine, {"route": "/v1/completions", "body": body | {"stream": True}})
    assert len(events(pieces)) < 60
    later, sum_of_times = times()
    assert later == count + 1
    request = next(engine.live.finished())
    assert request.tokens == 60
    assert request.tpot == pytest.approx(sum_of_times - total, rel=0.1)


#: A request of each kind of which vLLM tells no figures, and how many sequences it has.
UNTOLD: Mapping[str, tuple[str, Mapping[str, Any], int]] = {
    "stop string": ("/v1/completions", {"prompt": COPIED, "stop": ["four. One two three"]}, 1),
    "streamed stop string": (
        "/v1/completions",
        {"prompt": COPIED, "stop": ["four. One two three"], "stream": True},
        1,
    ),
    "choices": ("/v1/completions", {"prompt": COPIED, "n": 2, "temperature": 0.1}, 2),
    "streamed choices": (
        "/v1/completions",
        {"prompt": COPIED, "n": 2, "temperature": 0.1, "stream": True},
        2,
    ),
    "prompts": ("/v1/completions", {"prompt": [COPIED, f"{COPIED} three"]}, 2),
    "stream": ("/v1/completions", {"prompt": COPIED, "stream": True}, 1),
    "chat stream": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": COPIED}], "stream": True},
        1,
    ),
    "responses": ("/v1/responses", {"input": COPIED}, 1),
    "streamed responses": ("/v1/responses", {"input": COPIED, "stream": True}, 1),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": COPIED}]}, 1),
    "streamed messages": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": COPIED}], "stream": True},
        1,
    ),
}


def told(answers: list[Any], *, streamed: bool) -> dict[str, Any]:
    """The last figures in what a client gets."""
    if streamed:
        lines = "".join(answers).split("\n")
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
        answers = [json.loads(text) for text in data]
    found = [answer.get("response", answer).get("metrics") or {} for answer in answers]
    return dict([one for one in found if "speculative_decoding" in one][-1]["speculative_decoding"])


@pytest.mark.engine("ngram")
@pytest.mark.parametrize("kind", UNTOLD)
async def test_every_kind_of_request_has_figures_and_is_among_the_recent(
    engine: Engine, kind: str
) -> None:
    route, asked, sequences = UNTOLD[kind]
    limit = "max_output_tokens" if route == "/v1/responses" else "max_tokens"
    body = {"temperature": 0, limit: 40, **asked}
    known = len(list(engine.live.finished()))
    before = acceptance.read()
    answers = await outputs(engine, {"route": route, "body": body})
    counted = acceptance.read() - before
    figures = told(answers, streamed=bool(asked.get("stream")))
    assert figures["num_draft_tokens"] == counted.drafted > 0
    assert figures["num_accepted_draft_tokens"] == counted.accepted
    assert figures["num_spec_steps"] == counted.drafts
    assert figures["mean_acceptance_length"] == pytest.approx(counted.mean_length)
    assert len(list(engine.live.finished())) == known + sequences
    recent = (await ask(engine, "GET"))[1]["recent"][:sequences]
    assert len({one["id"] for one in recent}) == 1
    assert recent[0]["id"] in json.dumps(answers)
    assert sum(one["drafted"] for one in recent) == counted.drafted
    assert sum(one["accepted"] for one in recent) == counted.accepted
    # A stop string may end a request within a step, whose other tokens are not its own.
    assert sum(one["tokens"] for one in recent) <= counted.generated


@pytest.mark.engine("ngram")
async def test_a_request_ended_by_a_stop_string_has_the_tokens_of_its_usage(engine: Engine) -> None:
    answer = await complete(engine, COPIED, max_tokens=60, stop=["four. One two three"])
    assert answer["choices"][0]["finish_reason"] == "stop"
    request = next(engine.live.finished())
    assert (request.id, request.tokens) == (answer["id"], answer["usage"]["completion_tokens"])


@pytest.mark.engine("ngram")
async def test_steps_of_a_beam_search_are_not_among_the_recent(engine: Engine) -> None:
    known = len(list(engine.live.finished()))
    await complete(engine, COPIED, max_tokens=4, n=2, use_beam_search=True)
    assert len(list(engine.live.finished())) == known


# Outside.


def metrics_of(text: str) -> set[str]:
    """The names of all samples in a page of metrics."""
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}


@pytest.mark.engine("ngram")
async def test_every_metric_of_the_dashboard_is_there(engine: Engine) -> None:
    (page,) = await outputs(engine, {"route": "/metrics"})
    there = metrics_of(page)
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [
        variable["query"]["query"]
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "query"
    ]
    named = set(re.findall(r"\b(?:vllm|specworker):\w+", " ".join(queries)))
    assert len(named) > 12
    assert {"specworker:num_speculative_tokens", "specworker:mean_acceptance_length"} <= named
    assert named - there == set()
    labels = set(re.findall(r"by \((\w+)\)", " ".join(queries))) - {"le"}
    assert {label for label in labels if f'{label}="' not in page} == set()


@pytest.mark.engine("ngram")
async def test_the_gauges_follow(engine: Engine) -> None:
    await set_tokens(engine, 2)
    try:
        await asyncio.sleep(1.5)
        (page,) = await outputs(engine, {"route": "/metrics"})
    finally:
        await set_tokens(engine, 3)
    assert 'specworker:num_speculative_tokens{model_name="demo"} 2.0' in page


@pytest.mark.engine("plain")
async def test_an_engine_without_speculation_says_so_and_takes_no_k(engine: Engine) -> None:
    await complete(engine, COPIED, max_tokens=4)
    status, shown = await ask(engine, "GET")
    assert status == 200
    assert (shown["method"], shown["max_num_speculative_tokens"]) == (None, 0)
    assert shown["verdict"] == {
        "kind": "off",
        "text": "off: no speculation is set",
        "is_estimate": False,
    }
    assert shown["recent"][0]["tokens"] == 4
    assert shown["recent"][0]["steps"] is None
    status, said = await ask(engine, "PATCH", {"num_speculative_tokens": 0})
    assert status == said["error"]["code"] == 409
    assert "decodes plainly" in said["error"]["message"]


@pytest.mark.engine("suffix up to two")
async def test_what_is_off_above_a_batch_says_so_while_it_is(engine: Engine) -> None:
    shown = (await ask(engine, "GET"))[1]
    assert (shown["disable_by_batch_size"], shown["max_num_speculative_tokens"]) == (2, 24)
    requests = [
        asyncio.create_task(complete(engine, f"{number}", max_tokens=30, ignore_eos=True))
        for number in range(4)
    ]
    while engine.live.running < 4:
        await asyncio.sleep(0.01)
    assert verdict.now(engine.live).text == "off above batch 2"
    assert "off above batch 2" in overview.line(engine.live)
    await asyncio.gather(*requests)


@pytest.mark.engine("self-draft")
async def test_a_draft_as_large_as_its_model_does_not_pay(
    engine: Engine, environments: Mapping[str, Mapping[str, str]]
) -> None:
    await complete(engine, COPIED, max_tokens=40, ignore_eos=True)
    shown = (await ask(engine, "GET"))[1]
    assert shown["method"] == "draft_model"
    assert shown["draft"] == environments["self-draft"]["SPECULATIVE_MODEL"]
    assert shown["windows"]["10s"]["mean_acceptance_length"] > 5
    assert shown["verdict"]["kind"] == "not_paying"
    assert "100% of a step" in shown["verdict"]["text"]
