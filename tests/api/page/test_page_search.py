"""The page's frame, Search and Compare, in a real Chromium, with a real worker."""

import contextlib
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from api_stub import MakeApp
from browser import (
    HOSTILE,
    HOSTILE_FIELD,
    PHONE,
    OpenPage,
    enter_key,
    faults_in_both_colours,
    has_run_a_script,
    hold_first,
    look_again,
    serious_faults,
    shot,
    wait_for_held,
    wait_until_drawn,
)
from conftest import RedisServer
from http_servers import Listen
from test_learned_words import sparse_encoder, words_alone, words_encoder  # noqa: F401 (fixtures)

from shoal_workers.index.index import Index
from shoal_workers.loop.worker import Worker

if TYPE_CHECKING:
    from playwright.sync_api import Page

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
expect = sync_api.expect

pytest_plugins = ["browser_fixtures"]

pytestmark = pytest.mark.wide


def hits(page: "Page") -> list[str]:
    """Return the texts of the shown hits."""
    return page.locator(".hit .text").all_inner_texts()


def search(page: "Page", words: str) -> None:
    """Type the words, and wait for the answer to the last letter."""
    expect(page.locator("#query")).to_be_focused()
    page.keyboard.type(words)
    expect(page).to_have_url(re.compile(re.escape(urlencode({"query": words}))))
    wait_until_drawn(page)  # the page then shows whether it is busy
    expect(page.locator(".search")).to_have_attribute("aria-busy", "false")


def test_a_user_types_filters_and_copies(open_page: OpenPage, page_url: str) -> None:
    page = open_page(page_url, permissions=["clipboard-read", "clipboard-write"])
    expect(page.get_by_text("65 documents by meaning")).to_be_visible()
    shot(page, "search-first")
    search(page, "storm europe")
    expect(page.locator(".hit")).to_have_count(20)
    assert hits(page)[0].split() == ["storm", "europe"]
    expect(page.locator(".hit mark").first).to_have_text("storm")
    expect(page.locator(".timing")).to_contain_text("encode")
    assert "query=storm+europe" in page.url
    expect(page.locator(".code button", has_text="openai")).to_have_count(0)
    shot(page, "search")

    page.get_by_role("button", name="More hits").scroll_into_view_if_needed()
    expect(page.locator(".hit")).to_have_count(40)

    page.locator(".facet").get_by_text("rain", exact=True).click()
    expect(page.get_by_text("The best 8 of 8")).to_be_visible()
    page.get_by_text("As code").click()
    assert all(text.startswith("rain") for text in hits(page))
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    body = json.loads(copied.partition("-d '")[2].rstrip("'"))
    assert body == {"queries": "storm europe", "k": 20, "mode": "hybrid", "filter": {"topic": {"in": ["rain"]}}}

    page.get_by_role("button", name="Words", exact=True).click()
    expect(page.get_by_text("with a word of the query")).to_be_visible()
    assert serious_faults(page) == []
    page.reload()
    expect(page.get_by_text("with a word of the query")).to_be_visible()


def test_a_field_filters_where_it_can_and_a_filter_can_be_taken_away(open_page: OpenPage, page_url: str) -> None:
    page = open_page(f"{page_url}#search?query=hostile&mode=lexical")
    expect(page.locator(".hit button.chip", has_text="link")).to_be_visible()
    expect(page.locator(".hit .chip", has_text="note short")).to_be_visible()
    expect(page.locator(".hit button.chip", has_text="note")).to_have_count(0)
    page.goto(f'{page_url}#search?query=storm&mode=lexical&filter={{"year":{{"in":[1]}},"nothing":{{"in":["x"]}}}}')
    expect(page.locator(".notice")).to_contain_text("nothing")
    page.get_by_role("button", name="nothing x").click()
    expect(page.get_by_text("Nothing is found")).to_be_visible()
    page.get_by_role("button", name="year 1").click()
    expect(page.locator(".hit")).not_to_have_count(0)
    expect(page.get_by_role("group", name="Filters in force")).to_have_count(0)


