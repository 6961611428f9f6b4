"""The page over the worker's own server and a real engine: what a person does with it."""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from specworker.demo_model import NAME
from tests.browsers import barriers, kept, opened
from tests.engines import Rack
from tests.servers import ENGINE_SOON, process

KEY = "sk-of-this-test"
#: Milliseconds that an answer may take.
ANSWER_SOON = 120_000


async def unlocked(page: Page) -> None:
    """Give the key that the page asks for."""
    await expect(page.locator("#verdict")).to_have_text("This server asks for its API key")
    await page.fill("#secret", KEY)
    await page.keyboard.press("Enter")
    await expect(page.locator("#unlock")).to_be_hidden()


#: Keeps what stands there as soon as anything does, and so before the answer is whole.
EARLY = """() => {
    const [text, send] = ["#text", "#send"].map((id) => document.querySelector(id));
    window.early = null;
    const look = () => { window.early ||= text.innerText && [text.innerText, send.innerText]; };
    new MutationObserver(look).observe(text, { childList: true, subtree: true });
}"""


async def answer(page: Page) -> str:
    """Send the prompt that stands there, see the answer stream, and return it."""
    await page.evaluate("document.querySelector('#text').replaceChildren()")
    await page.evaluate(EARLY)
    await page.click("#send")
    async with asyncio.timeout(ANSWER_SOON / 1000):
        while not (seen := await page.evaluate("window.early")):
            await asyncio.sleep(0.01)
    early, label = seen
    assert label == "Stop"
    await expect(page.locator("#send")).to_have_text("Send", timeout=ANSWER_SOON)
    text = await page.locator("#text").inner_text()
    assert text.startswith(early)
    assert len(text) > len(early)
    return text


@pytest.mark.engine("of its own")
async def test_a_person_sees_drafting_pay_stops_it_and_lets_it_go_on(
    rack: Rack, browser: Browser, tmp_path: Path
) -> None:
    await rack.close()
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    # Identical text needs float32.
    variables = {"API_KEY": KEY, "DTYPE": "float32", "MAX_MODEL_LEN": "1024"}
    with process(tmp_path, "--serve", XDG_CACHE_HOME=cache, **variables) as worker:
        url = str(worker.client.base_url)
        worker.client.headers["authorization"] = f"Bearer {KEY}"

        def figures() -> Any:
            return worker.client.get("/speculation").raise_for_status().json()

        async with opened(browser, url) as page:
            await unlocked(page)
            await expect(page.locator("#verdict")).to_have_text("The model is loading")
            await expect(page.locator("#link")).to_have_text("live", timeout=1000 * ENGINE_SOON)
            await expect(page.locator("#model")).to_have_text(NAME)
            await expect(page.locator("#facts")).to_contain_text("ngram")
            await expect(page.locator("#k")).to_have_text("3")
            await page.get_by_label("since start").check()
            await expect(page.locator("#length")).to_have_text("–")
            assert figures()["windows"]["since_start"]["drafts"] == 0

            drafted = await answer(page)
            told = await page.locator("#told").inner_text()
            found = re.search(r"(\d+) of (\d+) drafted tokens accepted", told)
            assert found, told
            accepted = int(found[1])
            assert accepted > 20
            # The marks stood the comparison with the engine's own count.
            assert await page.locator("#text").get_attribute("data-marks") == "draft"
            assert await page.locator("#text .drafted").count() > 5
            await expect(page.locator("#length")).not_to_have_text("–")
            assert 1 < float(await page.locator("#length").inner_text()) <= 4
            await expect(page.locator("#share-of")).to_contain_text(f"accepted: {accepted}")
            height = "(bar) => bar.getBoundingClientRect().height"
            assert await page.locator("#positions .bar").first.evaluate(height) > 20
            assert "M" in str(await page.locator("#lengths .line").get_attribute("d"))
            await expect(page.locator("#recent tr")).to_have_count(1)
            await expect(page.locator("#recent")).to_contain_text(f"{accepted} of {found[2]}")
            assert await barriers(page) == ""
            await kept(page, "engine-drafting")

            await page.click("#toggle")
            await expect(page.locator("#answer")).to_contain_text("set K to 0, from 3")
            before = figures()["windows"]["since_start"]
            assert await answer(page) == drafted
            assert await page.locator("#text .drafted").count() == 0
            await expect(page.locator("#told")).to_contain_text("Nothing was drafted.")
            after = figures()
            assert after["num_speculative_tokens"] == 0
            assert after["windows"]["since_start"]["drafts"] == before["drafts"]
            await expect(page.locator("#said")).to_have_attribute("data-kind", "off")
            await kept(page, "engine-off")

            await page.click("#toggle")
            await expect(page.locator("#answer")).to_contain_text("set K to 3, from 0")
            assert await answer(page) == drafted
            assert await page.locator("#text .drafted").count() > 5
            assert figures()["windows"]["since_start"]["drafts"] > before["drafts"]

        phone = {"viewport": {"width": 360, "height": 780}, "color_scheme": "dark"}
        async with opened(browser, url, **phone) as small:
            await unlocked(small)
            await expect(small.locator("#recent tr")).to_have_count(3)
            await kept(small, "engine-phone-dark")
            assert await barriers(small) == ""
