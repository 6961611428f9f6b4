"""A person's browser: Debian's Chromium, driven by Playwright."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright, expect

#: Where screenshots are kept for a person to look at.
ARTEFACTS = Path(__file__).parent.parent / "artefacts"
#: Seconds within which the page shows what it should.
SOON = 15.0


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """The browser, closed afterwards."""
    path = shutil.which("chromium")
    assert path, "the page's tests need Chromium: apt-get install chromium"
    expect.set_options(timeout=1000 * SOON)
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=path)
        yield running
        await running.close()


@asynccontextmanager
async def opened(browser: Browser, url: str, **context: Any) -> AsyncIterator[Page]:
    """A page of a browser that knows nothing yet; fails when its script does."""
    options = {"viewport": {"width": 1280, "height": 900}, **context}
    async with await browser.new_context(**options) as own:
        page = await own.new_page()
        failures: list[str] = []
        page.on("pageerror", lambda error: failures.append(str(error)))
        await page.goto(url)
        yield page
        assert not failures, failures


async def kept(page: Page, name: str) -> None:
    """Keep a picture of the whole page."""
    ARTEFACTS.mkdir(exist_ok=True)
    await page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)


async def barriers(page: Page) -> str:
    """What axe finds wrong for people with disabilities; empty when it finds nothing."""
    results = await Axe().run(page)
    return str(results.generate_report()) if results.violations_count else ""
