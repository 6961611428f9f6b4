"""The page at `/`, in a real browser, over a server that speaks the worker's contract."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests import contract_server
from tests.browsers import barriers, kept, opened
from tests.contract_server import (
    IDLE,
    MODEL,
    PLAIN,
    Server,
    adapting,
    figures,
    finished,
    piece,
    serving,
    usage,
    window,
)

PHONE = {"viewport": {"width": 360, "height": 780}}
DARK = {"color_scheme": "dark"}
CHAT = "/v1/chat/completions"
TYPICAL = {
    "name": "typical_acceptance_sampler",
    "lossy": True,
    "threshold": 0.09,
    "alpha": 0.3,
    "recovery": "argmax",
}
#: Steps of one, three and one token, and one of five of which there was room for three.
STREAM = [
    piece("", role="assistant", content=""),
    piece("The"),
    piece(" draft", " is", " right"),
    piece(" and"),
    piece(" right", " again", " now"),
    usage(8, [1, 0, 1, 0, 1], 12),
]


@pytest.fixture
def server() -> Server:
    return Server(stream=STREAM)


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    with serving(server) as base_url:
        yield base_url


async def live(page: Page) -> None:
    await expect(page.locator("#link")).to_have_text("live")


async def polled(server: Server, times: int) -> None:
    """Wait until the page has asked that many times more."""
    before = len(server.bodies("GET", "/speculation"))
    while len(server.bodies("GET", "/speculation")) < before + times:
        await asyncio.sleep(0.05)


async def marked(page: Page) -> list[tuple[str, str]]:
    """The answer's runs of text, with how each is marked."""
    return [
        (kind, text)
        for kind, text in await page.evaluate(
            """() => [...document.querySelectorAll("#text .step")].flatMap((step) =>
                [...step.childNodes].map((node) => [node.className ?? "", node.textContent]))"""
        )
        if text
    ]


async def answered(page: Page) -> None:
    await page.click("#send")
    await expect(page.locator("#send")).to_have_text("Send")


# What is shown


async def test_the_servers_verdict_and_figures_are_shown_with_their_units(
    browser: Browser, url: str
) -> None:
    async with opened(browser, url) as page:
        await expect(page.locator("#verdict")).to_have_text("3.5 tokens per step: paying off")
        await expect(page.locator("#why")).to_contain_text("An estimate")
        await expect(page.locator("#model")).to_have_text(MODEL)
        await expect(page.locator("#facts")).to_contain_text("ngram")
        await expect(page.locator("#facts")).to_contain_text("lossless")
        shown = await page.locator("#figures dd").all_inner_texts()
        assert shown == ["3.48", "62 %", "48.8", "1", "11.8 ms", "19.1 ms"]
        await expect(page.locator("#share-of")).to_have_text(
            "of 1,200 drafted tokens accepted: 744"
        )
        await expect(page.locator("#waiting")).to_have_text("requests running, 2 waiting")


async def test_a_lossy_rule_a_draft_and_a_batch_limit_are_named(
    browser: Browser, server: Server, url: str
) -> None:
    server.figures |= {"acceptance_rule": TYPICAL, "draft": "acme/my-draft", "method": "eagle3"}
    server.figures |= {"disable_by_batch_size": 8}
    server.figures["verdict"]["is_estimate"] = False
    async with opened(browser, url) as page:
        await live(page)
        facts = await page.locator("#facts").inner_text()
        for fact in ("eagle3", "acme/my-draft", "lossy", "alpha 0.3", "argmax", "8 running"):
            assert fact in facts
        await expect(page.locator("#why")).to_have_text("")


async def test_another_window_shows_its_own_figures(browser: Browser, url: str) -> None:
    async with opened(browser, url) as page:
        await live(page)
        await page.get_by_label("since start").check()
        await expect(page.locator("#length")).to_have_text("2.30")
        await expect(page.locator("#positions-over")).to_have_text("since start")
        assert await page.locator("#positions text:not(.place)").all_text_contents() == [
            *("60", "40", "20", "10")
        ]


