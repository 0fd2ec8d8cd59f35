"""Long jobs as clients see them, in RQ on a real Redis, without a runner."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis
from conftest import RedisServer
from long_job_tasks import queue_names
from rq.job import Job

from shoal.client.redis.client import Client
from shoal.contract.keys import Keys
from shoal.errors import (
    Cancelled,
    Internal,
    InvalidRequest,
    JobNotEnded,
    ShoalError,
    Unavailable,
    UnknownJob,
    Unsupported,
)
from shoal.long_jobs import rq_jobs
from shoal.long_jobs.long_jobs import LongJobs
from shoal.long_jobs.serializer import MsgpackSerializer
from shoal.long_jobs.status import LongJobStatus
from shoal.settings import Settings
from shoal.supervisor.supervisor import runs_jobs
from shoal_api.app import create_app
from shoal_api.context import Context
from shoal_workers.long_jobs.runner import Runner


@pytest.fixture
def settings(redis_url: str, keys: Keys) -> Settings:
    """Settings of the test's own pool."""
    return Settings(redis_url=redis_url, key_prefix=keys.prefix, pool=keys.pool)


@pytest.fixture
def connection(redis_url: str, keys: Keys) -> Iterator["redis.Redis"]:
    """A connection to the Redis; what RQ keeps for the pool's queues is removed at the end."""
    with redis.Redis.from_url(redis_url) as connection:
        yield connection
        for name in queue_names(keys):
            for key in connection.scan_iter(f"rq:*{name.replace('{', '?').replace('}', '?')}*"):
                connection.delete(key)
        for key in connection.scan_iter("rq:job:*"):
            if (connection.hget(key, "origin") or b"").decode() in queue_names(keys):
                connection.delete(key)


@pytest.fixture
def jobs(settings: Settings, connection: "redis.Redis") -> Iterator[LongJobs]:
    """The long jobs of the test's own pool."""
    with LongJobs(settings) as jobs:
        yield jobs


def submit(jobs: LongJobs, **options: Any) -> str:
    """Submit a job that embeds a file."""
    return jobs.submit("embed_file", {"source": "a.csv", "out": "a"}, **options)


def test_a_job_is_queued_until_a_runner_takes_it(jobs: LongJobs) -> None:
    status = jobs.status(job_id := submit(jobs, client="ann"))
    assert len(job_id) == 24
    assert (status.id, status.kind, status.status, status.client) == (job_id, "embed_file", "queued", "ann")
    assert status.arguments == {"source": "a.csv", "out": "a"}
    assert (status.started_at, status.ended_at, status.result, status.error) == (None, None, None, None)
    shown = status.to_map()
    assert shown["progress"] == {
        "rows": 0,
        "num_bad": 0,
        "first_bad": [],
        "fraction": None,
        "step": "",
        "rows_per_s": None,
        "eta_s": None,
    }
    assert "client" not in shown
    assert jobs.num_runners() == 0


def test_a_queued_job_is_paused_resumed_cancelled_and_retried(jobs: LongJobs) -> None:
    job_id = submit(jobs)
    with pytest.raises(InvalidRequest, match="is queued: it cannot be retried"):
        jobs.retry(job_id)
    assert [jobs.pause(job_id), jobs.pause(job_id), jobs.resume(job_id), jobs.resume(job_id)] == [
        "paused",
        "paused",
        "queued",
        "queued",
    ]
    assert [jobs.cancel(job_id), jobs.cancel(job_id)] == ["cancelled", "cancelled"]
    for change in (jobs.pause, jobs.resume):
        with pytest.raises(InvalidRequest, match="is cancelled: it cannot be"):
            change(job_id)
    assert jobs.status(job_id).ended_at
    assert jobs.retry(job_id) == "queued"
    assert jobs.status(job_id).ended_at is None
    assert jobs.pause(job_id) == "paused"
    assert jobs.status(job_id).ended_at is None


