"""The scenario in which a browser opens each view of the page for the first time: when it paints, what it receives."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.plan import Plan
from benchmarks.server import shoal
from shoal.bench.trial import Figures, Row, Trial
from shoal.errors import NotReady

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: Views by the names that the address has for them.
VIEWS = ("search", "compare", "pool", "map")

#: Bytes that were received for the page itself, as the browser counts them.
RECEIVED = """
[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
  .filter(({ name, initiatorType }) => initiatorType === "navigation" || name.includes("/page/"))
  .reduce((sum, { transferSize }) => sum + transferSize, 0)
"""

PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def run(plan: Plan) -> list[Row]:
    """Open the views in turns, each in a window without a cache."""
    with shoal() as server, chromium() as browser:
        trials = [Trial(f"#{view}", server.name, partial(_open, browser, f"{server.url}/#{view}")) for view in VIEWS]
        return plan.interleave("paint", trials)


def _open(browser: "Browser", url: str, _: int, __: int) -> Figures:
    """Return when the view painted something first, and what the browser received."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(url)
        page.locator("main").locator("h1").first.wait_for()
        return {"first paint ms": page.evaluate(PAINTED), "KB received": page.evaluate(RECEIVED) / 1_000}


@contextmanager
def chromium() -> Iterator["Browser"]:
    """Run the system's Chromium. Raises NotReady where it or playwright is missing."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError as error:
        raise NotReady("this needs playwright, which scripts/install installs with the part test") from error
    if not program:
        raise NotReady("this needs the program chromium")
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=program, args=["--no-sandbox"]) as browser,
    ):
        yield browser
