"""The ends of one run of a long job, on a real Redis: it may belong to another worker by then, or Redis may fail."""

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pytest
from breaking import Plan, connect
from conftest import RedisServer
from rq.exceptions import StopRequested
from rq.executions import Execution
from rq.worker import Worker

from shoal.broker.broker import Broker
from shoal.errors import FolderBusy, IndexBusy, IndexNotFound, InvalidRequest, Paused, ShoalError, Unavailable
from shoal.long_jobs.kind import KINDS
from shoal.long_jobs.long_jobs import LongJobs
from shoal.long_jobs.public_status import public_text
from shoal.long_jobs.rq_job import job_class_of
from shoal.long_jobs.rq_queue import LongQueue, queue_names
from shoal.long_task import TaskProgress
from shoal.settings import Settings
from shoal_workers.long_jobs.control import JobControl
from shoal_workers.long_jobs.maintenance import LOOK_FIRST_S, Maintenance
from shoal_workers.long_jobs.rq_worker import STOP_WITHIN_S, LongJobWorker
from shoal_workers.long_jobs.runnable_job import RunnableJob


def fetch(queue: LongQueue, job_id: str) -> Any:
    """Return the job as a worker reads it."""
    return queue.job_class.fetch(job_id, queue.connection)


class Run:
    """A job that a worker began with."""

    def __init__(self, worker: LongJobWorker, broker: Broker, queue: LongQueue, job_id: str):
        self.worker, self.queue = worker, queue
        self.job: Any = fetch(queue, job_id)
        self.execution: Execution = worker.prepare_execution(self.job)
        self.control = worker._control = JobControl(self.job, worker.name, broker.translated)
        worker.prepare_job_execution(self.job)

    def succeed(self) -> None:
        """End it with a result."""
        self.worker._finalize_success(self.job, self.queue, self.execution, {"rows": 3})

    def fail(self, error: Exception) -> None:
        """End it with an error."""
        self.worker._finalize_failure(self.job, self.queue, self.execution, (type(error), error, None))

    def die(self) -> None:
        """End it as a process that is killed."""
        self.worker.handle_job_failure(self.job, self.queue, exc_string="killed", execution=self.execution)


class Pool:
    """A pool with a Redis that fails as planned, without processes."""

    def __init__(self, url: str):
        self.plan = Plan()
        self.jobs = LongJobs(Settings(redis_url=url))
        self.broker = Broker(connect(url, self.plan).connection_pool)
        settings = Settings(roots="/files", index_home="/indexes", indexes="default=/own/a")
        job_class = job_class_of(KINDS, RunnableJob, functions={}, public=partial(public_text, settings=settings))
        name = queue_names(Settings().keys)[0]
        self.queue = LongQueue(name, self.broker.library_client(), job_class=job_class)
        self.connection: Any = self.queue.connection
        self.job_id = self.jobs.submit("embed_file", {"source": "a.csv", "out": "a"})

    def begin(self, name: str) -> Run:
        """Let a worker of the name begin with the job."""
        self.connection.lmove(self.queue.key, self.queue.intermediate_queue_key)
        return Run(LongJobWorker([self.queue], name, self.broker), self.broker, self.queue, self.job_id)

    def hand_over(self) -> tuple[Run, Run]:
        """Let a worker begin, and another one after it, as when the first gave no sign of life for a while."""
        old = self.begin("old")
        with self.connection.pipeline() as pipeline:
            self.queue.put_back(fetch(self.queue, self.job_id), pipeline)
            pipeline.execute()
        return old, self.begin("new")

    @property
    def status(self) -> str:
        """The status of the job."""
        return self.jobs.status(self.job_id).status

    def fields(self) -> Any:
        """The fields of the job in Redis."""
        return self.connection.hgetall(f"rq:job:{self.job_id}")

    def close(self) -> None:
        """Close the connections."""
        self.broker.close()
        self.jobs.close()


@pytest.fixture
def pool(own_redis: RedisServer) -> Iterator[Pool]:
    """A pool with one job."""
    pool = Pool(own_redis.url)
    yield pool
    pool.close()


def test_a_next_try_is_written_with_the_end_of_the_last_or_not_at_all(pool: Pool) -> None:
    run = pool.begin("worker")
    for retries_left in (5, 4):  # the first try follows at once, the second after a pause
        run.job.retries_left = retries_left
        with pool.connection.pipeline() as pipeline:
            run.job.retry(pool.queue, pipeline)
        assert pool.status == "running"


@pytest.mark.parametrize("end", ["fail", "die"])
@pytest.mark.parametrize(("retries_left", "level"), [(1, "WARNING"), (0, "ERROR")])
def test_a_failure_is_an_error_only_if_the_job_is_not_tried_again(
    pool: Pool, caplog: pytest.LogCaptureFixture, end: str, retries_left: int, level: str
) -> None:
    run = pool.begin("worker")
    run.job.retries_left = retries_left
    pool.connection.hset(run.job.key, "retries_left", retries_left)
    caplog.clear()
    run.fail(Unavailable("away")) if end == "fail" else run.die()
    (record,) = (record for record in caplog.records if record.levelno > logging.INFO)
    assert (record.levelname, "tried again" in record.getMessage()) == (level, bool(retries_left))


