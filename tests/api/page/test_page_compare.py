"""The page's Compare, in a real Chromium, with a real worker."""

import pytest
from browser import HOSTILE, OpenPage, has_run_a_script, hold_first, serious_faults, shot

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
expect = sync_api.expect

pytest_plugins = ["browser_fixtures"]

pytestmark = pytest.mark.wide


def test_texts_are_compared(open_page: OpenPage, page_url: str) -> None:
    page = open_page(f"{page_url}#compare")
    expect(page.locator(".matrix td button")).to_have_count(36)
    texts = page.get_by_label("Up to 20 texts")
    texts.fill("storm europe\nstorm europe\nmarket falls")
    expect(page.locator(".matrix td button")).to_have_count(9)
    expect(page.get_by_role("button", name="texts 1 and 2: 1.000")).to_be_visible()
    expect(page.locator(".pair .stat strong")).to_have_text("1.000")
    page.get_by_role("button", name="texts 1 and 2").click()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("button", name="texts 1 and 3")).to_be_focused()
    expect(page.locator(".pair h2").last).to_contain_text("market falls")
    shot(page, "compare")
    assert serious_faults(page) == []


def test_a_long_text_shows_where_it_is_cut(open_page: OpenPage, page_url: str) -> None:
    page = open_page(f"{page_url}#compare")
    page.get_by_label("Up to 20 texts").fill("storm europe climate change rain market falls rises " * 40)
    expect(page.locator(".token[data-cut=true]").first).to_be_visible()
    expect(page.locator(".cut")).to_have_count(1)
    kept = page.locator(".token[data-cut=false]").count()
    assert kept == page.evaluate("fetch('info').then((answer) => answer.json()).then((info) => info.max_tokens)")
    held = hold_first(page, "**/embed")
    page.get_by_role("button", name="beginning").click()
    expect(page.locator(".compare")).to_have_attribute("aria-busy", "true")
    expect(page.locator(".token[data-special=false]").first).to_have_attribute("data-cut", "false")
    while not held:
        page.wait_for_timeout(10)
    held[0].continue_()
    expect(page.locator(".token[data-special=false]").first).to_have_attribute("data-cut", "true")
    assert page.locator(".token[data-cut=false]").count() == kept


def test_of_a_text_that_is_too_long_for_tokens_the_vector_is_shown(open_page: OpenPage, page_url: str) -> None:
    page = open_page(f"{page_url}#compare")
    page.get_by_label("Up to 20 texts").fill(f"{'storm ' * 2_000}\nmarket falls")
    expect(page.locator(".matrix td button")).to_have_count(4)
    long, short = page.locator(".pair article").all()
    expect(long).to_contain_text("its tokens are not shown")
    expect(short.locator(".token")).to_have_count(4)


def test_a_script_in_a_text_is_a_text(open_page: OpenPage, page_url: str) -> None:
    page = open_page(f"{page_url}#compare")
    page.get_by_label("Up to 20 texts").fill(f"{HOSTILE}\n{HOSTILE} storm")
    expect(page.locator(".matrix th .text").first).to_have_text(HOSTILE)
    expect(page.locator(".pair h2").first).to_contain_text(HOSTILE)
    assert not has_run_a_script(page)
