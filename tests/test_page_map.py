"""The map of the page, in a real Chromium with WebGL, with a real worker."""

import base64
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from browser import (
    HOSTILE,
    OpenPage,
    faults_in_both_colours,
    has_run_a_script,
    hold_first,
    serious_faults,
    shot,
    wait_until_drawn,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
expect = sync_api.expect

pytest_plugins = ["browser_fixtures"]

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def open_map(open_page: OpenPage, url: str, hash_: str = "#map", **options: Any) -> "Page":
    """Open the map, and wait until it is drawn."""
    page = open_page(f"{url}{hash_}", **options)
    expect(page.locator(".map")).to_have_attribute("aria-busy", "false")
    return page


def has_points(page: "Page") -> bool:
    """Return True if the map looks otherwise without the canvas of its points."""
    plane, points = page.locator(".plane"), page.locator("shoal-map .points")
    wait_until_drawn(page)
    before = plane.screenshot()
    points.evaluate("canvas => { canvas.hidden = true; }")
    without = plane.screenshot()
    points.evaluate("canvas => { canvas.hidden = false; }")
    return before != without


def centre(page: "Page") -> tuple[float, float]:
    """Return the middle of the canvas on the screen."""
    box = page.locator("shoal-map").bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_somebody_colours_finds_and_chooses(open_page: OpenPage, page_url: str) -> None:
    page = open_map(open_page, page_url, permissions=["clipboard-read", "clipboard-write"])
    expect(page.locator("#map-summary")).to_contain_text("65 documents.")
    shot(page, "map-first")
    assert has_points(page)
    page.get_by_label("Colour by").select_option("topic")
    expect(page.locator(".legend li")).to_have_count(9)
    shot(page, "map-coloured")
    page.locator(".legend").get_by_role("button", name="storm").click()
    expect(page.locator(".legend [aria-pressed=true]")).to_have_count(1)
    page.get_by_label("Colour by").select_option("year")
    expect(page.locator(".legend .ends")).to_have_text(re.compile(r"2001\s+2062"))

    page.get_by_label("Find on the map").fill("storm europe")
    expect(page.locator(".map-list article")).to_have_count(20)
    assert "query=storm+europe" in page.url
    assert "field=year" in page.url
    page.locator(".map-list article").first.hover()
    shot(page, "map-found")
    assert serious_faults(page) == []

    x, y = centre(page)
    page.keyboard.down("Shift")
    page.mouse.move(x - 300, y - 200)
    page.mouse.down()
    for right, down in ((300, -200), (300, 200), (-300, 200), (-300, -190)):
        page.mouse.move(x + right, y + down, steps=3)
    shot(page, "map-lasso")
    page.mouse.up()
    page.keyboard.up("Shift")
    chosen = page.locator(".map-list").first
    expect(chosen.locator("h2")).to_have_text(re.compile(r"\d+ chosen"))
    expect(chosen.locator("article").first).to_be_visible()
    shot(page, "map-chosen")
    page.get_by_role("button", name="Copy ids").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()").split("\n")
    assert len(copied) == chosen.locator("article").count()
    page.get_by_role("button", name="Choose none").click()
    chosen.get_by_role("link", name="More like this").first.click()
    expect(page.locator(".search .hit")).not_to_have_count(0)
    page.go_back()
    expect(page.get_by_label("Find on the map")).to_have_value("storm europe")


def test_the_document_under_the_pointer_is_told(open_page: OpenPage, page_url: str) -> None:
    page = open_map(open_page, page_url, "#map?field=topic")
    page.get_by_role("button", name="List the documents in sight").click()
    expect(page.locator(".map-list article")).to_have_count(65)  # so all are known
    box, tip = page.locator("shoal-map").bounding_box(), page.locator(".tip[data-shown]")
    assert box
    for place in range(0, int(box["height"] * box["width"]), 12):
        page.mouse.move(box["x"] + place % box["width"], box["y"] + 12 * (place // box["width"]))
        if tip.count():
            break
    expect(tip).to_contain_text("topic")
    shot(page, "map-tip")


def test_it_works_by_keyboard_alone(open_page: OpenPage, page_url: str) -> None:
    page = open_map(open_page, page_url)
    page.get_by_label("Find on the map").focus()
    page.keyboard.type("rain market")
    expect(page.locator(".map-list article")).to_have_count(20)
    canvas = page.get_by_role("application", name="Map of the documents")
    canvas.focus()
    for key in ("+", "+", "ArrowLeft", "ArrowUp", "-"):
        page.keyboard.press(key)
    wait_until_drawn(page)
    before = canvas.screenshot()
    page.keyboard.press("0")
    wait_until_drawn(page)
    assert canvas.screenshot() != before
    for name in ("Enlarge", "Make smaller", "Show all", "Choose with a lasso"):
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name=name)).to_be_focused()
    page.locator(".map-list article").first.focus()
    listing = page.get_by_role("button", name="List the documents in sight")
    listing.press("Enter")
    expect(page.get_by_text("65 chosen")).to_be_visible()
    expect(page.locator(".map-list").first.locator("article")).to_have_count(65)
    expect(listing).to_be_focused()


def test_a_value_of_the_legend_stands_out_among_what_is_chosen(open_page: OpenPage, page_url: str) -> None:
    page = open_map(open_page, page_url, "#map?field=topic")
    page.get_by_role("button", name="List the documents in sight").click()
    expect(page.locator(".map-list article")).to_have_count(65)
    value, points = page.locator(".legend").get_by_role("button", name="storm"), page.locator("shoal-map")
    value.hover()
    before = points.screenshot()
    value.click()
    expect(value).to_have_attribute("aria-pressed", "true")
    wait_until_drawn(page)
    assert points.screenshot() != before


@pytest.mark.parametrize(
    ("value", "words"), [(["a", "b"], "tags a, b"), ([], ""), (None, ""), (False, "tags false"), (0, "tags 0")]
)
def test_the_tip_has_the_values_of_a_field(open_page: OpenPage, page_url: str, value: Any, words: str) -> None:
    page = open_page(page_url)
    tip = """async (tags) => {
      const { documentTip } = await import("/page/parts/map_lists.js");
      const { render } = await import("/page/vendor/lit-html.js");
      const tip = document.createElement("div");
      render(documentTip({ text: "storm", tags }, { name: "tags" }), tip);
      return tip.querySelector(".value")?.textContent ?? "";
    }"""
    assert page.evaluate(tip, value) == words


def test_a_field_of_an_old_address_can_be_left(open_page: OpenPage, page_url: str) -> None:
    page = open_map(open_page, page_url, "#map?field=colour")
    expect(page.locator(".notice")).to_contain_text("colour")
    expect(page.get_by_label("Colour by")).to_have_value("colour")
    page.get_by_label("Colour by").select_option("")
    expect(page.locator("shoal-map")).to_be_visible()


def test_a_script_in_a_document_a_value_or_an_id_is_a_text(open_page: OpenPage, page_url: str) -> None:
    page = open_map(open_page, page_url, "#map?query=hostile&field=topic")
    expect(page.locator(".map-list article", has_text="onerror").first).to_be_visible()
    page.get_by_role("button", name="List the documents in sight").click()
    expect(page.locator(".map-list").first.locator("article", has_text=HOSTILE).first).to_be_visible()
    page.goto(f"{page_url}#map?index={HOSTILE}&field={HOSTILE}&query={HOSTILE}")
    expect(page.locator(".notice")).to_contain_text("index")
    assert not has_run_a_script(page)


def test_without_webgl_the_documents_are_listed(open_page: OpenPage, page_url: str) -> None:
    page = open_page(page_url)
    page.add_init_script("HTMLCanvasElement.prototype.getContext = () => null")
    page.goto(f"{page_url}?#map?query=storm")
    expect(page.get_by_text("This browser does not draw maps")).to_be_visible()
    expect(page.locator(".map-list").first.locator("article")).to_have_count(65)
    expect(page.locator(".map-list .numbered article")).to_have_count(20)
    assert serious_faults(page) == []


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [(409, "index_mismatch", "has no map yet"), (503, "not_ready", "not ready"), (401, "unauthorized", "needs a key")],
)
def test_what_is_missing_is_said(open_page: OpenPage, page_url: str, status: int, code: str, told: str) -> None:
    page = open_page(page_url)

    def refuse(route: "Route") -> None:
        route.fulfill(status=status, json={"error": {"code": code, "message": "a reason"}})

    page.route("**/v1/map?*", refuse)
    page.goto(f"{page_url}#map")
    expect(page.locator(".notice")).to_contain_text(told)
    expect(page.locator("shoal-map")).to_have_count(0)
    assert serious_faults(page) == []


