"""The frame of the page: the states of the service, the key, prefixes of proxies."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from api_stub import MakeApp
from browser import OpenPage, enter_key, look_again, serious_faults, wait_until_drawn
from conftest import RedisServer
from http_servers import Listen

from shoal_workers.index.index import Index
from shoal_workers.loop.worker import Worker

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
expect = sync_api.expect

pytest_plugins = ["browser_fixtures"]

pytestmark = pytest.mark.wide


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


def test_a_view_is_loaded_when_it_is_opened(open_page: OpenPage, page_url: str) -> None:
    page, asked = open_page("about:blank"), list[str]()
    page.on("request", lambda request: asked.append(request.url.removeprefix(page_url)))
    page.goto(page_url)
    expect(page.get_by_text("Shoal is a service that")).to_be_visible()
    expect(page.get_by_text("shoal index build news.csv")).to_be_visible()
    assert not [name for name in asked if re.search(r"(compare|pool|chart)\.js", name)]
    page.route("**/views/compare.js", lambda route: route.abort())
    page.get_by_role("link", name="Compare").click()
    expect(page.locator(".notice")).to_contain_text("A part of this page could not be loaded")
    page.unroute("**/views/compare.js")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("heading", name="What the model makes of your texts")).to_be_visible()
    assert page.url.endswith("#compare")