@pytest.mark.parametrize("end", ["exchange", "succeed", "fail", "refuse", "pause", "die"])
def test_a_run_that_lost_its_job_changes_nothing(pool: Pool, end: str) -> None:
    old, _ = pool.hand_over()
    before = pool.fields()
    old.job.meta["progress"] = {"rows": 99}
    if end == "exchange":
        assert old.control.save() == "lost"
    elif end == "succeed":
        old.succeed()
    elif end == "die":
        old.die()
    else:
        old.control.reason = "pause" if end == "pause" else ""
        old.fail(Unavailable("away") if end == "fail" else ValueError())
    assert pool.fields() == before
    assert pool.connection.zcard(pool.queue.started_job_registry.key) == (2 if end == "exchange" else 1)


@pytest.mark.parametrize("reason", ["stop", "pause", "cancel", "killed"])
@pytest.mark.parametrize(("wanted", "status"), [("cancel", "cancelled"), ("pause", "paused"), ("resume", "queued")])
def test_what_the_submitter_wants_last_is_done(pool: Pool, reason: Any, wanted: str, status: str) -> None:
    run = pool.begin("worker")
    pool.jobs.pause(pool.job_id)
    getattr(pool.jobs, wanted)(pool.job_id)
    if reason == "killed":
        run.die()
    else:
        run.control.reason = reason
        run.fail(Paused("stopped"))
    assert pool.status == status
    assert pool.connection.zcard(pool.queue.started_job_registry.key) == 0


def test_a_job_that_was_cancelled_when_it_was_taken_does_not_begin(pool: Pool) -> None:
    pool.jobs.cancel(pool.job_id)
    with pytest.raises(Paused):
        pool.begin("worker")
    assert pool.status == "cancelled"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("/indexes/news has no version v1; it has v2", "news has no version v1; it has v2"),
        (
            "/own/a/v1/manifest.json cannot be read: build /own/a again",
            "default/v1/manifest.json cannot be read: build default again",
        ),
        ("/files/news.csv, line 17: it is empty", "news.csv, line 17: it is empty"),
        ("/own/another is no folder", "/own/another is no folder"),
    ],
)
def test_an_error_is_kept_without_the_folders_of_the_runner(pool: Pool, message: str, shown: str) -> None:
    pool.begin("worker").fail(IndexNotFound(message))
    assert pool.jobs.status(pool.job_id).error == {"code": "index_not_found", "message": shown}


@pytest.mark.parametrize("error", [FolderBusy, IndexBusy])
def test_a_job_waits_while_an_old_process_of_it_has_the_folder(pool: Pool, error: type[ShoalError]) -> None:
    old, new = pool.hand_over()
    new.fail(error("another process has it"))
    assert pool.status == "queued"
    old.fail(Paused("lost"))
    last = pool.begin("new")
    last.succeed()
    assert pool.status == "done"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("at", "status"), [(1, "queued"), (3, "done")])
def test_finished_work_does_not_fail_for_good_with_redis(pool: Pool, when: str, at: int, status: str) -> None:
    run = pool.begin("worker")
    pool.plan.breaks(when, at)
    try:
        run.succeed()
    except Unavailable as error:
        run.fail(error)
    assert pool.status == status


class Meddling(Plan):
    """A plan by which something happens before a round trip of a connection."""

    def __init__(self, at: int, meddle: Callable[[], None]):
        super().__init__()
        self.at, self.meddle = at, meddle

    def reach(self, when: str) -> None:
        """Meddle at the round trip."""
        super().reach(when)
        if when == "before" and self.num_round_trips == self.at:
            self.meddle()


@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize(
    ("before", "action", "statuses"),
    [
        ("pause", "resume", ["running"]),
        ("cancel", "retry", ["running"]),
        ("pause", "cancel", ["cancelled", "running"]),
        ("", "pause", ["paused", "running"]),
        ("", "cancel", ["cancelled", "running"]),
    ],
)
def test_a_job_is_changed_as_it_is_when_the_change_is_written(
    pool: Pool, own_redis: RedisServer, before: str, action: str, statuses: list[str], at: int
) -> None:
    if before:
        getattr(pool.jobs, before)(pool.job_id)

    def meddle() -> None:
        with suppress(ShoalError):
            if before:
                {"pause": pool.jobs.resume, "cancel": pool.jobs.retry}[before](pool.job_id)
            pool.begin("worker")

    plan = Meddling(at, meddle)
    with closing(Broker(connect(own_redis.url, plan).connection_pool)) as broker, suppress(InvalidRequest):
        getattr(LongJobs(Settings(redis_url=own_redis.url), broker=broker), action)(pool.job_id)
    if plan.num_round_trips < at:
        meddle()
    assert pool.status in statuses
    assert pool.connection.llen(pool.queue.key) == 0