def test_rows_of_a_version_that_is_served_no_more_bring_the_new_map(open_page: OpenPage, page_url: str) -> None:
    page = open_map(open_page, page_url)
    refused: list[Route] = []

    def refuse_once(route: "Route") -> None:
        if refused:
            route.continue_()
        else:
            refused.append(route)
            route.fulfill(status=422, json={"error": {"code": "invalid_request", "message": "ask for the map again"}})

    page.route("**/v1/map/documents", refuse_once)
    with page.expect_response("**/v1/map?*"):
        page.get_by_role("button", name="List the documents in sight").click()
    page.get_by_role("button", name="List the documents in sight").click()
    expect(page.locator(".map-list article")).to_have_count(65)


def test_another_document_in_place_of_one_brings_the_points_of_the_new_map(open_page: OpenPage, page_url: str) -> None:
    page = open_map(open_page, page_url)
    page.get_by_role("button", name="List the documents in sight").click()
    page.get_by_label("Colour by").select_option("year")
    expect(page.locator(".legend .ends")).to_be_visible()
    expect(page.get_by_text("65 chosen")).to_be_visible()  # as it is the same map with other colours

    def replace_the_last(route: "Route") -> None:
        answer = route.fetch().json()
        rows = np.frombuffer(base64.b64decode(answer["rows"]["data"]), "<u4").copy()
        rows[-1] += 1
        answer["rows"]["data"] = base64.b64encode(rows.tobytes()).decode()
        route.fulfill(json=answer)

    page.route("**/v1/map?*", replace_the_last)
    page.get_by_label("Colour by").select_option("topic")
    expect(page.locator(".legend li")).to_have_count(9)
    expect(page.get_by_text("65 chosen")).to_have_count(0)