def test_it_works_by_keyboard_alone_and_copies_by_plain_http(open_page: OpenPage, page_url: str) -> None:
    page = open_page(page_url)
    expect(page.locator("#query")).to_be_focused()
    search(page, "market falls")
    page.keyboard.press("ArrowDown")
    first = page.locator(".hit").first
    expect(first).to_be_focused()
    page.keyboard.press("Enter")
    expect(first.locator(".details")).to_contain_text("cosine")
    page.keyboard.press("m")
    expect(page.get_by_role("button", name="Stop looking for documents like")).to_be_visible()
    expect(page.get_by_text("of 64 by their likeness")).to_be_visible()
    expect(page.locator("#query")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(".hit")).to_have_count(0)
    page.keyboard.press("Tab")
    page.keyboard.press("/")
    expect(page.locator("#query")).to_be_focused()
    page = open_page("about:blank", permissions=["clipboard-read"])
    page.add_init_script("window.board = navigator.clipboard; delete Navigator.prototype.clipboard")
    page.goto(f"{page_url}#search?query=storm")
    page.get_by_text("As code").click()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_focused()
    assert page.evaluate("board.readText()").startswith("curl ")


def test_a_script_in_a_document_or_a_query_is_a_text(open_page: OpenPage, page_url: str) -> None:
    page = open_page(f"{page_url}#search?query=hostile&mode=lexical")
    expect(page.locator(".hit .text")).to_have_text(f"{HOSTILE} hostile storm")
    page.get_by_role("button", name="Details").click()
    for text in (HOSTILE, HOSTILE_FIELD, "javascript:alert(1)"):
        expect(page.locator(".details")).to_contain_text(text)
    expect(page.get_by_label("Group by")).to_contain_text(HOSTILE_FIELD)
    assert page.locator(".details a").count() == 0
    page.locator(".hit button.chip", has_text=f"{HOSTILE_FIELD} odd").click()
    expect(page.get_by_role("group", name="Filters in force")).to_contain_text(HOSTILE_FIELD)
    expect(page.locator(".hit .text")).to_have_text(f"{HOSTILE} hostile storm")
    page.get_by_role("button", name="More like this").click()
    expect(page.locator(".query .chip")).to_contain_text(HOSTILE)
    page.locator("#query").fill(HOSTILE)
    expect(page.locator(".code code")).to_contain_text("onerror")
    expect(page.locator(".hit")).not_to_have_count(0)
    page.goto(f"{page_url}#search?index={HOSTILE}&query=storm")
    expect(page.locator(".notice")).to_contain_text("index")
    assert not has_run_a_script(page)


def test_an_answer_counts_only_for_its_own_query(open_page: OpenPage, page_url: str) -> None:
    page = open_page(page_url)
    held = hold_first(page, "**/search")
    page.locator("#query").fill("rain rain")
    wait_for_held(page, held)
    page.locator("#query").fill("market market")
    expect(page.locator(".hit .text").first).to_have_text("market market")
    with contextlib.suppress(sync_api.Error):  # the page may have given the request up
        held[0].continue_()
    wait_until_drawn(page)
    assert hits(page)[0] == "market market"


def test_an_answer_that_fails_leaves_the_hits_and_is_asked_for_again(open_page: OpenPage, page_url: str) -> None:
    page = open_page(page_url)
    search(page, "storm")
    again = page.get_by_role("button", name="Try again")
    page.route("**/search", lambda route: route.abort())
    page.get_by_role("button", name="More hits").scroll_into_view_if_needed()
    expect(again).to_be_visible()
    expect(page.locator(".hit")).to_have_count(20)
    page.unroute("**/search")
    again.click()
    expect(page.locator(".hit")).to_have_count(40)
    assert len(set(hits(page))) == 40
    for answer, told in (
        ({"status": 502, "body": "<h1>Bad gateway</h1>"}, "The answer has the status 502"),
        ({"status": 200, "body": "<h1>Log in to this network</h1>"}, "The answer broke off"),
        ({"status": 200, "body": ""}, "The answer broke off"),
    ):
        page.route("**/search", lambda route: route.fulfill(**answer))  # noqa: B023 - it is called here
        page.locator("#query").press("Enter")
        expect(page.locator(".notice")).to_contain_text(told)
        expect(page.locator(".notice h2")).to_have_text("Not reachable")
        page.unroute("**/search")
    assert serious_faults(page, "search-proxy") == []
    again.click()
    expect(page.locator(".hit")).to_have_count(20)


