"""The ends of single runs of a long job, on a real Redis, even if another worker has the job or Redis fails."""

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import product
from typing import Any

import pytest
from breaking import Plan, connect
from conftest import RedisServer
from long_job_tasks import queue_names
from rq.exceptions import StopRequested
from rq.queue import Queue

from shoal.broker.broker import Broker
from shoal.errors import FolderBusy, IndexBusy, IndexNotFound, InvalidRequest, ShoalError, Unavailable
from shoal.long_jobs.long_jobs import LongJobs
from shoal.long_jobs.rq_job import RUN, WANTED, job_class_of
from shoal.long_jobs.serializer import MsgpackSerializer
from shoal.long_jobs.status import public_text
from shoal.long_jobs.submission import KINDS
from shoal.settings import Settings
from shoal.task_progress import TaskProgress
from shoal_workers.long_jobs.maintenance import LOCK_S, LOOK_FIRST_S, Maintenance
from shoal_workers.long_jobs.rq_worker import ALIVE_S, LongJobWorker
from shoal_workers.long_jobs.runnable_job import TEMPORARY_ERRORS, ProgressLog, RunnableJob


class Run:
    """A run of a job by a worker."""

    def __init__(self, worker: LongJobWorker, broker: Broker, queue: Queue, job_id: str):
        self.worker, self.queue, self.broker = worker, queue, broker
        job: Any = queue.job_class.fetch(job_id, queue.connection)
        self.job, self.execution = job, job.begin(worker.name, ALIVE_S)
        self.progress = ProgressLog(job, self.execution.id if self.execution else "", broker.translated)

    def succeed(self) -> bool:
        """End the run with a result."""
        with self.broker.translated():
            return bool(self.job.succeed(self.worker.name, self.execution, {"rows": 3}))

    def fail(self, error: ShoalError) -> bool:
        """End the run with an error."""
        passes = isinstance(error, TEMPORARY_ERRORS)
        return bool(self.job.break_off(self.worker.name, self.execution, error, is_temporary=passes))

    def die(self, *, is_stopped: bool = False) -> None:
        """End the run as if its process was killed, by its worker if `is_stopped`, else by another program."""
        self.worker._has_killed = is_stopped
        self.worker.handle_job_failure(self.job, self.queue, exc_string="killed", execution=self.execution)


class Pool:
    """A pool without processes, on a Redis whose failures `plan` decides."""

    def __init__(self, url: str):
        self.plan = Plan()
        self.jobs = LongJobs(Settings(redis_url=url))
        self.broker = connect(url, self.plan)
        settings = Settings(roots="/files", index_home="/indexes", indexes="default=/own/a")
        job_class = job_class_of(KINDS, RunnableJob, functions={}, public=partial(public_text, settings=settings))
        name = queue_names(Settings().keys)[0]
        client = self.broker.library_client()
        self.queue = Queue(name, client, job_class=job_class, serializer=MsgpackSerializer)
        self.connection: Any = self.queue.connection
        self.now_s = 100.0
        self.maintenance = Maintenance(self.queue, lambda: self.now_s)
        self.worker = LongJobWorker(self.queue, "worker", self.broker)
        self.renew()

    def renew(self) -> None:
        """Empty the queue and submit a new job."""
        self.connection.delete(self.queue.key)
        self.job_id = self.jobs.submit("embed_file", {"source": "a.csv", "out": "a"})

    def begin(self, name: str = "worker") -> Run:
        """Let a worker with this name begin the job."""
        self.connection.lmove(self.queue.key, self.queue.intermediate_queue_key)
        return Run(LongJobWorker(self.queue, name, self.broker), self.broker, self.queue, self.job_id)

    def put_back(self) -> None:
        """Put the job back into its queue, from any state."""
        job: Any = self.queue.job_class.fetch(self.job_id, self.connection)
        job.change(job.enqueue)

    @property
    def status(self) -> str:
        """The status of the job."""
        return self.jobs.status(self.job_id).status

    def fields(self) -> Any:
        """The fields of the job in Redis."""
        return self.connection.hgetall(f"rq:job:{self.job_id}")


@pytest.fixture
def pool(own_redis: RedisServer) -> Iterator[Pool]:
    """A pool with one job."""
    pool = Pool(own_redis.url)
    yield pool
    pool.broker.close()
    pool.jobs.close()


