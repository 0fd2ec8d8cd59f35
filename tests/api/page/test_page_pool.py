"""The page's Pool, in a real Chromium, with a real worker: it is live, and an operator can use it."""

import re

import pytest
from api_stub import MakeApp
from blocking import Pool
from browser import (
    HOSTILE,
    PHONE,
    OpenPage,
    faults_in_both_colours,
    has_run_a_script,
    serious_faults,
    shot,
)
from conftest import RedisServer, wait_until
from http_servers import Listen
from long_job_callers import Rq
from queues import Queue
from test_ready import recent

from shoal.long_jobs.serializer import MsgpackSerializer
from shoal.operations import Embed
from shoal_workers.loop.worker import Worker
from shoal_workers.service.service import about

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
expect = sync_api.expect

pytest_plugins = ["browser_fixtures", "long_job_fixtures"]

pytestmark = pytest.mark.wide


@pytest.fixture
def pool_url(listen: Listen, make_app: MakeApp, page_worker: Worker) -> str:
    """Return the URL of the Pool view of an application with a worker."""
    return f"{listen(make_app())}/#pool"


def announce(worker: Worker, **changes: object) -> None:
    """Write the worker's heartbeat, with the given values changed."""
    pool = Pool(worker.consumer.broker, worker.consumer.keys, alive_s=3_600)
    pool.announce(worker.id, about(worker) | changes)


def test_an_operator_sees_the_work(open_page: OpenPage, pool_url: str, page_worker: Worker, queue: Queue) -> None:
    page = open_page(pool_url)
    expect(page.get_by_role("heading", name="The pool")).to_be_visible()
    expect(page.get_by_text("No job was answered yet.")).to_be_visible()
    workers = page.get_by_role("region", name="Workers")
    expect(workers.get_by_role("row")).to_have_count(2)
    expect(workers).to_contain_text(page_worker.id)
    expect(page.locator(".chart svg")).to_have_count(4)
    queue.put("bulk", [Embed(["storm europe"], id="seen", reply_to="me")], client=HOSTILE)
    row = page.get_by_role("region", name="Recent jobs").first.get_by_role("row").nth(1)
    wait_until(lambda: page_worker.log.recent)
    announce(page_worker)
    expect(row).to_contain_text("embed seen")
    expect(row).to_contain_text(HOSTILE)
    announce(
        page_worker,
        state=HOSTILE,
        model=HOSTILE,
        recent=[recent(HOSTILE, 9.0, op=None, error="expired", status="expired")],
    )
    expect(row).to_contain_text(f"unreadable expired {HOSTILE}")
    expect(workers).to_contain_text(HOSTILE)
    announce(page_worker, state="asleep")
    expect(workers).to_contain_text("asleep")
    expect(page.locator(".numbers [data-bad]")).to_have_count(0)
    page.get_by_text("as a table").first.click()
    expect(page.get_by_role("table", name="Texts a second")).to_contain_text("computed")
    assert not has_run_a_script(page)
    assert serious_faults(page, "pool") == []


def test_it_is_asked_again_when_the_api_or_redis_comes_back(
    open_page: OpenPage, listen: Listen, make_app: MakeApp, own_redis: RedisServer, pool_url: str
) -> None:
    page = open_page(f"{listen(make_app(redis_url=own_redis.url))}/#pool")
    expect(page.get_by_role("alert")).to_contain_text("No worker is ready")
    expect(page.locator(".numbers [data-bad]")).to_have_text("0 worker ready")
    assert serious_faults(page, "pool-no-worker") == []
    own_redis.stop()
    stale = page.locator(".stale")
    expect(stale).to_contain_text(re.compile(r"What follows is from \d\d:\d\d:\d\d. This page keeps trying."))
    shot(page, "pool-no-redis")
    own_redis.start()
    expect(stale).to_have_count(0)
    page = open_page(pool_url)
    expect(page.get_by_role("region", name="Workers")).to_contain_text("ready")
    page.route("**/v1/pool", lambda route: route.abort())
    page.evaluate("location.hash = '#search'")
    page.evaluate("location.hash = '#pool'")
    expect(page.locator(".stale")).to_contain_text("The connection to the API is broken. What follows is from")
    page.unroute("**/v1/pool")
    expect(page.locator(".stale")).to_have_count(0)


def test_it_fits_a_phone_in_the_dark(open_page: OpenPage, pool_url: str, page_worker: Worker, queue: Queue) -> None:
    queue.redis.xadd(queue.keys.dead, {"reason": "why"})
    announce(page_worker, recent=[recent("x" * 24, 9.0, client=HOSTILE * 3)] * 8)
    looks: dict[str, dict[str, object]] = {"pool-phone": PHONE, "pool-wide": {}}
    for name, look in looks.items():
        page = open_page(pool_url, **look)
        expect(page.locator(".scroll tbody tr")).to_have_count(8)
        expect(page.get_by_role("region", name="Dead letters")).to_contain_text("There are 1. shoal dead list shows")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert faults_in_both_colours(page, name) == []


def test_a_chart_draws_the_known_values_with_gaps_between(open_page: OpenPage, page_url: str) -> None:
    draw = """async (given) => {
      const { render } = await import("/page/vendor/lit-html.js");
      const { chart } = await import("/page/parts/chart.js");
      render(chart("Title", (value) => `${value} s`, given.series, given.frame), document.body);
    }"""
    series = [["queue", [1, 2, None, 4, 1]], ["bulk", [0, 0, 0, 0, 0]]]
    page = open_page(page_url)
    page.evaluate(draw, {"series": series, "frame": {"times": [0, 60, 120, 180, 240], "everyS": 15, "keptS": 600}})
    assert page.locator(".chart path").first.get_attribute("d") == "M0 75M100 50M300 0M400 75"
    assert page.locator(".chart path").last.get_attribute("d") == "M0 100M100 100M200 100M300 100M400 100"
    expect(page.locator(".chart li")).to_have_text(["queue 1 s", "bulk 0 s"])
    page.evaluate(draw, {"series": series, "frame": {"times": [0, 60, 120, 180, 240], "everyS": 60, "keptS": 120}})
    assert page.locator(".chart path").first.get_attribute("d") == "M-400 75L-200 50M200 0L400 75"
    page.get_by_text("as a table").click()
    expect(page.get_by_role("row")).to_have_count(6)
    expect(page.get_by_role("row").nth(4)).to_contain_text("2 s")


def test_a_job_shows_its_progress(open_page: OpenPage, listen: Listen, make_app: MakeApp, rq: Rq) -> None:
    app = make_app()
    job_id = app.own.long_jobs.submit("embed_file", {"source": "news.csv", "out": "vectors"})
    page = open_page(f"{listen(app)}/#pool")
    row = page.get_by_role("region", name="Long jobs").locator("tbody tr")
    expect(row).to_contain_text("no runner is alive: start one with")
    progress = {"rows": 1_200, "fraction": 0.25, "step": "embedding", "rows_per_s": 300.0, "eta_s": 12.0}
    rq.set(job_id, status="started", meta=MsgpackSerializer.dumps({"progress": progress}))
    expect(row.locator(".state")).to_have_text("running")
    expect(row).to_contain_text("embedding · 1,200 rows · 300 rows a second · 12 s left")
    assert row.locator("progress").get_attribute("value") == "0.25"
    assert serious_faults(page, "pool-running") == []
    rq.set(job_id, status="finished")
    expect(row.locator(".state")).to_have_text("done")
    expect(row).to_contain_text("100 %")