def test_back_and_forward_lead_through_earlier_queries(open_page: OpenPage, page_url: str) -> None:
    page = open_page(page_url)
    search(page, "storm")
    storm, filters = hits(page), page.get_by_role("group", name="Filters in force")
    page.get_by_role("button", name="More like this").nth(5).click()
    expect(page.get_by_text("by their likeness")).to_be_visible()
    assert page.evaluate("scrollY") == 0
    page.locator(".hit button.chip", has_text="topic").first.click()
    expect(filters).to_be_visible()
    page.get_by_role("link", name="Compare").click()
    expect(page.locator(".matrix")).to_be_visible()
    page.go_back()
    expect(filters).to_be_visible()
    page.go_back()
    expect(filters).to_have_count(0)
    page.go_back()
    expect(page.locator("#query")).to_have_value("storm")
    expect(page.locator(".hit .text")).to_have_text(storm)
    page.go_forward()
    expect(page.get_by_text("by their likeness")).to_be_visible()
    page.go_back()
    page.go_back()
    expect(page.locator(".hit")).to_have_count(0)
    expect(page.locator("#query")).to_have_value("")


@pytest.mark.usefixtures("words_encoder", "words_alone")
def test_an_index_offers_only_what_it_can_do(
    open_page: OpenPage,
    listen: Listen,
    make_app: MakeApp,
    serve_worker: Callable[..., Worker],
    request: pytest.FixtureRequest,
) -> None:
    serve_worker(request.getfixturevalue("words_encoder"), default=request.getfixturevalue("words_alone"))
    page = open_page(f"{listen(make_app())}/")
    expect(page.get_by_text("7 documents by words")).to_be_visible()
    search(page, "storm europe")
    expect(page.locator(".hit")).not_to_have_count(0)
    for name in ("Meaning", "More like this", "Diversity", "more like one"):
        expect(page.get_by_text(name)).to_have_count(0)
    expect(page.locator(".code code")).to_contain_text('"mode":"lexical"')
    assert serious_faults(page, "words-alone") == []

    plain = """async (ask) => {
      const asking = await import("/page/parts/ask.js");
      const can = asking.abilitiesOf({engine: "postgresql", dimension: 8}, true);
      return asking.wholeBodyOf(asking.fitted({...asking.NOTHING, ...ask}, can), "news", can, ["topic"]);
    }"""
    asked = {"query": "storm", "mode": "lexical", "diversity": 0.5, "group": "topic", "rerank": True}
    assert page.evaluate(plain, asked) == {"queries": "storm", "k": 20, "index": "news", "rerank": {"top_n": 50}}


def test_facets_count_the_best_documents_and_are_ordered_by_count(open_page: OpenPage, serve_many: str) -> None:
    page = open_page(f"{serve_many}#search?query=storm")
    expect(page.get_by_text("The best 20 of 260")).to_be_visible()
    expect(page.get_by_text("Counts of the best 100")).to_be_visible()
    counts = [int(count) for count in page.locator(".facet .count").all_inner_texts()]
    assert counts == sorted(counts, reverse=True)
    assert sum(counts) <= 100
    bars = page.locator(".facet .bar span").evaluate_all(
        "bars => bars.map((bar) => bar.style.getPropertyValue('--share'))"
    )
    assert [float(bar) * 100 for bar in bars] == pytest.approx(counts)
    page.get_by_role("button", name="Words", exact=True).click()
    expect(page.get_by_text("with a word of the query")).to_be_visible()
    expect(page.get_by_text("Counts of all")).to_be_visible()