async def test_bars_are_as_high_as_the_share_accepted_at_their_position(
    browser: Browser, url: str
) -> None:
    async with opened(browser, url, reduced_motion="reduce") as page:
        await live(page)
        heights = await page.locator("#positions .bar").evaluate_all(
            "(bars) => bars.map((bar) => bar.getBoundingClientRect().height)"
        )
        full = await page.locator("#positions .track").first.bounding_box()
        assert full is not None
        shares = [height / full["height"] for height in heights]
        assert shares == pytest.approx([0.93, 0.8, 0.5, 0.25], abs=0.01)
        label = await page.locator("#positions").get_attribute("aria-label")
        assert label == "Accepted, position 1: 93 %, position 2: 80 %, position 3: 50 %, " + (
            "position 4: 25 %"
        )


async def test_a_position_that_no_draft_reached_has_no_share(
    browser: Browser, server: Server, url: str
) -> None:
    server.figures["windows"]["1m"] = window(300, 0.9, 0.0)
    async with opened(browser, url) as page:
        await live(page)
        shown = await page.locator("#positions text:not(.place)").all_text_contents()
        assert shown == ["90", "0", "–", "–"]


async def test_acceptance_and_speed_are_drawn_over_time_and_broken_where_nothing_was_drafted(
    browser: Browser, server: Server, url: str
) -> None:
    async with opened(browser, url) as page:
        await polled(server, 2)
        server.figures["windows"]["10s"] = window(speed=2.0)
        await expect(page.locator("#length-now")).to_have_text("no drafts now")
        server.figures["windows"]["10s"] = window(50, 1.0, 1.0, 1.0, 1.0, speed=99.5)
        await expect(page.locator("#length-now")).to_have_text("5.00 now")
        drawn = str(await page.locator("#lengths .line").get_attribute("d"))
        assert drawn.count("M") == 2
        assert drawn.endswith(" 0.00")  # the top: K + 1
        label = str(await page.locator("#speeds").get_attribute("aria-label"))
        assert "lowest 2.0, highest 99.5, last 99.5 tokens per second" in label


async def test_the_last_requests_have_their_own_acceptance_newest_first(
    browser: Browser, server: Server, url: str
) -> None:
    server.figures["recent"] = [
        finished("cmpl-old", 4000, drafted=0, accepted=0, mean_acceptance_length=1.0, tpot_ms=None),
        finished("cmpl-new", 75, tokens=1200),
        finished("cmpl-uncounted", 5000, steps=None, drafted=None, accepted=None)
        | {"mean_acceptance_length": None},
    ]
    async with opened(browser, url) as page:
        await live(page)
        rows = await page.locator("#recent tr").all_inner_texts()
        assert [row.split("\t") for row in rows] == [
            ["1 min", "cmpl-new", "1,200", "20", "44 of 80", "3.20", "12.0"],
            ["1 h", "cmpl-old", "64", "20", "no drafts", "–", "–"],
            ["1 h", "cmpl-uncounted", "64", "–", "–", "–", "12.0"],
        ]


# What the server's state is


@pytest.mark.parametrize(
    ("state", "link", "says"),
    [
        ({"status": 503, "ping": 204}, "loading", "The model is loading"),
        ({"status": 204, "ping": 204}, "loading", "The model is loading"),
        ({"status": 503, "ping": 503}, "down", "answered with 503"),
        ({"status": 500}, "unexpected answer", "status 500: answered with 500"),
        ({"figures": figures(**PLAIN)}, "live", "off: plain decoding"),
        ({"figures": figures(**IDLE)}, "live", "no traffic yet"),
    ],
    ids=["loading", "no content", "down", "unexpected", "plain", "idle"],
)
async def test_every_state_is_said_in_words_without_barriers(
    browser: Browser, request: pytest.FixtureRequest, state: dict[str, Any], link: str, says: str
) -> None:
    with serving(Server(**state)) as base_url:
        async with opened(browser, base_url) as page:
            await expect(page.locator("#link")).to_have_text(link)
            await expect(page.locator("#said")).to_contain_text(says)
            assert "NaN" not in await page.locator("main").inner_text()
            assert await page.locator("#toggle").is_disabled() == (says != "no traffic yet")
            await kept(page, f"page-{request.node.callspec.id.replace(' ', '-')}")
            assert await barriers(page) == ""


