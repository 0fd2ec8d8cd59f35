"""Functions for tests in a browser, and a text that is hostile to the page."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

#: A text that sets a mark in the page if the page runs it.
HOSTILE = "<img src=x onerror='window.ran = 1'><script>window.ran = 1</script>"

#: The name of a field that sets the same mark.
HOSTILE_FIELD = "<img src=x onerror='window.ran = 1'>"

#: The size of a phone's window.
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}

#: Opens the page of a service by the service's URL, and returns the page.
OpenPage = Callable[..., "Page"]


def wait_until_drawn(page: "Page") -> None:
    """Wait until the page has drawn all changes that its scripts have made."""
    page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")


def has_run_a_script(page: "Page") -> bool:
    """Return True if the page has run a text as a script."""
    return bool(page.evaluate("window.ran === 1"))


def hold_first(page: "Page", pattern: str) -> "list[Route]":
    """Hold back the first request to an address, and return a list that gets this request."""
    held: list[Route] = []
    page.route(pattern, lambda route: route.continue_() if held else held.append(route))
    return held


def wait_for_held(page: "Page", held: "list[Route]") -> None:
    """Wait until the page has made the request that is held back; fail the test if it makes none."""
    for _ in range(int(PATIENCE_S / 0.01)):
        if held:
            return
        page.wait_for_timeout(10)
    pytest.fail("the page made no such request")


def enter_key(page: "Page", key: str) -> None:
    """Type a key into the dialog that asks for it."""
    page.get_by_role("dialog").get_by_label("Key").fill(key)
    page.keyboard.press("Enter")


def look_again(page: "Page") -> None:
    """Make the page ask for the state of the service at once."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def serious_faults(page: "Page", name: str = "") -> list[str]:
    """Return the serious and critical faults that axe finds in the page now. With a name, take a screenshot too."""
    if name:
        shot(page, name)
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    transitions = "document.getAnimations().map(one => one instanceof CSSTransition && one.finished)"
    page.evaluate(f"Promise.allSettled({transitions})")  # words have too little contrast while they fade in
    return [
        f"{fault['id']}: {node['html'][:200]} {node['any'][:1]}"
        for fault in axe.Axe().run(page).response["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]


def faults_in_both_colours(page: "Page", name: str) -> list[str]:
    """Return the page's serious faults in light and dark colours, and take screenshots. The page stays dark."""
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # no colours change gradually
        found += serious_faults(page, f"{name}-{scheme}")
    return found


def shot(page: "Page", name: str) -> None:
    """Take a screenshot into the folder that TEST_SCREENSHOTS names, if it is set."""
    if folder := os.environ.get("TEST_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")
