"""Long jobs on the page's Pool, in a real Chromium: their progress while a real runner does them, and their names."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_stub import MakeApp, StubWorker
from browser import HOSTILE, OpenPage, has_run_a_script, serious_faults, shot
from conftest import wait_until
from http_servers import Listen
from long_job_callers import Rq
from process import Process

from shoal.long_jobs.long_jobs import LongJobs
from shoal.long_jobs.serializer import MsgpackSerializer
from shoal.settings import Settings
from shoal_api.context import Context

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
expect = sync_api.expect

pytest_plugins = ["browser_fixtures", "long_job_fixtures"]
pytestmark = [pytest.mark.wide, pytest.mark.usefixtures("rq")]

#: Rows of a file that no runner embeds before a test looks at it.
NUM_ROWS = 50_000


@pytest.fixture
def pool_url(listen: Listen, make_app: MakeApp) -> str:
    """Return the URL of the Pool view of an application."""
    app = make_app()
    Context.of(app).pool.every_s = 0.1
    return f"{listen(app)}/#pool"


@pytest.fixture
def jobs(settings: Settings) -> Iterator[LongJobs]:
    """Return the long jobs of the test's pool."""
    with LongJobs(settings) as jobs:
        yield jobs


def test_a_job_shows_how_far_it_is(
    open_page: OpenPage, pool_url: str, jobs: LongJobs, settings: Settings, stub: StubWorker, tmp_path: Path
) -> None:
    names = {"redis_url": settings.redis_url, "key_prefix": settings.key_prefix, "pool": settings.pool}
    (tmp_path / "news.csv").write_text("text\n" + "".join(f"storm {n}\n" for n in range(NUM_ROWS)))
    job_id = jobs.submit("embed_file", {"source": str(tmp_path / "news.csv"), "out": str(tmp_path / "vectors")})
    page = open_page(pool_url)
    row = page.get_by_role("region", name="Long jobs").locator("tbody tr")
    expect(row).to_contain_text("no runner is alive: start one with")
    with Process(tmp_path / "log", "jobs", roots=tmp_path, home=tmp_path / "home", **names) as runner:
        wait_until(lambda: jobs.status(job_id).progress.rows > 0)
        stub.pause()
        expect(row.locator(".state")).to_have_text("running")
        expect(row).to_contain_text(re.compile(r"[1-9][\d,]* rows"))
        assert 0 < float(row.locator("progress").get_attribute("value") or 0) < 1
        shot(page, "pool-running")
        assert serious_faults(page) == []
        stub.resume()
        expect(row.locator(".state")).to_have_text("done")
        expect(row).to_contain_text("100 %")
        assert runner.terminate() == 0, runner.output


def test_a_script_in_the_name_of_a_file_or_of_a_step_is_a_text(
    open_page: OpenPage, pool_url: str, make_app: MakeApp, rq: Rq
) -> None:
    name = HOSTILE.replace("/", "").replace("</", "<")
    uploaded = make_app().test_client().post("/v1/bulk", query_string={"name": f"{name}.csv"}, data=b"text\nstorm\n")
    assert uploaded.status_code == 202, uploaded.get_data(as_text=True)
    meta = {
        "progress": {"step": HOSTILE, "rows": 7, "fraction": 0.5, "first_bad": [HOSTILE]},
        "error": {"code": "internal", "message": HOSTILE},
    }
    rq.set(uploaded.get_json()["id"], meta=MsgpackSerializer.dumps(meta))
    page = open_page(pool_url)
    row = page.get_by_role("region", name="Long jobs").locator("tbody tr")
    expect(row).to_contain_text(HOSTILE)
    expect(row.locator(".failure")).to_have_attribute("title", HOSTILE)
    assert not has_run_a_script(page)