async def test_plain_decoding_says_why_and_offers_no_k(
    browser: Browser, server: Server, url: str
) -> None:
    server.figures |= PLAIN | {"fallback": "SPECULATIVE_MODEL=acme/draft: not on the hub"}
    async with opened(browser, url) as page:
        await expect(page.locator("#facts")).to_contain_text("acme/draft: not on the hub")
        await expect(page.locator("#answer")).to_contain_text("started without speculation")
        await expect(page.locator("#slider")).to_be_disabled()
        await expect(page.locator("#no-positions")).to_be_visible()
        await expect(page.locator("#send")).to_be_enabled()


async def test_a_server_that_loads_goes_and_comes_back_is_followed(browser: Browser) -> None:
    server = Server(status=503, ping=204)
    with ExitStack() as running:
        base_url = running.enter_context(serving(server))
        async with opened(browser, base_url) as page:
            await expect(page.locator("#link")).to_have_text("loading")
            await expect(page.locator("#send")).to_be_disabled()
            server.status = server.ping = 200
            await live(page)
            await expect(page.locator("#send")).to_be_enabled()
            await asyncio.to_thread(running.close)
            await expect(page.locator("#verdict")).to_have_text("The server does not answer")
            await expect(page.locator("#why")).to_contain_text("Last answer")
            await expect(page.locator("#toggle")).to_be_disabled()
            await expect(page.locator("#length")).to_have_text("3.48")
            await kept(page, "page-gone")
            assert await barriers(page) == ""
            with serving(server, port=int(base_url.rpartition(":")[2])):
                await live(page)
                await expect(page.locator("#toggle")).to_be_enabled()


