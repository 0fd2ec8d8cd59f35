"""The tests of long jobs that the clients for threads share, on a real Redis, with and without a runner."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_stub import StubWorker
from client_adapters import AnyClient, MakeClient, bulk
from conftest import PATIENCE_S, free_port, wait_until
from process import Process

from shoal import ServerFile
from shoal.contract.keys import Keys
from shoal.errors import Cancelled, InvalidRequest, JobNotEnded, NotReady, Timeout, Unavailable, UnknownJob
from shoal.long_jobs.long_jobs import LongJobs
from shoal.settings import Settings

pytest_plugins = ["any_client_fixtures", "long_job_fixtures"]
pytestmark = [
    pytest.mark.usefixtures("rq"),
    pytest.mark.parametrize("make_client", ["Client", "HttpClient"], indirect=True),
]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients wait as long as the tests for a change of versions, because the machine may be busy."""
    for module in ("redis.client", "http.long_jobs"):
        monkeypatch.setattr(f"shoal.client.{module}.CHANGE_TIMEOUT_S", PATIENCE_S)


@pytest.fixture
def client(make_client: MakeClient) -> AnyClient:
    """A client of the test's own pool."""
    return make_client()


@pytest.fixture
def long_jobs(redis_url: str, keys: Keys) -> Iterator[LongJobs]:
    """The long jobs of the test's own pool."""
    with LongJobs(Settings(redis_url, keys.prefix, keys.pool)) as jobs:
        yield jobs


@pytest.fixture
def source(keys: Keys) -> Iterator[Path]:
    """A file that the API and runners may read."""
    path = Settings().files_folder / f"{keys.pool}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("text\nstorm\n")
    yield path
    path.unlink()


class TestWithoutARunner:
    def test_a_job_is_cancelled_retried_and_deleted(self, client: AnyClient, source: Path, tmp_path: Path) -> None:
        job, seen = bulk(client, source, tmp_path / "vectors", dimensions=8), list[str]()
        assert (job.status(), job.progress().rows) == ("queued", 0)
        with pytest.raises(Timeout, match=f"job {job.id} is not done after 0.1 s: it goes on"):
            job.wait(0.1, on_status=lambda status: seen.append(status.status))
        assert set(seen) == {"queued"}
        same = client.long_job(job.id)
        assert (same.cancel(), same.status(), same.retry()) == ("cancelled", "cancelled", "queued")
        with pytest.raises(JobNotEnded):
            same.delete()
        with pytest.raises(InvalidRequest, match="is queued: it cannot be retried"):
            same.retry()
        assert same.cancel() == "cancelled"
        with pytest.raises(Cancelled):
            job.wait(PATIENCE_S)
        job.delete()
        for use in (job.status, job.progress, job.wait, job.retry, job.cancel, job.delete):
            with pytest.raises(UnknownJob, match=rf'no .*job "{job.id}"'):
                use()

    def test_a_file_is_submitted_with_its_options_and_a_file_of_the_server_is_not_uploaded(
        self, client: AnyClient, long_jobs: LongJobs, source: Path, tmp_path: Path
    ) -> None:
        job = bulk(client, source, tmp_path / "vectors", format="npy", text_column="text", normalize=False)
        status, options = (
            long_jobs.status(job.id),
            {"format": "npy", "text_column": "text", "options": {"normalize": False}},
        )
        assert (status.kind, options.items() <= status.arguments.items()) == ("embed_file", True)
        assert (Settings().files_folder / status.arguments["source"]).read_text() == "text\nstorm\n"
        job.cancel()
        for job in (
            bulk(client, ServerFile(source.name), tmp_path / "vectors"),
            client.index("news").build(ServerFile(source.name)),
        ):
            assert long_jobs.status(job.id).arguments["source"] == source.name
            job.cancel()
        with pytest.raises(InvalidRequest, match='"normalise": did you mean normalize'):
            bulk(client, source, tmp_path / "vectors", normalise=True)

    def test_the_same_build_and_key_are_one_job(self, client: AnyClient, long_jobs: LongJobs, source: Path) -> None:
        news = client.index("news")
        asked: dict[str, Any] = {"publish": False, "on_bad": "skip", "drop_changes_before": 1_700_000_000.5}
        first, second = (news.build(source, idempotency_key="once", **asked) for _ in range(2))
        assert first.id == second.id
        status, asked["name"] = long_jobs.status(first.id), "news"
        assert (status.kind, asked.items() <= status.arguments.items()) == ("build_index", True)
        with pytest.raises(InvalidRequest, match="the idempotency key was used"):
            news.build(source, publish=True, idempotency_key="once")
        first.cancel()
        with pytest.raises(InvalidRequest, match='unknown option "fast": the known ones are text_column, id_column, '):
            news.build(source, fast=True)
        for use in (news.versions, lambda: news.delete_version("v1")):
            with pytest.raises(NotReady, match=r"no runner .*is alive: start one"):
                use()


def test_without_redis_unavailable_is_raised(make_client: MakeClient) -> None:
    client = make_client(f"redis://127.0.0.1:{free_port()}/0")
    for use in (client.long_job("nobody").status, client.long_job("nobody").wait, client.index("news").versions):
        with pytest.raises(Unavailable, match="Redis does not answer"):
            use()


@pytest.fixture
def runner(long_jobs: LongJobs, keys: Keys, redis_url: str, tmp_path: Path) -> Iterator[Process]:
    """A running runner, and a worker with made-up vectors."""
    worker = StubWorker(redis_url, keys)
    worker.start()
    own = {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool, "index_home": tmp_path / "indexes"}
    with Process(tmp_path / "runner.log", "jobs", **own) as process:
        wait_until(lambda: long_jobs.num_runners() == 1)
        yield process
        assert process.terminate() == 0, process.output
    worker.stop()


@pytest.mark.wide
@pytest.mark.usefixtures("runner")
def test_a_runner_does_all_kinds_of_jobs(client: AnyClient, source: Path, tmp_path: Path) -> None:
    job, seen = bulk(client, source, source.with_suffix(".vectors")), list[str]()
    assert job.wait(PATIENCE_S, on_status=lambda status: seen.append(status.status))["num_vectors"] == 1
    assert (seen[-1], job.status(), job.progress().rows) == ("done", "done", 1)
    news = client.index("news")
    first = news.build(source).wait(PATIENCE_S)["version"]
    source.write_text("text\nstorm\nrain\n")
    second = news.build(ServerFile(source.name), publish=False).wait(PATIENCE_S)["version"]
    assert [(version["version"], version["count"]) for version in news.versions()] == [(second, 2), (first, 1)]
    for versions, served in ((news.versions(), first), (news.publish(second), second), (news.rollback(), first)):
        assert [version["version"] for version in versions if version["is_current"]] == [served]
    assert [version["version"] for version in news.delete_version(second)] == [first]
    with pytest.raises(InvalidRequest):
        news.delete_version(first)
    with pytest.raises(InvalidRequest, match='no column is called "title"'):
        news.build(source, text_column="title").wait(PATIENCE_S)