def test_a_whole_hit_is_on_the_first_screen_of_small_windows(open_page: OpenPage, page_url: str) -> None:
    zoomed: dict[str, Any] = {"viewport": {"width": 640, "height": 430}, "device_scale_factor": 2}
    for window in (zoomed, PHONE | {"color_scheme": "light"}):
        page = open_page(page_url, **window)
        expect(page.locator(".search")).to_have_attribute("aria-busy", "false")
        assert window is zoomed or faults_in_both_colours(page, "phone-first") == []
        page.locator("#query").fill("storm")
        expect(page.locator(".hit")).to_have_count(20)
        hit, bar = page.locator(".hit").first.bounding_box(), page.locator("nav").bounding_box()
        actions = page.locator(".hit .actions").first
        expect(actions).to_have_css("opacity", "1")
        place = actions.bounding_box()
        assert hit
        assert bar
        assert place
        assert place["y"] < hit["y"] + hit["height"] <= bar["y"]
    page.get_by_role("button", name="Filters and options").click()
    expect(page.locator(".facet").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert faults_in_both_colours(page, "phone") == []


def test_texts_are_compared_and_a_long_one_shows_where_it_is_cut(open_page: OpenPage, page_url: str) -> None:
    page = open_page(f"{page_url}#compare")
    buttons, texts = page.locator(".matrix td button"), page.get_by_label("Up to 20 texts")
    expect(buttons).to_have_count(36)
    texts.fill("storm europe\nstorm europe\nmarket falls")
    expect(buttons).to_have_count(9)
    expect(page.get_by_role("button", name="texts 1 and 2: 1.000")).to_be_visible()
    expect(page.locator(".pair .stat strong")).to_have_text("1.000")
    page.get_by_role("button", name="texts 1 and 2").click()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("button", name="texts 1 and 3")).to_be_focused()
    expect(page.locator(".pair h2").last).to_contain_text("market falls")
    assert serious_faults(page, "compare") == []
    texts.fill("storm europe climate change rain market falls rises " * 40)
    expect(page.locator(".token[data-cut=true]").first).to_be_visible()
    expect(page.locator(".cut")).to_have_count(1)
    kept = page.locator(".token[data-cut=false]").count()
    assert kept == page.evaluate("fetch('info').then((answer) => answer.json()).then((info) => info.max_tokens)")
    first, held = page.locator(".token[data-special=false]").first, hold_first(page, "**/embed")
    page.get_by_role("button", name="beginning").click()
    expect(page.locator(".compare")).to_have_attribute("aria-busy", "true")
    expect(first).to_have_attribute("data-cut", "false")
    wait_for_held(page, held)
    held[0].continue_()
    expect(first).to_have_attribute("data-cut", "true")
    assert page.locator(".token[data-cut=false]").count() == kept


def test_without_a_worker_or_redis_the_page_says_so(
    open_page: OpenPage, listen: Listen, make_app: MakeApp, own_redis: RedisServer
) -> None:
    page = open_page(f"{listen(make_app(redis_url=own_redis.url))}/")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("No worker is ready")
    expect(page.locator(".status")).to_have_text("no worker")
    assert serious_faults(page, "no-worker") == []
    own_redis.stop()
    look_again(page)
    expect(alert).to_contain_text("Redis does not answer")
    assert serious_faults(page, "no-redis") == []


def test_without_an_index_it_says_how_to_build_one_and_shows_one_that_is_served_later(
    open_page: OpenPage,
    listen: Listen,
    make_app: MakeApp,
    serve_indexes: Callable[..., Worker],
    fields_index: Index,
) -> None:
    serve_indexes()
    page = open_page(f"{listen(make_app())}/")
    expect(page.locator(".status")).to_have_text("1 worker ready")
    notice = page.locator(".notice")
    expect(notice).to_contain_text("No index is served yet")
    expect(notice).to_contain_text("shoal index build news.csv --name news")
    page.locator("#query").fill("storm")
    expect(page.locator(".search")).to_have_attribute("aria-busy", "false")
    expect(notice).to_contain_text("No index is served yet")
    assert serious_faults(page, "no-index") == []
    serve_indexes(default=fields_index)
    look_again(page)
    expect(notice).to_have_count(0)