async def test_it_asks_once_a_second_while_it_is_seen_and_not_while_it_is_hidden(
    browser: Browser, server: Server, url: str
) -> None:
    hide = """(hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""

    def asked() -> int:
        return len(server.bodies("GET", "/speculation"))

    async with opened(browser, url) as page:
        await live(page)
        before = asked()
        await asyncio.sleep(3.5)
        assert 2 <= asked() - before <= 4
        await page.evaluate(hide, True)
        await asyncio.sleep(0.2)
        before = asked()
        await asyncio.sleep(2)
        assert asked() == before
        await page.evaluate(hide, False)
        await polled(server, 2)


# The key


async def test_the_key_is_asked_for_once_and_kept_in_the_tab_alone(
    browser: Browser, server: Server, url: str
) -> None:
    server.key = "s3cret"
    async with opened(browser, url) as page:
        await expect(page.locator("#verdict")).to_have_text("This server asks for its API key")
        assert await barriers(page) == ""
        await kept(page, "page-key")
        await expect(page.locator("#secret")).to_be_focused()
        await page.keyboard.type("wrong")
        await page.keyboard.press("Enter")
        await expect(page.locator("#verdict")).to_have_text("The server did not accept this key")
        await page.keyboard.type("s3cret")
        await page.keyboard.press("Enter")
        await live(page)
        await expect(page.locator("#unlock")).to_be_hidden()
        await page.reload()
        await live(page)
        assert await page.evaluate("localStorage.length") == 0
        assert await page.context.cookies() == []
        await expect(page.locator("#unlock")).to_be_hidden()
        server.key = "another"  # the server was started anew
        await expect(page.locator("#verdict")).to_have_text("The server did not accept this key")


async def test_a_key_is_kept_while_the_server_has_not_read_its_own(
    browser: Browser, server: Server, url: str
) -> None:
    server.key = "s3cret"
    async with opened(browser, url) as page:
        await page.fill("#secret", "s3cret")
        await page.keyboard.press("Enter")
        await live(page)
        server.key, server.ping = "not read yet", 204
        await expect(page.locator("#verdict")).to_have_text("The model is loading")
        server.key, server.ping = "s3cret", 200
        await live(page)


async def test_without_a_key_the_server_is_not_asked_again_and_again(
    browser: Browser, server: Server, url: str
) -> None:
    server.key = "s3cret"
    async with opened(browser, url) as page:
        await expect(page.locator("#unlock")).to_be_visible()
        await asyncio.sleep(2)
        assert len(server.bodies("GET", "/speculation")) == 1


# K


async def test_k_is_set_with_the_keyboard_and_the_answer_is_shown(
    browser: Browser, server: Server, url: str
) -> None:
    async with opened(browser, url) as page:
        await live(page)
        await page.focus("#slider")
        await page.keyboard.press("ArrowLeft")
        await expect(page.locator("#answer")).to_have_text(
            "The server set K to 3, from 4; it takes effect at the next step."
        )
        await expect(page.locator("#k")).to_have_text("3")
        assert server.bodies("PATCH", "/speculation") == [{"num_speculative_tokens": 3}]
        for _ in range(3):
            await page.keyboard.press("ArrowLeft")
        await expect(page.locator("#k-most")).to_have_text("off, at most 4")
        await expect(page.locator("#answer")).to_contain_text("set K to 0")
        assert await page.locator("#slider").get_attribute("aria-valuetext") == "0, off"
        assert server.figures["num_speculative_tokens"] == 0


async def test_drafting_is_stopped_and_goes_on_with_the_k_it_had(
    browser: Browser, server: Server, url: str
) -> None:
    server.figures["num_speculative_tokens"] = 2
    async with opened(browser, url) as page:
        await live(page)
        await page.click("#toggle")
        await expect(page.locator("#toggle")).to_have_text("Draft again, K = 2")
        await page.click("#toggle")
        await expect(page.locator("#toggle")).to_have_text("Stop drafting, K = 0")
        asked = [body["num_speculative_tokens"] for body in server.bodies("PATCH", "/speculation")]
        assert asked == [0, 2]


async def test_a_k_that_another_person_sets_shows(
    browser: Browser, server: Server, url: str
) -> None:
    async with opened(browser, url) as page:
        await live(page)
        server.figures["num_speculative_tokens"] = 1
        await expect(page.locator("#k")).to_have_text("1")
        await expect(page.locator("#slider")).to_have_value("1")


async def test_a_k_that_the_server_refuses_stays_and_its_reason_is_shown(
    browser: Browser, server: Server, url: str
) -> None:
    server.refusal = (422, "num_speculative_tokens=3: not now; allowed: 0 to 4")
    async with opened(browser, url) as page:
        await live(page)
        await page.focus("#slider")
        await page.keyboard.press("ArrowLeft")
        await expect(page.locator("#answer")).to_have_text(
            "K stays: num_speculative_tokens=3: not now; allowed: 0 to 4"
        )
        await expect(page.locator("#slider")).to_have_value("4")
        await expect(page.locator("#k")).to_have_text("4")
        assert await barriers(page) == ""


async def test_k_that_adapts_shows_what_it_came_to_and_why(
    browser: Browser, server: Server, url: str
) -> None:
    reason = "K 4 → 2: 1.9 tokens per step at batch 3, 1.12 times as fast"
    server.figures |= {"num_speculative_tokens": 2, "adaptive": adapting(2, 3, reason)}
    async with opened(browser, url) as page:
        await live(page)
        await expect(page.locator("#k")).to_have_text("2")
        await expect(page.locator("#k-most")).to_have_text("adapts, up to 3")
        await expect(page.locator("#adapted")).to_have_text(reason)
        await expect(page.locator("#why")).to_contain_text("by the times that steps took")
        server.figures |= {"num_speculative_tokens": 0, "adaptive": adapting(0, 3, "K 2 → 0: no")}
        await expect(page.locator("#adapted")).to_have_text("K 2 → 0: no")
        await expect(page.locator("#toggle")).to_have_text("Stop drafting, K = 0")
        assert await barriers(page) == ""


async def test_k_is_let_adapt_and_kept_where_it_is(
    browser: Browser, server: Server, url: str
) -> None:
    async with opened(browser, url) as page:
        await live(page)
        await expect(page.locator("#adapted")).to_be_hidden()
        await page.click("#adapt")
        await expect(page.locator("#answer")).to_have_text(
            "K adapts, up to 4; it takes effect at the next step."
        )
        await expect(page.locator("#k-most")).to_have_text("adapts, up to 4")
        await expect(page.locator("#adapted")).to_have_text("K has not changed yet.")
        await page.click("#adapt")
        await expect(page.locator("#answer")).to_contain_text("The server set K to 4")
        await expect(page.locator("#adapted")).to_be_hidden()
        await page.click("#adapt")
        await expect(page.locator("#k-most")).to_have_text("adapts, up to 4")
        await page.click("#toggle")
        await expect(page.locator("#k-most")).to_have_text("off, at most 4")
        assert server.bodies("PATCH", "/speculation") == [
            {"adaptive": True},
            {"num_speculative_tokens": 4},
            {"adaptive": True},
            {"num_speculative_tokens": 0},
        ]


# The prompt


async def test_a_chat_streams_with_its_accepted_drafts_marked(
    browser: Browser, server: Server, url: str
) -> None:
    async with opened(browser, url) as page:
        await live(page)
        await page.fill("#prompt", "Which draft?")
        await page.fill("#most", "8")
        await answered(page)
        assert await marked(page) == [
            ("own", "The"),
            ("", " "),
            ("drafted", "draft is"),
            ("own", " right"),
            ("own", " and"),
            ("", " "),
            ("drafted", "right again"),
            ("drafted", " now"),
        ]
        await expect(page.locator("#told")).to_contain_text("8 tokens in")
        await expect(page.locator("#told")).to_contain_text(
            "6 of 12 drafted tokens accepted in 3 drafted steps: 3.00 tokens per drafted step."
        )
        (body,) = server.bodies("POST", CHAT)
        assert body["messages"] == [{"role": "user", "content": "Which draft?"}]
        assert (body["model"], body["max_tokens"], body["temperature"]) == (MODEL, 8, 0)
        assert await barriers(page) == ""


@pytest.mark.parametrize(
    ("stream", "marks", "shown"),
    [
        pytest.param(
            # With K = 4 a piece of six tokens is several steps.
            [piece(*"abcdef"), piece("g", "h"), usage(8, [0, 2, 1], 12)],
            "draft",
            [("mixed", "abcdef"), ("drafted", "g"), ("own", "h")],
            id="steps joined in a piece",
        ),
        pytest.param(
            [piece("a", "b"), piece("c"), usage(3, [3], 12)],
            "arrival",
            [("drafted", "a"), ("own", "b"), ("own", "c")],
            id="pieces that are not the server's steps",
        ),
        pytest.param(
            [piece("a", "b"), piece("c"), usage(3, [0, 1, 2], 12)],
            "arrival",
            [("drafted", "a"), ("own", "b"), ("own", "c")],
            id="steps of the server's that are no pieces",
        ),
        pytest.param(
            [piece(text="ab"), piece(text="c"), usage(3, [0, 1], 4)],
            "arrival",
            [("own", "ab"), ("own", "c")],
            id="no tokens told",
        ),
        pytest.param(
            # Tokens that are parts of a character have no text until it is complete.
            [piece("", "🌸", ""), piece("", "と"), usage(5, [0, 1, 1], 8)],
            "draft",
            [("drafted", "🌸"), ("own", "と")],
            id="characters of several tokens",
        ),
        pytest.param(
            [piece("<think>", "Hm", text="Hm"), piece(" so", text=" so"), usage(3, [0, 1], 4)],
            "draft",
            [("mixed", "Hm"), ("own", " so")],
            id="text that is not the tokens' own",
        ),
        pytest.param(
            [piece("a", "b", "<|end|>", text="ab"), usage(3, [0, 0, 1], 4)],
            "draft",
            [("drafted", "ab")],
            id="a special token at the end",
        ),
        pytest.param(
            [piece("<b>", "no</b>"), usage(2, [0, 1], 4)],
            "draft",
            [("drafted", "<b>"), ("own", "no</b>")],
            id="markup in the answer",
        ),
    ],
)
async def test_what_cannot_be_told_apart_is_not_marked_as_drafted(
    browser: Browser,
    server: Server,
    url: str,
    stream: list[dict[str, Any]],
    marks: str,
    shown: list[tuple[str, str]],
) -> None:
    server.stream = stream
    async with opened(browser, url) as page:
        await live(page)
        await answered(page)
        assert await marked(page) == shown
        assert await page.locator("#text").get_attribute("data-marks") == marks
        legend = page.locator("#legend")
        await expect(legend.locator(".by-arrival")).to_be_visible(visible=marks == "arrival")
        mixed = any(kind == "mixed" for kind, _ in shown)
        await expect(legend.locator(".if-mixed")).to_be_visible(visible=mixed)


async def test_what_a_model_thinks_is_shown_too(browser: Browser, server: Server, url: str) -> None:
    server.stream = [piece("Hm", reasoning="Hm"), piece(" yes"), usage(2, [2], 8)]
    async with opened(browser, url) as page:
        await live(page)
        await answered(page)
        await expect(page.locator("#text .thinking")).to_have_text("Hm")
        await expect(page.locator("#text")).to_have_text("Hm yes")


@pytest.mark.parametrize("where", ["before", "within"])
async def test_an_error_is_shown_in_the_servers_words(
    browser: Browser, server: Server, url: str, where: str
) -> None:
    if where == "before":
        server.chat_error = (400, "max_tokens is too large")
    else:
        server.stream = [piece("The"), {"error": {"message": "max_tokens is too large"}}]
    async with opened(browser, url) as page:
        await live(page)
        await answered(page)
        await expect(page.locator("#told")).to_have_text("max_tokens is too large")
        await expect(page.locator("#text")).to_have_text("The" if where == "within" else "")


async def test_stop_aborts_the_request(browser: Browser, server: Server, url: str) -> None:
    server.stream, server.endless = [], True
    async with opened(browser, url) as page:
        await live(page)
        await page.click("#send")
        await expect(page.locator("#text")).to_contain_text("on on on")
        await page.click("#send")
        await expect(page.locator("#told")).to_have_text("Stopped: the request was aborted.")
        await expect(page.locator("#send")).to_have_text("Send")
        assert await asyncio.to_thread(server.hung_up.wait, 5)


# For whom it is


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("light", {}),
        ("dark", DARK),
        ("phone", PHONE),
        ("phone-dark", PHONE | DARK),
        ("narrowest", {"viewport": {"width": 320, "height": 600}}),
    ],
)
async def test_it_fits_without_barriers(
    browser: Browser, server: Server, url: str, name: str, options: dict[str, Any]
) -> None:
    server.figures["recent"] *= 5
    async with opened(browser, url, **options) as page:
        await polled(server, 2)
        await answered(page)
        await kept(page, f"page-{name}")
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        paper = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        red = int(paper.removeprefix("rgb(").split(",")[0])
        assert (red < 64) == ("dark" in name)
        assert await barriers(page) == ""
        small = await page.locator("button, input, textarea").evaluate_all(
            "(all) => all.filter((one) => one.checkVisibility() && "
            "one.getBoundingClientRect().height < 24).map((one) => one.outerHTML)"
        )
        assert small == []


async def test_every_control_is_reached_by_keyboard_and_shows_it(
    browser: Browser, url: str
) -> None:
    async with opened(browser, url) as page:
        await live(page)
        reached = []
        for _ in range(10):
            await page.keyboard.press("Tab")
            name, outline = await page.evaluate(
                """() => {
                    const one = document.activeElement;
                    const seen = one.name === "over" ? one.nextElementSibling : one;
                    const { outlineStyle, outlineWidth } = getComputedStyle(seen);
                    const name = one.id || one.name || one.className;
                    return [name, `${outlineStyle} ${outlineWidth}`];
                }"""
            )
            assert outline == "solid 3px", name
            reached.append(name)
        assert reached == [
            *("slider", "toggle", "adapt", "over", "prompt"),
            *("most", "temperature", "send", "text", "scroll"),
        ]


async def test_nothing_moves_as_the_figures_change(
    browser: Browser, server: Server, url: str
) -> None:
    async with opened(browser, url, **PHONE) as page:
        await live(page)
        await page.evaluate(
            """() => {
                window.shifts = [];
                const told = ({ node }) => (node?.parentElement ?? node)?.outerHTML;
                const note = (list) => list.getEntries()
                    .forEach((entry) => shifts.push(entry.sources.map(told)));
                new PerformanceObserver(note).observe({ type: "layout-shift" });
            }"""
        )
        crowd = {"running": 256, "waiting": 10_000}
        busy = window(123_456, 1.0, 0.987, 0.5, 0.123, speed=12_345.6)
        busy["tpot_ms"] = {"p50": 1234.56, "p95": 12345.67}
        for other in (
            {"windows": dict.fromkeys(("10s", "1m", "since_start"), busy), "requests": crowd},
            {"windows": IDLE["windows"], "requests": IDLE["requests"]},
            {"num_speculative_tokens": 0},
        ):
            server.figures |= other
            await polled(server, 2)
        assert await page.evaluate("shifts") == []
        # That K adapts brings a line of its own; what it comes to moves nothing.
        server.figures["adaptive"] = adapting(0)
        await expect(page.locator("#adapted")).to_be_visible()
        await page.evaluate("shifts.length = 0")
        reason = "K 0 → 4: 3.1 tokens per step at batch 1, 1.62 times as fast"
        server.figures |= {"num_speculative_tokens": 4, "adaptive": adapting(4, reason=reason)}
        await polled(server, 2)
        assert await page.evaluate("shifts") == []


async def test_a_screen_reader_hears_a_change_in_kind_and_not_every_figure(
    browser: Browser, server: Server, url: str
) -> None:
    spoken = "document.querySelector('#aloud').textContent"
    async with opened(browser, url) as page:
        await live(page)
        server.figures["verdict"]["text"] = "3.6 tokens per step: paying off"
        await expect(page.locator("#verdict")).to_contain_text("3.6")
        assert await page.evaluate(spoken) == "3.5 tokens per step: paying off"
        server.figures["verdict"] = {"kind": "off", "text": "off", "is_estimate": False}
        await expect(page.locator("#aloud")).to_have_text("off")


async def test_motion_is_left_out_for_who_asks_for_less(browser: Browser, url: str) -> None:
    transition = "getComputedStyle(document.querySelector('#positions .bar')).transitionDuration"
    for wish, seconds in (("reduce", "0s"), ("no-preference", "0.35s")):
        async with opened(browser, url, reduced_motion=wish) as page:
            await live(page)
            assert set((await page.evaluate(transition)).split(", ")) == {seconds}


async def test_it_is_one_file_that_asks_no_other_server(browser: Browser, url: str) -> None:
    async with opened(browser, url) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.reload()
        await live(page)
        await answered(page)
        assert {address.removeprefix(url) for address in asked} <= set(contract_server.PATHS)
        blocked = await page.evaluate(
            """() => {
                const seen = new Promise((tell) => document.addEventListener(
                    "securitypolicyviolation", (event) => tell(event.effectiveDirective)));
                const never = fetch("http://127.0.0.1:1/").catch(() => {})
                    .then(() => new Promise((tell) => setTimeout(tell, 1000)));
                return Promise.race([seen, never]);
            }"""
        )
        assert blocked == "connect-src"
