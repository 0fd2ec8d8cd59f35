"""Takes the documentation's picture of a running service's web page, with the hits of a search in the sample."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import expect, sync_playwright


def main(url: str, picture: Path) -> None:
    """Type a query, wait for its hits, and take the picture."""
    with sync_playwright() as playwright:
        args = ["--no-sandbox", "--enable-unsafe-swiftshader"]  # WebGL without a graphics card
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=args)
        page = browser.new_page(color_scheme="light", reduced_motion="reduce", viewport={"width": 1280, "height": 860})
        page.goto(f"{url}/#search")
        expect(page.locator(".examples article").first).to_be_visible()
        page.locator("#query").press_sequentially("storms are getting worse", delay=120)
        expect(page.locator(".search")).to_have_attribute("aria-busy", "false")
        expect(page.locator(".hit mark").first).to_be_visible()
        expect(page.locator(".status")).to_contain_text("ready")
        page.evaluate("document.fonts.ready")
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), Path(sys.argv[2]))