def test_a_job_that_is_being_cancelled_is_neither_paused_nor_resumed(jobs: LongJobs, connection: "redis.Redis") -> None:
    job_id = submit(jobs)
    connection.hset(f"rq:job:{job_id}", "status", "started")
    assert jobs.cancel(job_id) == "running"
    for change in (jobs.pause, jobs.resume):
        with pytest.raises(InvalidRequest, match="is being cancelled: it cannot be"):
            change(job_id)
    assert connection.hget(f"rq:job:{job_id}", "shoal_wanted") == b"cancel"


def test_all_that_is_kept_of_a_deleted_job_is_gone(jobs: LongJobs, connection: "redis.Redis", keys: Keys) -> None:
    def kept(job_id: str) -> list[str]:
        keys = [key.decode() for key in connection.scan_iter("*")]
        lists = [key for key in keys if connection.type(key) == b"zset" and connection.zscore(key, job_id) is not None]
        return [key for key in keys if job_id in key] + lists

    for status in ("finished", "failed", "canceled"):
        job_id = submit(jobs, client="ann")
        with pytest.raises(JobNotEnded, match=f"job {job_id} is queued: wait until it has ended, or cancel it first"):
            jobs.delete(job_id)
        jobs.cancel(job_id)
        connection.hset(f"rq:job:{job_id}", "status", status)
        connection.zrem(f"rq:canceled:{queue_names(keys)[0]}", job_id)
        connection.zadd(f"rq:{status}:{queue_names(keys)[0]}", {job_id: 1.0})
        connection.xadd(f"rq:results:{job_id}", {"type": "1"})
        assert kept(job_id)
        jobs.delete(job_id)
        assert kept(job_id) == []
        with pytest.raises(UnknownJob):
            jobs.delete(job_id)


def test_a_paused_job_is_in_no_queue_and_a_resumed_one_once(
    jobs: LongJobs, connection: "redis.Redis", keys: Keys
) -> None:
    queue = f"rq:queue:{queue_names(keys)[0]}"
    job_id = submit(jobs)
    jobs.pause(job_id)
    assert connection.lrange(queue, 0, -1) == []
    jobs.resume(job_id)
    jobs.resume(job_id)
    assert connection.lrange(queue, 0, -1) == [job_id.encode()]
    jobs.cancel(job_id)
    assert connection.lrange(queue, 0, -1) == []
    assert 0 < connection.ttl(f"rq:job:{job_id}") <= 30 * 86_400
    jobs.retry(job_id)
    assert connection.ttl(f"rq:job:{job_id}") == -1


def test_an_idempotency_key_is_of_its_client(jobs: LongJobs) -> None:
    first = submit(jobs, idempotency_key="a", client="ann")
    assert submit(jobs, idempotency_key="a", client="ann") == first
    assert submit(jobs, idempotency_key="a", client="bob") != first
    with pytest.raises(InvalidRequest, match="used for another long job"):
        jobs.submit("embed_file", {"source": "b.csv", "out": "a"}, idempotency_key="a", client="ann")


def test_the_newest_jobs_are_listed_first(jobs: LongJobs, connection: "redis.Redis") -> None:
    ids = [submit(jobs, client=name) for name in ("ann", "bob", "ann")]
    jobs.submit("manage_index", {"action": "list", "name": "news"})
    assert [status.id for status in jobs.list()] == ids[::-1]
    assert [status.id for status in jobs.list("ann")] == [ids[2], ids[0]]
    assert [status.id for status in jobs.list(limit=1)] == ids[2:]
    connection.delete(f"rq:job:{ids[2]}")
    assert [status.id for status in jobs.list("ann")] == [ids[0]]


