"""Pictures of the page of a running service: the one of the documentation, and each view in each kind of window."""

import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

#: The views by their names, with the address of each after the service's and what shows that it is complete.
VIEWS = {
    "first": ("#search", ".examples article"),
    "search": ("#search", ".hit mark"),
    "facet": ('#search?query=energy+prices&mode=lexical&filter={"topic":{"in":["business"]}}', ".hit mark"),
    "like": ("#search?like=2", ".hit"),
    "nothing": ("#search?query=qwertz&mode=lexical", ".notice"),
    "compare": ("#compare", ".token"),
    "pool": ("#pool", ".numbers"),
}

#: The kinds of windows.
WINDOWS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "reduced_motion": "reduce", "viewport": {"width": 1280, "height": 860}},
    "dark": {"color_scheme": "dark", "reduced_motion": "reduce", "viewport": {"width": 1280, "height": 860}},
    "zoomed": {  # a window of 1280 x 860 at 200 %
        "color_scheme": "light",
        "viewport": {"width": 640, "height": 430},
        "device_scale_factor": 2,
    },
    "phone": {
        "color_scheme": "light",
        "viewport": {"width": 390, "height": 844},
        "device_scale_factor": 2,
        "has_touch": True,
        "is_mobile": True,
    },
}

#: What is typed into the box of some views.
TYPED = {"search": "storms are getting worse"}

#: The picture of the documentation.
PICTURE = ("search", "light")


def open_view(browser: Browser, url: str, view: str, window: str) -> Page:
    """Return a page that shows a view, once it is complete."""
    address, complete = VIEWS[view]
    page = browser.new_page(**WINDOWS[window])
    page.goto(f"{url}/{address}")
    if view in TYPED:
        expect(page.locator(".examples article").first).to_be_visible()
        page.locator("#query").press_sequentially(TYPED[view], delay=120)
        expect(page.locator("#query")).to_have_value(TYPED[view])
        expect(page.locator(".search")).to_have_attribute("aria-busy", "false")
    expect(page.locator(complete).first).to_be_visible()
    expect(page.locator(".status")).to_contain_text("ready")
    page.evaluate("document.fonts.ready")
    return page


def main(url: str, folder: Path) -> None:
    """Take the pictures into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {PICTURE: "page"}
    if folder.name != "docs":
        names |= {(view, window): f"{view}-{window}" for view in VIEWS for window in WINDOWS}
    with sync_playwright() as playwright:
        args = ["--no-sandbox", "--enable-unsafe-swiftshader"]  # WebGL without a graphics card
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=args)
        for (view, window), name in names.items():
            page = open_view(browser, url, view, window)
            page.screenshot(path=folder / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), Path(sys.argv[2]))