def test_a_failure_is_an_error_in_the_log_only_without_a_retry(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    for retries_left, level in ((1, "WARNING"), (0, "ERROR")):
        pool.renew()
        run = pool.begin()
        pool.connection.hset(run.job.key, "retries_left", retries_left)
        caplog.clear()
        run.die()
        (record,) = (record for record in caplog.records if record.levelno > logging.INFO)
        assert (record.levelname, "tried again" in record.getMessage()) == (level, bool(retries_left))


def test_the_first_retry_is_at_once_and_another_program_gives_a_job_no_more_retries(pool: Pool) -> None:
    run = pool.begin()
    pool.connection.hset(run.job.key, "retries_left", 10**9)
    pool.connection.rpush(place := f"rq:queue:{run.job.origin}", "another")
    run.die()
    assert pool.connection.lrange(place, 0, -1) == [run.job.id.encode(), b"another"]
    assert int(pool.fields()[b"retries_left"]) == len(run.job.kind.retry_after_s) - 1


#: Ways to end a run that has lost its job. Each returns True if it changes the job.
LATE_ENDS: dict[str, Callable[[Run], object]] = {
    "report": lambda run: run.progress.report(TaskProgress(rows=99)),
    "succeed": Run.succeed,
    "fail": lambda run: run.fail(Unavailable("away")),
    "refuse": lambda run: run.fail(InvalidRequest("wrong")),
    "stop": lambda run: run.die(is_stopped=True),
    "die": Run.die,
}


def test_a_run_that_lost_its_job_changes_nothing(pool: Pool) -> None:
    for worker in ("new", "old"):  # a run may lose its job to a later run of its own worker
        for name, end in LATE_ENDS.items():
            pool.renew()
            old = pool.begin("old")
            pool.put_back()  # as if the worker had missed its heartbeats
            new, before = pool.begin(worker), pool.fields()
            assert before[RUN.encode()] == new.execution.id.encode()
            assert not end(old), name
            assert pool.fields() == before, name
            left = pool.connection.zrange(pool.queue.started_job_registry.key, 0, -1)
            assert f"{pool.job_id}:{new.execution.id}".encode() in left
            assert len(left) == (2 if name == "report" else 1), name
            assert pool.connection.hdel(f"rq:job:{pool.job_id}", RUN)  # as if an earlier release had begun it
            assert new.fail(Unavailable("away"))
            assert RUN.encode() not in pool.fields()
            pool.connection.delete(pool.queue.started_job_registry.key)


def test_a_cancelled_job_ends_with_its_run(pool: Pool) -> None:
    for wanted, status in ((b"cancel", "cancelled"), (b"pause", "queued")):  # earlier releases wrote b"pause"
        for is_stopped in (True, False):
            pool.renew()
            run = pool.begin()
            pool.jobs.cancel(pool.job_id)
            assert pool.connection.hget(run.job.key, WANTED) == b"cancel"
            pool.connection.hset(run.job.key, WANTED, wanted)
            run.die(is_stopped=is_stopped)
            assert pool.status == status
            assert pool.connection.zcard(pool.queue.started_job_registry.key) == 0
    pool.renew()
    pool.jobs.cancel(pool.job_id)
    assert pool.begin().execution is None  # the job was cancelled before its run began
    assert pool.status == "cancelled"


def test_an_error_is_kept_without_the_folders_of_the_runner_until_the_job_is_done(pool: Pool) -> None:
    for message, shown in (
        ("/indexes/news has no version v1; it has v2", "news has no version v1; it has v2"),
        ("/own/a/v1/a.json is wrong: build /own/a again", "default/v1/a.json is wrong: build default again"),
        ("/files/news.csv, line 17: it is empty", "news.csv, line 17: it is empty"),
        ("/own/another is no folder", "/own/another is no folder"),
    ):
        pool.renew()
        pool.begin().fail(IndexNotFound(message))
        assert pool.jobs.status(pool.job_id).error == {"code": "index_not_found", "message": shown}
    pool.put_back()
    run = pool.begin()
    assert pool.jobs.status(pool.job_id).error
    run.succeed()
    status = pool.jobs.status(pool.job_id)
    assert (status.status, status.error, status.result) == ("done", None, {"rows": 3})


def test_a_job_waits_while_its_old_process_locks_the_folder(pool: Pool) -> None:
    for error in (FolderBusy, IndexBusy):
        pool.renew()
        old = pool.begin("old")
        pool.put_back()
        pool.begin("new").fail(error("another process has it"))
        assert pool.status == "queued"
        old.die(is_stopped=True)
        pool.begin("new").succeed()
        assert pool.status == "done"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failure_of_redis_at_the_end_of_a_run_does_not_fail_the_job(pool: Pool, when: str) -> None:
    for at, status in ((1, "queued"), (3, "done")):
        pool.renew()
        run = pool.begin()
        pool.plan.breaks(when, at)
        with suppress(Unavailable):
            run.succeed()
        run.die()  # the process dies because it could not write the end
        assert pool.status == status


class Meddling(Plan):
    """A plan that calls `meddle` before round trip number `at` of a connection."""

    def __init__(self, at: int, meddle: Callable[[], None]):
        super().__init__()
        self.at, self.meddle = at, meddle

    def reach(self, when: str) -> None:
        super().reach(when)
        if when == "before" and self.num_round_trips == self.at:
            self.meddle()


def test_a_change_applies_to_the_state_that_it_finds_when_it_is_written(pool: Pool, own_redis: RedisServer) -> None:
    def meddle() -> None:
        with suppress(ShoalError):
            if action == "retry":
                pool.jobs.retry(pool.job_id)
            pool.begin()

    for action, at in product(("cancel", "retry"), range(1, 7)):
        pool.renew()
        if action == "retry":
            pool.jobs.cancel(pool.job_id)
        plan = Meddling(at, meddle)
        with closing(connect(own_redis.url, plan)) as broker, suppress(InvalidRequest):
            jobs = LongJobs(Settings(redis_url=own_redis.url))
            vars(jobs)["_broker"] = broker
            getattr(jobs, action)(pool.job_id)
        if plan.num_round_trips < at:
            meddle()
        assert pool.status in ("running", "cancelled" if action == "cancel" else "")
        assert pool.connection.llen(pool.queue.key) == 0


def test_a_job_that_makes_progress_has_all_its_retries_again_and_keeps_its_progress(pool: Pool) -> None:
    def report(run: Run, rows: int) -> int:
        """Report rows when one retry is left, and return the number of retries afterwards."""
        pool.connection.hset(run.job.key, "retries_left", 1)
        run.progress.report(TaskProgress(rows=rows))
        run.progress.save()
        return int(pool.fields()[b"retries_left"])

    run = pool.begin()
    assert [report(run, rows) for rows in (0, 5, 5)] == [1, len(KINDS["embed_file"].retry_after_s), 1]
    run.die(is_stopped=True)
    status = pool.jobs.status(pool.job_id)
    assert (status.status, status.progress.rows) == ("queued", 5)
    assert report(pool.begin(), 5) == 1  # this run makes no new progress


def test_the_retry_of_a_quick_job_comes_after_the_other_quick_jobs(pool: Pool) -> None:
    name = queue_names(Settings().keys)[1]
    queue = Queue(name, pool.connection, job_class=pool.queue.job_class, serializer=MsgpackSerializer)
    jobs = [pool.jobs.submit("manage_index", {"name": str(n), "action": "list"}) for n in range(3)]
    run = Run(LongJobWorker(queue, "worker", pool.broker), pool.broker, queue, jobs[0])
    pool.connection.hset(run.job.key, "retries_left", 1)  # the first retry is at once
    run.fail(Unavailable("away"))
    pool.connection.zadd(queue.scheduled_job_registry.key, {jobs[0]: 1})
    Maintenance(queue).run()
    assert queue.job_ids == [*jobs[1:], jobs[0]]


def test_a_worker_that_was_away_itself_watches_for_a_while_before_it_takes_a_job_over(pool: Pool) -> None:
    pool.maintenance.run()
    pool.connection.delete(pool.begin().execution.key)  # as if the worker's heartbeat had expired
    for later_s, status in ((0, "running"), (LOOK_FIRST_S / 2, "running"), (LOOK_FIRST_S, "queued")):
        pool.now_s = 200.0 + later_s
        pool.maintenance.run()
        assert pool.status == status


def test_a_maintenance_that_is_killed_keeps_the_lock_for_seconds(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool.queue, "release_maintenance_lock", lambda: None)  # the process dies before this call
    pool.maintenance.run()
    assert 0 < pool.connection.ttl(pool.queue.registry_cleaning_key) <= LOCK_S


def test_a_worker_stops_even_if_the_signal_comes_during_a_log_call(pool: Pool) -> None:
    with suppress(Exception):  # a log call suppresses this exception too
        pool.worker.request_stop(signal.SIGTERM, None)
    with pytest.raises(StopRequested):
        pool.worker.dequeue_job_and_maintain_ttl(1)