@pytest.mark.parametrize(
    ("kind", "arguments", "options", "message"),
    [
        ("os.system", {}, {}, 'kind is "os.system": it takes one of embed_file'),
        ("embed_file", {"a": b"b"}, {}, "arguments takes values that JSON can hold"),
        ("embed_file", {"a": "b" * 100_000}, {}, "of at most 65,536 bytes"),
        ("embed_file", {}, {"webhook": "ftp://a/b"}, 'webhook is "ftp://a/b": it takes an http'),
        ("embed_file", {}, {"webhook": "http://me:secret@a/b"}, "without a password"),
        ("embed_file", {}, {"webhook": "http://[a/b"}, "webhook is"),
    ],
)
def test_a_wrong_submission_is_refused(
    jobs: LongJobs, kind: str, arguments: dict[str, Any], options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        jobs.submit(kind, arguments, **options)


def test_a_long_list_is_read_in_parts_and_has_the_newest(
    jobs: LongJobs, connection: "redis.Redis", keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rq_jobs, "CHUNK", 2)
    monkeypatch.setattr(rq_jobs, "MAX_LISTED", 6)
    dropped, *ids = [submit(jobs) for _ in range(7)]
    assert connection.zcard(keys.long_jobs) == 6
    gone_s = time.time() - 86_400
    connection.zadd(keys.long_jobs, {ids[0]: gone_s - 2, ids[1]: gone_s - 1, "gone": gone_s})
    assert [status.id for status in jobs.list()] == ids[::-1]
    assert jobs.status(dropped).status == "queued"


@pytest.mark.parametrize("value", [b"\xff\xfe", b"a/b", b"x" * 1_000])
def test_an_idempotency_key_with_another_value_than_an_id_counts_as_new(
    jobs: LongJobs, connection: "redis.Redis", keys: Keys, value: bytes
) -> None:
    submit(jobs, idempotency_key="a")
    (key,) = connection.scan_iter(f"{keys.once('*').replace('{', '?').replace('}', '?')}")
    connection.set(key, value, keepttl=True)
    assert jobs.status(submit(jobs, idempotency_key="a")).status == "queued"


@pytest.mark.parametrize("job_id", ["0" * 24, "", "a/b", "é", "x" * 1_000, "a\nb"])
def test_an_unknown_id_is_said_to_be_unknown(jobs: LongJobs, job_id: str) -> None:
    for ask in (jobs.status, jobs.pause, jobs.resume, jobs.cancel, jobs.retry):
        with pytest.raises(UnknownJob, match="no long job"):
            ask(job_id)


def test_a_job_of_another_queue_of_rq_is_unknown(jobs: LongJobs, connection: "redis.Redis") -> None:
    Job.create("os.getcwd", connection=connection, id="foreign", origin="default").save()
    try:
        with pytest.raises(UnknownJob):
            jobs.status("foreign")
    finally:
        connection.delete("rq:job:foreign")


@pytest.mark.parametrize(
    "fields",
    [
        {"data": b"\x80\x04K\x01."},
        {"data": b""},
        {"data": b"x" * 3_000_000},
        {"data": MsgpackSerializer.dumps(["os.system", None, ["ls"], {}])},
        {"data": MsgpackSerializer.dumps(["embed_file", {"a": 1}, [], {"arguments": {}, "webhook": "", "client": ""}])},
        {"data": MsgpackSerializer.dumps("embed_file")},
        {"status": "odd"},
        {"status": b"\xff"},
        *({name: b"\x80\x04."} for name in ("created_at", "started_at", "ended_at", "retries_left", "meta")),
    ],
)
def test_a_job_that_another_program_wrote_is_unknown(jobs: LongJobs, connection: "redis.Redis", fields: Any) -> None:
    job_id = submit(jobs)
    connection.hset(f"rq:job:{job_id}", mapping=fields)
    for ask in (jobs.status, jobs.pause, jobs.resume, jobs.retry):
        with pytest.raises(UnknownJob):
            ask(job_id)
    assert jobs.list() == []


def test_fields_that_long_jobs_do_not_have_are_ignored(jobs: LongJobs, connection: "redis.Redis") -> None:
    job_id = submit(jobs)
    odd: Any = dict.fromkeys(("result_ttl", "timeout", "repeats_left"), b"\x80\x04.")
    odd |= dict.fromkeys(("result", "exc_info", "webhooks", "dependency_ids"), b"\xffodd")
    connection.hset(f"rq:job:{job_id}", mapping=odd)
    status = jobs.status(job_id)
    assert (status.status, status.progress.rows, status.started_at) == ("queued", 0, None)


def test_a_forged_result_is_none(jobs: LongJobs, connection: "redis.Redis") -> None:
    job_id = submit(jobs)
    connection.hset(f"rq:job:{job_id}", "status", "finished")
    assert jobs.status(job_id).result is None
    for value in ("gASVAAAA", "not base64!", "é"):
        connection.xadd(f"rq:results:{job_id}", {"type": "1", "return_value": value})
        assert jobs.status(job_id).result is None
    connection.delete(f"rq:results:{job_id}")


def test_without_redis_it_says_so(settings: Settings) -> None:
    with LongJobs(Settings(redis_url="redis://127.0.0.1:1/0")) as jobs:
        for ask in (lambda: submit(jobs), lambda: jobs.status("a"), jobs.list, jobs.num_runners):
            with pytest.raises(Unavailable):
                ask()


def test_the_serializer_holds_plain_values_alone() -> None:
    assert MsgpackSerializer.loads(MsgpackSerializer.dumps(["a", None, {"b": [1.5]}])) == ["a", None, {"b": [1.5]}]
    for data in (b"\x80\x04K\x01.", b"", b"\x81\xa1a\x01", b"\xc7\x01\x05a"):
        with pytest.raises(ShoalError):
            MsgpackSerializer.loads(data)


AWAY = {"code": "unavailable", "message": "redis is away"}


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        ("queued", AWAY, None),
        ("done", AWAY, None),
        ("failed", AWAY, "unavailable"),
        ("failed", {"code": "of-later", "message": "new"}, "internal"),
        ("failed", {}, "internal"),
        ("failed", None, "internal"),
        ("cancelled", AWAY, "cancelled"),
    ],
)
def test_a_job_that_failed_or_was_cancelled_has_a_failure_and_no_other(
    status: str, error: dict[str, str] | None, code: str | None
) -> None:
    failure = LongJobStatus("a", "embed_file", status, {}, 0.0, error=error).failure()
    assert (failure and failure.code) == code