def test_a_query_takes_nothing_from_the_list_of_what_is_chosen(open_page: OpenPage, page_url: str) -> None:
    page = open_map(open_page, page_url)
    held = hold_first(page, "**/v1/map/documents")
    page.get_by_role("button", name="List the documents in sight").click()
    while not held:
        page.wait_for_timeout(10)
    page.get_by_label("Find on the map").fill("storm europe")
    expect(page.locator(".map-list .numbered article")).to_have_count(20)
    expect(page.locator(".map-list").first.locator("article")).to_have_count(65)
    page.route("**/search", lambda route: route.abort())
    page.get_by_label("Find on the map").fill("rain market")
    expect(page.locator(".notice")).to_contain_text("The API does not answer")
    expect(page.locator(".map-list .numbered article")).to_have_count(0)
    page.unroute("**/search")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".map-list .numbered article")).to_have_count(20)


def test_colours_of_values_stay_apart_when_hits_are_marked(open_page: OpenPage, page_url: str) -> None:
    page = open_map(open_page, page_url, "#map?field=topic")
    page.locator("shoal-map .over").evaluate("canvas => { canvas.style.opacity = 0; }")
    before = points_of(page)
    page.get_by_label("Find on the map").fill("storm europe")
    expect(page.locator(".map-list article")).to_have_count(20)
    assert points_of(page) == before
    page.get_by_label("Colour by").select_option("")
    expect(page.locator(".legend")).to_have_count(0)
    found = points_of(page)
    page.get_by_label("Find on the map").fill("")
    expect(page.locator(".map-list article")).to_have_count(0)
    assert points_of(page) != found  # which are faint behind the hits


def points_of(page: "Page") -> bytes:
    """Return a picture of the points as they are drawn by now."""
    page.locator("h1").hover()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    wait_until_drawn(page)
    return page.locator("shoal-map").screenshot()


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ({"low": 0, "middle": 3, "high": 900}, ["0", "3", "900"]),
        ({"low": 0, "high": 900}, ["0", "900"]),
        ({"low": -5, "middle": 0, "high": 7}, ["-5", "0", "7"]),
    ],
)
def test_the_legend_says_whether_colours_go_by_rank(
    open_page: OpenPage, page_url: str, ends: dict[str, int], words: list[str]
) -> None:
    page = open_page(page_url)
    legend = """async (ends) => {
      const { legendInWords, mapLegend } = await import("/page/parts/map_legend.js");
      const { render } = await import("/page/vendor/lit-html.js");
      const legend = document.createElement("div");
      const field = { name: "price", num_without: 0, ...ends };
      render(mapLegend(field, null, null), legend);
      const shown = [...legend.querySelectorAll(".ends span")].map((end) => end.textContent);
      return [shown, legend.textContent, legendInWords(field)];
    }"""
    shown, text, spoken = page.evaluate(legend, ends)
    assert shown == words
    assert ("By rank" in text, "by rank" in spoken) == (len(words) == 3, len(words) == 3)


def test_on_a_phone(open_page: OpenPage, page_url: str) -> None:
    page = open_map(open_page, page_url, "#map?query=storm&field=topic", color_scheme="light", **PHONE)
    expect(page.locator(".map-list article")).to_have_count(20)
    expect(page.get_by_text("tap a point to read it")).to_be_visible()
    expect(page.get_by_text("Shift and drag")).to_be_hidden()
    page.get_by_role("button", name="Choose with a lasso").tap()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert faults_in_both_colours(page, "map-phone") == []
