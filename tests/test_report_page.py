"""The report as a page, in a real browser without a network."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser

from specworker import report, report_page
from specworker.measured import Round
from tests.browsers import barriers, kept, opened
from tests.rounds import TEXTS, compared, measured, side_by_side

SPEEDUPS: dict[str, dict[int, Sequence[float]]] = {
    "ngram": {1: [1.5, 1.6, 1.4], 16: [0.9, 0.8, 0.85]},
    "<i>suffix</i>": {1: [2.0, 2.1, 1.9], 16: [1.0, 1.1, 0.9]},
}
ATTACK = "one <script>document.title = 'run'</script>"


def rounds() -> list[Round]:
    differing = measured("ngram", 4, texts=(TEXTS[0], ATTACK), notes=("<u>other traffic</u>",))
    return [*side_by_side(SPEEDUPS), measured("off", 4), differing]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    report.write(folder, compared(rounds(), model="acme/<model>"))
    return (folder / "comparison.html").as_uri()


@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("light", {}),
        ("dark", {"color_scheme": "dark"}),
        ("narrow", {"viewport": {"width": 320, "height": 600}}),
    ],
)
async def test_it_shows_everything_without_barriers_and_without_a_network(
    name: str, context: dict[str, Any], browser: Browser, url: str
) -> None:
    async with opened(browser, url, offline=True, **context) as page:
        loaded = await page.evaluate("performance.getEntriesByType('resource').length")
        assert loaded == 0
        verdict = page.locator("#verdict")
        assert "ngram pays with 1 request at once" in await verdict.inner_text()
        assert "SPECULATIVE_DISABLE_BY_BATCH_SIZE=1" in await verdict.inner_text()
        assert await page.locator("svg").count() == 3
        cells = await page.locator("table").first.locator("tbody tr").nth(1).inner_text()
        assert cells.split()[:2] == ["1", "ngram"]
        assert "1.50 (1.34–1.68)" in cells
        fits = await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert fits
        assert await barriers(page) == ""
        await kept(page, f"report-{name}")


async def test_names_and_texts_are_shown_and_not_run(browser: Browser, url: str) -> None:
    async with opened(browser, url) as page:
        assert await page.title() == "acme/<model>, workload copy: with and without speculation"
        text = await page.locator("body").inner_text()
        assert ATTACK in text
        assert "<i>suffix</i>" in text
        assert "<u>other traffic</u>" in text
        assert "<b>marked & up</b>" in text


async def test_a_dark_page_draws_in_light_colours(browser: Browser, url: str) -> None:
    async def ink(**context: Any) -> str:
        async with opened(browser, url, **context) as page:
            stroke = await page.evaluate(
                """() => [...document.querySelectorAll("svg [style*=variant-0]")]
                    .map((one) => getComputedStyle(one).stroke).find((one) => one != "none")"""
            )
        return str(stroke)

    assert await ink() == "rgb(0, 103, 168)"
    assert await ink(color_scheme="dark") == "rgb(98, 181, 238)"


def test_of_many_differences_the_rest_is_counted() -> None:
    texts = [f"alpha {number}" for number in range(30)]
    others = [f"alpha {number} more" for number in range(30)]
    found = compared([measured(texts=texts), measured("ngram", texts=others)])
    page = report_page.html(found)
    assert page.count("<mark>") == 2 * report_page.SHOWN
    assert "And 10 more" in page


def test_a_page_loads_nothing(url: str) -> None:
    text = Path(url.removeprefix("file://")).read_text()
    for loads in ("<script", "<img", " src=", "@import", "url(http"):
        assert loads not in text
