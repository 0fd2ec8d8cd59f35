"""Long jobs for clients, on a real Redis, without a runner."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import compress

import pytest
from api_stub import MakeApp
from conftest import RedisServer
from long_job_callers import Rq
from long_job_tasks import queue_names
from rq.job import Job

from shoal.client.redis.client import Client
from shoal.contract.keys import Keys
from shoal.errors import InvalidRequest, JobNotEnded, Unavailable, UnknownJob, Unsupported
from shoal.long_jobs import long_jobs
from shoal.long_jobs.long_jobs import LongJobs
from shoal.long_jobs.rq_job import MAX_BYTES
from shoal.long_jobs.serializer import MsgpackSerializer
from shoal.long_jobs.status import public_text
from shoal.long_jobs.submission import Submission
from shoal.settings import Settings
from shoal.supervisor.supervisor import runs_jobs
from shoal_workers.long_jobs.runner import Runner

pytest_plugins = ["api_fixtures", "long_job_fixtures"]


@pytest.fixture
def jobs(settings: Settings, rq: Rq) -> Iterator[LongJobs]:
    """Yield the long jobs of the test's pool."""
    with LongJobs(settings) as jobs:
        yield jobs


def submit(jobs: LongJobs, **options: Any) -> str:
    """Submit a job that embeds a file."""
    return jobs.submit("embed_file", {"source": "a.csv", "out": "a"}, **options)


def test_a_job_is_cancelled_and_retried(jobs: LongJobs, rq: Rq, keys: Keys) -> None:
    def queued() -> list[Any]:
        return rq.connection.lrange(f"rq:queue:{queue_names(keys)[0]}", 0, -1)

    status = jobs.status(job_id := submit(jobs, client="ann"))
    assert (len(job_id), status.client, status.started_at, jobs.num_runners()) == (24, "ann", None, 0)
    with pytest.raises(InvalidRequest, match="is queued: it cannot be retried"):
        jobs.retry(job_id)
    assert queued() == [job_id.encode()]
    assert [jobs.cancel(job_id), jobs.cancel(job_id), queued()] == ["cancelled", "cancelled", []]
    assert 0 < rq.connection.ttl(f"rq:job:{job_id}") <= 30 * 86_400
    assert jobs.status(job_id).ended_at
    rq.set(job_id, retries_left="0")
    assert jobs.retry(job_id) == "queued"
    assert rq.connection.hget(f"rq:job:{job_id}", "retries_left") == b"5"  # all of them again
    assert rq.connection.ttl(f"rq:job:{job_id}") == -1
    assert jobs.status(job_id).ended_at is None
    rq.set(job_id, status="started")
    assert jobs.cancel(job_id) == "running"
    assert rq.connection.hget(f"rq:job:{job_id}", "shoal_wanted") == b"cancel"
    rq.set(job_id, status="finished")
    assert jobs.cancel(job_id) == "done"
    rq.set(job_id, status="deferred")  # an earlier release has paused it
    rq.connection.zadd(deferred := f"rq:deferred:{queue_names(keys)[0]}", {job_id: 0})
    assert (jobs.status(job_id).status, jobs.retry(job_id)) == ("cancelled", "queued")
    assert not rq.connection.exists(deferred)


def test_a_deleted_job_leaves_no_keys(jobs: LongJobs, rq: Rq, keys: Keys) -> None:
    def kept(job_id: str) -> list[str]:
        keys = [key.decode() for key in rq.connection.scan_iter("*")]
        lists = [key for key in keys if rq.connection.type(key) == b"zset" and rq.connection.zscore(key, job_id)]
        return [key for key in keys if job_id in key] + lists

    name = queue_names(keys)[0]
    for status in ("finished", "failed", "canceled"):
        job_id = submit(jobs, client="ann")
        with pytest.raises(JobNotEnded, match=f"job {job_id} is queued: wait until it has ended, or cancel it first"):
            jobs.delete(job_id)
        jobs.cancel(job_id)
        rq.set(job_id, status=status)
        rq.connection.zrem(f"rq:canceled:{name}", job_id)
        rq.connection.zadd(f"rq:{status}:{name}", {job_id: 1.0})
        rq.connection.xadd(f"rq:results:{job_id}", {"type": "1"})
        assert kept(job_id)
        jobs.delete(job_id)
        assert kept(job_id) == []
        with pytest.raises(UnknownJob):
            jobs.delete(job_id)


def test_an_idempotency_key_belongs_to_its_client(jobs: LongJobs, rq: Rq, keys: Keys) -> None:
    first = submit(jobs, idempotency_key="a", client="ann")
    assert submit(jobs, idempotency_key="a", client="ann") == first
    assert submit(jobs, idempotency_key="a", client="bob") != first
    with pytest.raises(InvalidRequest, match="used for another long job"):
        jobs.submit("embed_file", {"source": "b.csv", "out": "a"}, idempotency_key="a", client="ann")
    names = [*rq.connection.scan_iter(f"{keys.once('*').replace('{', '?').replace('}', '?')}")]
    assert all(86_000 < rq.connection.ttl(name) <= 86_400 for name in names)
    for value in (b"\xff\xfe", b"a/b", b"mine", b"x" * 1_000):  # values that another program wrote, none of them an id
        for name in names:
            rq.connection.set(name, value, keepttl=True)
        assert submit(jobs, idempotency_key="a", client="ann") not in (first, "mine")
    rq.connection.delete(*names)  # as if a day had passed
    assert submit(jobs, idempotency_key="a", client="ann") != first