def test_a_job_that_gets_on_has_all_tries_again_and_keeps_how_far_it_is(pool: Pool) -> None:
    run = pool.begin("worker")
    for rows, expected in ((0, 1), (5, len(KINDS["embed_file"].retry_after_s)), (5, 1)):
        run.job.retries_left = 1
        run.control.report(TaskProgress(rows=rows))
        run.control.save()
        assert fetch(pool.queue, pool.job_id).retries_left == expected
    run.control.is_told_to_stop = True
    with pytest.raises(Paused, match="the runner is stopped"):
        run.control.report(TaskProgress(rows=7))
    run.fail(Paused("stop"))
    status = pool.jobs.status(pool.job_id)
    assert (status.status, status.progress.rows) == ("queued", 7)
    run = pool.begin("worker")
    run.job.retries_left = 1
    run.control.report(TaskProgress(rows=7))  # as far as it was
    assert fetch(pool.queue, pool.job_id).retries_left == 1


def test_a_job_that_is_done_has_no_error_of_an_earlier_try(pool: Pool) -> None:
    run = pool.begin("worker")
    run.fail(Unavailable("away"))
    with pool.connection.pipeline() as pipeline:
        pool.queue.put_back(fetch(pool.queue, pool.job_id), pipeline)
        pipeline.execute()
    run = pool.begin("worker")
    assert pool.jobs.status(pool.job_id).error == {"code": "unavailable", "message": "away"}
    run.job.set_error(None)  # which no report has saved
    run.succeed()
    status = pool.jobs.status(pool.job_id)
    assert (status.status, status.error, status.result) == ("done", None, {"rows": 3})


def test_a_job_that_is_killed_as_it_ignores_a_pause_and_resumed_then_goes_on(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = pool.begin("worker")
    monkeypatch.setattr(run.worker, "kill_horse", lambda: None)
    run.worker._stop_ignored_since_s = time.monotonic() - STOP_WITHIN_S
    pool.jobs.pause(pool.job_id)
    run.worker.maintain_heartbeats(run.job, run.execution)
    pool.jobs.resume(pool.job_id)
    run.die()
    status = pool.jobs.status(pool.job_id)
    assert (status.status, status.error) == ("queued", None)
    assert fetch(pool.queue, pool.job_id).retries_left == len(KINDS["embed_file"].retry_after_s)


def test_what_befell_one_job_says_nothing_of_the_next(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pool.begin("worker")
    killed: list[str] = []
    monkeypatch.setattr(run.worker, "kill_horse", lambda: killed.append(run.job.id))
    run.worker._has_killed, run.worker._stop_ignored_since_s = True, 1.0  # the job before ignored a pause
    monkeypatch.setattr(Worker, "fork_work_horse", lambda *_: None)
    run.worker.fork_work_horse(run.job, run.queue)
    for _ in range(2):  # nor does a pause that was taken back say anything of the next one
        pool.jobs.pause(pool.job_id)
        run.worker.maintain_heartbeats(run.job, run.execution)
        assert killed == []
        pool.jobs.resume(pool.job_id)
        run.worker._stop_ignored_since_s = 1.0
        run.worker.maintain_heartbeats(run.job, run.execution)
    run.die()
    error = pool.jobs.status(pool.job_id).error
    assert error
    assert error["code"] == "internal"


def test_a_worker_that_was_away_itself_looks_for_a_while_before_it_takes_a_job(pool: Pool) -> None:
    now_s = [100.0]
    maintenance = Maintenance(pool.queue, lambda: now_s[0])
    maintenance.run()
    run = pool.begin("worker")
    pool.connection.delete(run.execution.key)  # the sign of life of its process
    for later_s, status in (
        (200.0, "running"),
        (200.0 + LOOK_FIRST_S / 2, "running"),
        (200.0 + LOOK_FIRST_S, "queued"),
    ):
        now_s[0] = later_s
        maintenance.run()
        assert pool.status == status


def test_a_fault_of_the_maintenance_is_told_once_until_it_is_mended(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    worker = LongJobWorker([pool.queue], "worker", pool.broker)
    for is_faulty in (True, True, False, True):
        pool.connection.delete(key := pool.queue.scheduled_job_registry.key)
        if is_faulty:
            pool.connection.set(key, "no registry")
        worker.run_maintenance_tasks()
    assert ["the maintenance of the queue" in message for message in caplog.messages] == [True, True]


def test_a_worker_stops_although_the_signal_came_while_it_logged(pool: Pool) -> None:
    worker = LongJobWorker([pool.queue], "worker", pool.broker)
    with suppress(Exception):  # as logging does
        worker.request_stop(signal.SIGTERM, None)
    with pytest.raises(StopRequested):
        worker.dequeue_job_and_maintain_ttl(1)
