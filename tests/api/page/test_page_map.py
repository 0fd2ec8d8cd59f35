"""The map of the page, in a real Chromium with WebGL, with a real worker."""

import base64
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from browser import (
    HOSTILE,
    OpenPage,
    faults_in_both_colours,
    has_run_a_script,
    serious_faults,
    shot,
    wait_until_drawn,
)

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
expect = sync_api.expect

pytest_plugins = ["browser_fixtures"]

pytestmark = pytest.mark.wide

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


def test_somebody_colours_and_finds(open_page: OpenPage, page_url: str) -> None:
    page = open_map(open_page, page_url)
    expect(page.locator("h1")).to_have_text("65 documents")
    expect(page.get_by_label("Colour by")).not_to_have_value("")
    shot(page, "map-first")
    assert has_points(page)
    page.get_by_label("Colour by").select_option("topic")
    expect(page.locator(".legend li")).to_have_count(9)
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

    page.locator(".map-list").get_by_role("link", name="More like this").first.click()
    expect(page.locator(".search .hit")).not_to_have_count(0)
    page.go_back()
    expect(page.get_by_label("Find on the map")).to_have_value("storm europe")


def tip_of_a_point(page: "Page") -> "Locator":
    """Enlarge the map around the best hit of a query, point at it, and return the tip."""
    page.get_by_label("Find on the map").fill("storm europe")
    expect(page.locator(".map-list article")).to_have_count(20)
    for _ in range(14):
        page.get_by_role("application", name="Map of the documents").press("+")
    page.locator(".map-list article").first.hover()  # a place that is out of sight comes into the middle
    page.locator("shoal-map").hover()
    return page.locator(".tip")


def test_the_document_under_the_pointer_is_told(open_page: OpenPage, page_url: str) -> None:
    page = open_map(open_page, page_url, "#map?field=topic")
    expect(tip_of_a_point(page)).to_contain_text("topic")
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
    for name in ("Enlarge", "Make smaller", "Show all"):
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name=name)).to_be_focused()
    page.locator(".map-list article").first.focus()
    shot(page, "map-keyboard")


def test_a_value_of_the_legend_stands_out(open_page: OpenPage, page_url: str) -> None:
    page = open_map(open_page, page_url, "#map?field=topic")
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
      const { documentTip } = await import("/page/parts/map_hits.js");
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
    page.goto(f"{page_url}#map?index={HOSTILE}&field={HOSTILE}&query={HOSTILE}")
    expect(page.locator(".notice")).to_contain_text("index")
    assert not has_run_a_script(page)


def test_without_webgl_the_hits_are_listed(open_page: OpenPage, page_url: str) -> None:
    page = open_page(page_url)
    page.add_init_script("HTMLCanvasElement.prototype.getContext = () => null")
    page.goto(f"{page_url}?#map?query=storm")
    expect(page.get_by_text("This browser does not draw maps")).to_be_visible()
    expect(page.locator(".map-list article")).to_have_count(20)
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
        tip_of_a_point(page)
    expect(tip_of_a_point(page)).not_to_be_empty()


def test_another_document_in_place_of_one_brings_the_points_of_the_new_map(open_page: OpenPage, page_url: str) -> None:
    page = open_map(open_page, page_url)
    tip = tip_of_a_point(page)
    expect(tip).to_have_attribute("data-shown", "")
    page.get_by_label("Colour by").select_option("year")
    expect(page.locator(".legend .ends")).to_be_visible()
    expect(tip).to_have_attribute("data-shown", "")  # as it is the same map with other colours

    def replace_the_last(route: "Route") -> None:
        answer = route.fetch().json()
        rows = np.frombuffer(base64.b64decode(answer["rows"]["data"]), "<u4").copy()
        rows[-1] += 1
        answer["rows"]["data"] = base64.b64encode(rows.tobytes()).decode()
        route.fulfill(json=answer)

    page.route("**/v1/map?*", replace_the_last)
    page.get_by_label("Colour by").select_option("topic")
    expect(page.locator(".legend li")).to_have_count(9)
    expect(tip).not_to_have_attribute("data-shown", "")


def test_a_query_that_fails_can_be_asked_again(open_page: OpenPage, page_url: str) -> None:
    page = open_map(open_page, page_url)
    page.route("**/search", lambda route: route.abort())
    page.get_by_label("Find on the map").fill("rain market")
    expect(page.locator(".notice")).to_contain_text("The API does not answer")
    expect(page.locator(".map-list article")).to_have_count(0)
    page.unroute("**/search")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".map-list article")).to_have_count(20)


def test_a_value_of_most_points_is_grey_and_a_sample_says_so(open_page: OpenPage, page_url: str) -> None:
    page = open_page("about:blank")

    def mostly_one_value(route: "Route") -> None:
        answer = route.fetch().json()
        answer["field"]["values"][0]["count"] = 600
        route.fulfill(json=answer)

    def of_more(route: "Route") -> None:
        answer = route.fetch().json()
        answer["indexes"]["default"]["count"] = 30_000
        route.fulfill(json=answer)

    page.route("**/v1/map?*", mostly_one_value)
    page.route("**/info", of_more)
    page.goto(f"{page_url}#map?field=topic")
    expect(page.locator("h1")).to_have_text("A sample of 65 of 30,000 documents")
    colours = page.locator(".legend i").evaluate_all("items => items.map((item) => item.style.background)")
    assert colours[:2] == ["var(--map-most)", "var(--map-1)"]


@pytest.mark.parametrize(("num_topics", "chosen", "rows"), [(5, "topic", 5), (9, "topic", 9), (40, "", 0)])
def test_at_first_colours_are_of_a_field_whose_values_they_tell_apart(
    open_page: OpenPage,
    serve_documents: Callable[[list[dict[str, Any]]], str],
    num_topics: int,
    chosen: str,
    rows: int,
) -> None:
    documents: list[dict[str, Any]] = [
        {"id": str(n), "text": f"storm {n}", "kind": "news", "link": f"to {n}", "topic": f"topic {n % num_topics}"}
        for n in range(40)
    ]
    documents[0]["note"], documents[1]["note"] = "a", "b"
    page = open_map(open_page, serve_documents(documents))
    expect(page.get_by_label("Colour by")).to_have_value(chosen)
    expect(page.locator(".legend li")).to_have_count(rows)
    page.get_by_label("Colour by").select_option("kind")
    expect(page.locator(".legend li")).to_have_count(1)


def test_back_leads_to_the_query_before(open_page: OpenPage, page_url: str) -> None:
    page = open_map(open_page, page_url, "#map?query=storm")
    expect(page.locator(".map-list article")).to_have_count(20)
    page.get_by_label("Colour by").select_option("")
    expect(page.locator(".legend")).to_have_count(0)
    page.go_back()
    expect(page.get_by_label("Colour by")).not_to_have_value("")
    expect(page.locator(".legend")).to_be_visible()


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
    expect(page.get_by_text("scroll to enlarge")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert faults_in_both_colours(page, "map-phone") == []