def test_the_newest_jobs_are_listed_first(jobs: LongJobs, rq: Rq, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_jobs, "CHUNK", 2)
    monkeypatch.setattr(long_jobs, "MAX_LISTED", 6)
    dropped, *ids = [submit(jobs, client=name) for name in ("ann", "bob", "ann", "ann", "ann", "ann", "ann")]
    jobs.submit("manage_index", {"action": "list", "name": "news"})
    assert jobs.status(dropped).status == "queued"
    gone_s = time.time() - 86_400
    rq.connection.zadd(keys.long_jobs, {ids[0]: gone_s - 2, ids[1]: gone_s - 1, "gone": gone_s})
    assert [status.id for status in jobs.list()] == ids[::-1]
    assert [status.id for status in jobs.list("bob")] == ids[:1]
    assert [status.id for status in jobs.list(limit=1)] == ids[-1:]
    rq.connection.delete(f"rq:job:{ids[-1]}")
    assert [status.id for status in jobs.list("ann", 2)] == [ids[-2], ids[-3]]


def test_a_wrong_submission_is_refused(jobs: LongJobs) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("os.system", {}, 'kind is "os.system": it takes one of embed_file'),
        *(("embed_file", {"a": value}, "takes JSON with 64-bit numbers") for value in (b"b", math.nan, 2**64)),
        ("embed_file", {"a": "b" * 100_000}, "of at most 65,536 bytes"),
    ]
    for kind, arguments, message in cases:
        with pytest.raises(InvalidRequest, match=message):
            jobs.submit(kind, arguments)


def test_an_id_of_no_long_job_is_unknown(jobs: LongJobs, rq: Rq) -> None:
    Job.create("os.getcwd", connection=rq.connection, id="foreign", origin="default").save()
    rq.set(of_other_pool := submit(jobs), origin="shoal:other:long")
    try:
        for job_id in (of_other_pool, "0" * 24, "", "a/b", "é", "x" * 1_000, "foreign"):
            for ask in (jobs.status, jobs.cancel, jobs.retry):
                with pytest.raises(UnknownJob, match="no long job"):
                    ask(job_id)
    finally:
        rq.connection.delete("rq:job:foreign")


def test_a_job_that_another_program_wrote_is_unknown(jobs: LongJobs, rq: Rq) -> None:
    large = MsgpackSerializer.dumps(["a", None, [], Submission("a", {"b": "c" * MAX_BYTES}).to_map()])
    data = (b"\x80\x04K\x01.", b"x" * 3_000_000, MsgpackSerializer.dumps("embed_file"), compress(large))
    wrong: list[dict[str, Any]] = [
        *({"data": one} for one in (*data, MsgpackSerializer.dumps(["os.system", None, ["ls"], {}]))),
        *({name: b"\x80\x04."} for name in ("created_at", "retries_left", "meta")),
        {"status": "odd"},
    ]
    for fields in wrong:
        rq.set(job_id := submit(jobs), **fields)
        for ask in (jobs.status, jobs.cancel):
            with pytest.raises(UnknownJob):
                ask(job_id)
    assert jobs.list() == []
    assert Submission("a", {}).to_map()["webhook"] == ""  # a runner of an earlier release needs it


def test_a_forged_result_or_error_is_not_read(jobs: LongJobs, rq: Rq) -> None:
    rq.set(job_id := submit(jobs), status="finished", meta=MsgpackSerializer.dumps({"error": {"why": 1}}))
    assert jobs.status(job_id).error == {"code": "", "message": ""}  # `shoal job list` prints both
    assert jobs.status(job_id).result is None
    for value in ("gASVAAAA", "not base64!", "é"):
        rq.connection.xadd(f"rq:results:{job_id}", {"type": "1", "return_value": value})
        assert jobs.status(job_id).result is None


def test_without_redis_methods_raise_unavailable() -> None:
    with LongJobs(Settings(redis_url="redis://127.0.0.1:1/0")) as jobs:
        for ask in (lambda: submit(jobs), lambda: jobs.status("a"), jobs.list, jobs.num_runners):
            with pytest.raises(Unavailable):
                ask()


def test_a_cluster_has_no_long_jobs_without_another_redis(own_redis: RedisServer, make_app: MakeApp) -> None:
    cluster = Settings(redis_url="redis+cluster://127.0.0.1:1", long_jobs=1)
    assert not runs_jobs(cluster)
    with LongJobs(cluster) as jobs:
        assert jobs.is_empty()
        for use in (jobs.list, lambda: Runner(cluster)):
            with pytest.raises(Unsupported, match="SHOAL_LONG_JOBS_REDIS_URL"):
                use()
    beside = replace(cluster, long_jobs_redis_url=own_redis.url)
    assert runs_jobs(beside)
    with LongJobs(beside) as jobs, Client.from_settings(beside) as client:
        assert jobs.list() == client.long_jobs.list() == []
    app = make_app(redis_url=cluster.redis_url, long_jobs_redis_url=own_redis.url)
    assert app.own.long_jobs.list() == []


def test_messages_name_files_and_indexes_behind_links_without_their_folders(tmp_path: Path) -> None:
    for name in ("files", "news"):
        (tmp_path / "disk" / name).mkdir(parents=True)
        (tmp_path / name).symlink_to(tmp_path / "disk" / name)
    settings = Settings(roots=str(tmp_path / "files"), indexes=f"news={tmp_path / 'news'}")
    for folder in (tmp_path, tmp_path / "disk"):
        assert public_text(f"{folder}/files/a.csv is not in {folder}/news", settings) == "a.csv is not in news"
        assert public_text(f"{folder}/files: no documents", settings) == ".: no documents"
        assert public_text(f"{folder}/files.old", settings) == f"{folder}/files.old"
    assert public_text(f"{settings.index_home_folder} is full", settings) == ". is full"
    assert public_text("http://a/ and a / b", replace(settings, roots="/")) == "http://a/ and a / b"