@pytest.mark.parametrize(("status", "error"), [("failed", Internal), ("canceled", Cancelled)])
def test_a_client_that_waits_is_told_of_a_failure_without_a_reason(
    settings: Settings, connection: "redis.Redis", status: str, error: type[ShoalError]
) -> None:
    with Client.from_settings(settings) as client:
        job = client.long_job(submit(client.long_jobs))
        connection.hset(f"rq:job:{job.id}", "status", status)
        with pytest.raises(error):
            job.wait()


def test_a_cluster_has_no_long_jobs_without_another_redis(own_redis: RedisServer) -> None:
    cluster = Settings(redis_url="redis+cluster://127.0.0.1:1", long_jobs=1)
    assert not runs_jobs(cluster)
    with LongJobs(cluster) as jobs:
        assert jobs.is_empty()
        with pytest.raises(Unsupported, match="SHOAL_LONG_JOBS_REDIS_URL"):
            jobs.list()
    with pytest.raises(Unsupported, match="SHOAL_LONG_JOBS_REDIS_URL"):
        Runner(cluster)
    beside = replace(cluster, long_jobs_redis_url=own_redis.url)
    assert runs_jobs(beside)
    with LongJobs(beside) as jobs, Client.from_settings(beside) as client:
        assert jobs.list() == client.long_jobs.list() == []
    assert Context.of(create_app(beside)).long_jobs.list() == []