def test_a_key_is_asked_for_once_and_kept(open_page: OpenPage, keyed: tuple[str, str]) -> None:
    url, key = keyed
    page = open_page(url)
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    assert serious_faults(page, "key") == []
    enter_key(page, "“schlüssel”")  # a header cannot contain this key
    expect(dialog.locator("input:invalid")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0
    dialog.get_by_role("button", name="Not now").click()
    expect(dialog).to_have_count(0)
    with page.expect_response("**/info") as refused:
        look_again(page)
    assert refused.value.status == 401
    wait_until_drawn(page)
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name="Enter a key").click()
    enter_key(page, "wrong")
    expect(dialog.get_by_role("alert")).to_contain_text("key")
    enter_key(page, key)
    expect(page.locator(".status")).to_have_text("1 worker ready")
    page.locator("#query").fill("storm")
    expect(page.locator(".hit")).to_have_count(20)
    assert key not in page.content()
    page.reload()
    expect(page.locator(".hit")).to_have_count(20)


def test_query_and_hits_stay_when_the_service_comes_back(open_page: OpenPage, page_url: str) -> None:
    page = open_page(page_url)
    page.locator("#query").fill("storm")
    page.get_by_role("button", name="More hits").scroll_into_view_if_needed()
    expect(page.locator(".hit")).to_have_count(40)
    page.route("**/*", lambda route: route.abort())
    look_again(page)
    expect(page.get_by_role("alert")).to_contain_text("Not reachable")
    expect(page.locator(".hit")).to_have_count(40)
    expect(page.locator("#query")).to_have_value("storm")
    page.locator("#query").fill("rain rain")
    expect(page.locator(".notice")).to_contain_text("The API does not answer")
    page.unroute("**/*")
    look_again(page)
    expect(page.locator(".hit .text").first).to_have_text("rain rain")
    expect(page.locator("#query")).to_have_value("rain rain")
    assert "query=rain+rain" in page.url


def test_the_page_works_below_a_prefix(
    open_page: OpenPage, listen: Listen, make_app: MakeApp, page_worker: Worker
) -> None:
    app: Any = make_app()
    serve = app.wsgi_app

    def below_a_prefix(environ: dict[str, Any], start_response: Any) -> Any:
        assert environ["PATH_INFO"].startswith("/ai/shoal/"), environ["PATH_INFO"]
        environ["PATH_INFO"] = environ["PATH_INFO"].removeprefix("/ai/shoal")
        return serve(environ, start_response)

    app.wsgi_app = below_a_prefix
    url = listen(app)
    page = open_page(f"{url}/ai/shoal/#search?query=storm")
    expect(page.locator(".hit")).to_have_count(20)
    expect(page.locator(".code code")).to_contain_text(f"{url}/ai/shoal/search")
    page.goto(f"{url}/ai/shoal/docs/swagger")
    page.locator("#operations-service-health .opblock-summary").first.click()
    for name in ("Try it out", "Execute"):
        page.get_by_role("button", name=name).click()
    expect(page.locator(".live-responses-table")).to_contain_text('"status": "ok"')


def test_a_view_that_cannot_be_loaded_is_loaded_again(open_page: OpenPage, page_url: str) -> None:
    page = open_page(page_url)
    page.route("**/views/compare.js", lambda route: route.abort())
    page.get_by_role("link", name="Compare").click()
    expect(page.locator(".notice")).to_contain_text("A part of this page could not be loaded")
    page.unroute("**/views/compare.js")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("heading", name="Your texts as the model sees them")).to_be_visible()
    assert page.url.endswith("#compare")
