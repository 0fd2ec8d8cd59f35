"""The runner of long jobs: real processes on a real Redis, killed or stopped at any moment."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from conftest import PATIENCE_S, TESTS, RedisServer, wait_until
from long_job_tasks import KINDS, TEXT, queue_names
from process import environment, run
from rq.job import Job

from shoal.long_jobs.long_jobs import LongJobs
from shoal.long_jobs.serializer import MsgpackSerializer
from shoal.long_jobs.status import LongJobStatus
from shoal.settings import Settings


def has_ended(process: psutil.Process) -> bool:
    """Return True if a process has ended, even if its new parent never reads its exit code."""
    with suppress(psutil.NoSuchProcess):
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    return True


class Place:
    """A Redis for one test, the long jobs in it, and the runners that run them."""

    def __init__(self, server: RedisServer, folder: Path):
        self.server, self.folder = server, folder
        self.settings = Settings(redis_url=server.url)
        self.jobs = LongJobs(self.settings, KINDS)
        self.connection = redis.Redis.from_url(server.url)
        self.runners: list[psutil.Popen] = []

    def start(self, **settings: Any) -> psutil.Popen:
        """Start a runner."""
        values = {"redis_url": self.server.url, "long_jobs": 1} | settings
        env = environment(**values) | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with (self.folder / "runner.log").open("ab") as output:
            command = [sys.executable, str(TESTS / "shared/pool/long_job_tasks.py")]
            self.runners.append(psutil.Popen(command, env=env, stdout=output, stderr=output))
        return self.runners[-1]

    def submit(self, kind: str, **arguments: Any) -> str:
        """Submit a job of a kind from `long_job_tasks`."""
        return self.jobs.submit(kind, {"folder": str(self.folder), **arguments})

    def let_go(self, until: int = 1_000_000) -> None:
        """Let the counting job go on up to this number."""
        (self.folder / "new").write_text(str(until))
        (self.folder / "new").rename(self.folder / "go")

    def lines(self, name: str) -> list[str]:
        """Return the lines of a file that jobs write: `numbers` or `tries`."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    @property
    def log(self) -> str:
        """The log of the runners."""
        return (self.folder / "runner.log").read_text()

    def count_to(self, until: int) -> tuple[str, psutil.Popen, psutil.Process]:
        """Let a runner count `until` of six rows; return the job's id, the runner, and the process of the job."""
        job_id = self.submit("count", rows=6)
        self.let_go(until)
        runner, found = self.start(), list[psutil.Process]()

        def counts() -> bool:
            with suppress(psutil.NoSuchProcess):
                found[:] = [process for worker in runner.children() for process in worker.children()]
            return len(found) == 1 and len(self.lines("numbers")) == until

        wait_until(counts)
        return job_id, runner, found[0]

    def finish(self, job_id: str) -> LongJobStatus:
        """Let the counting job finish, and check that it has counted each number once."""
        self.let_go()
        status = self.wait(job_id, "done")
        assert self.lines("numbers") == list("012345")
        return status

    def wait(self, job_id: str, status: str) -> LongJobStatus:
        """Wait until the job has the status."""
        wait_until(lambda: self.jobs.status(job_id).status == status)
        return self.jobs.status(job_id)

    def close(self) -> None:
        """Kill the runners, and wait until all their processes have ended."""
        alive = [runner for runner in self.runners if runner.poll() is None]
        left = [process for runner in alive for process in runner.children(recursive=True)]
        for runner in alive:
            runner.kill()
            runner.wait()
        wait_until(lambda: all(map(has_ended, left)))
        self.jobs.close()
        self.connection.close()


@pytest.fixture
def place(own_redis: RedisServer, tmp_path: Path) -> Iterator[Place]:
    """Yield a place without a runner."""
    place = Place(own_redis, tmp_path)
    yield place
    place.close()


@pytest.mark.wide
@pytest.mark.parametrize("is_full_at_start", [True, False])
def test_a_runner_waits_while_redis_is_full(place: Place, is_full_at_start: bool) -> None:
    if not is_full_at_start:
        place.start()
        wait_until(lambda: place.connection.ping() and place.jobs.num_runners() == 1)
    place.connection.config_set("maxmemory", 1)
    if is_full_at_start:
        place.start()
    wait_until(lambda: place.log.count("waiting for Redis: Redis has no memory left") == 2)
    place.connection.config_set("maxmemory", 0)
    place.let_go()
    place.wait(place.submit("count", rows=1), "done")
    assert "Traceback" not in place.log
    assert "is started again" not in place.log


def test_a_job_reports_its_progress_and_its_result(place: Place) -> None:
    job_id = place.submit("count", rows=10)
    runner = place.start()
    place.wait(job_id, "running")
    place.let_go(5)
    wait_until(lambda: place.jobs.status(job_id).progress.rows == 5)
    progress = place.jobs.status(job_id).progress
    assert (progress.fraction, progress.step) == (0.5, "waiting")
    assert place.jobs.num_runners() == 1
    place.let_go()
    status = place.wait(job_id, "done")
    assert status.result == {"rows": 10}
    assert (status.progress.rows, status.progress.fraction) == (10, 1.0)
    assert status.submitted_at <= (status.started_at or 0) <= (status.ended_at or 0)
    assert 0 < place.connection.ttl(f"rq:job:{job_id}") <= 7 * 86_400
    runner.terminate()
    assert runner.wait(PATIENCE_S) == 0
    assert place.jobs.num_runners() == 0


def test_a_running_job_is_cancelled_and_retried(place: Place) -> None:
    job_id, *_ = place.count_to(2)
    assert place.jobs.cancel(job_id) == "running"
    place.wait(job_id, "cancelled")
    assert place.jobs.retry(job_id) == "queued"
    place.finish(job_id)
    died = place.wait(place.submit("recover", times=9, dies=True), "failed")  # the worker did not kill this process
    assert died.error is not None


@pytest.mark.parametrize(
    "whom", ["worker", *(pytest.param(whom, marks=pytest.mark.wide) for whom in ("runner", "job", "stopped runner"))]
)
def test_a_job_goes_on_when_a_process_was_killed(place: Place, whom: str) -> None:
    job_id, runner, process = place.count_to(3)
    if whom == "stopped runner":
        runner.terminate()
        assert runner.wait(PATIENCE_S) == 0
        assert not process.is_running()
        status = place.jobs.status(job_id)
        assert (status.status, status.progress.rows) == ("queued", 3)
    else:
        {"runner": runner, "worker": process.parent(), "job": process}[whom].kill()
    if "runner" in whom:
        runner.wait()
        place.start()
    wait_until(lambda: has_ended(process))  # otherwise the process might finish the job before the kill reaches it
    assert place.finish(job_id).error is None


@pytest.mark.wide
def test_no_worker_outlives_a_runner_that_is_killed_without_redis(place: Place) -> None:
    _, runner, process = place.count_to(0)
    workers = runner.children()
    place.server.stop(signal.SIGKILL)
    process.kill()
    wait_until(lambda: "waiting for Redis" in place.log)
    runner.kill()
    wait_until(lambda: all(map(has_ended, workers)))
    place.server.start()


@pytest.mark.wide
def test_a_job_goes_on_while_redis_is_started_again(place: Place) -> None:
    job_id, _, process = place.count_to(2)
    place.server.stop()
    place.let_go(4)
    wait_until(lambda: len(place.lines("numbers")) == 4)
    place.server.start()
    wait_until(lambda: place.jobs.status(job_id).progress.rows == 4)
    assert process.is_running()
    place.finish(job_id)


def test_an_error_is_kept_without_texts(place: Place) -> None:
    place.start()
    failed = place.wait(place.submit("fail"), "failed")
    message = "ValueError in the job: the log of the runner has its traceback"
    assert failed.error == {"code": "internal", "message": message}
    refused = place.wait(place.submit("refuse"), "failed")
    assert refused.error == {"code": "invalid_request", "message": "source is wrong: name another"}
    assert (refused.progress.num_bad, refused.progress.first_bad) == (1, ("a.csv, line 2: it is empty",))
    for status in (failed, refused):
        (result,) = Job.fetch(status.id, place.connection, MsgpackSerializer).results()
        assert result.exc_string
        assert "long_job_tasks.py" in result.exc_string
        assert TEXT not in result.exc_string
        assert 0 < place.connection.ttl(f"rq:job:{status.id}") <= 30 * 86_400
    wait_until(lambda: "source is wrong" in place.log)
    assert TEXT not in place.log
    assert "rq.worker" not in place.log
    assert "long_job_tasks.py" in place.log


def test_a_job_is_tried_again_a_few_times(place: Place) -> None:
    place.start()
    assert place.wait(place.submit("recover", times=2, dies=True), "done").result == "done"
    (place.folder / "tries").unlink()
    lost = place.wait(place.submit("recover", times=9, dies=False), "failed")
    assert lost.error
    assert (lost.error["code"], len(place.lines("tries"))) == ("unavailable", 4)
    assert place.jobs.retry(lost.id) == "queued"  # the job then has all its retries
    place.wait(lost.id, "failed")
    assert len(place.lines("tries")) == 8


@pytest.mark.wide
@pytest.mark.parametrize("is_busy", [False, True])
def test_after_redis_has_lost_its_data_the_runner_is_listed_again_and_does_jobs(place: Place, is_busy: bool) -> None:
    place.start()
    wait_until(lambda: place.jobs.num_runners() == 1)
    if is_busy:
        place.wait(place.submit("count", rows=1_000), "running")
    place.connection.flushall()
    wait_until(lambda: place.jobs.num_runners() == 1)
    place.let_go()
    place.wait(place.submit("count", rows=1), "done")
    assert place.jobs.num_runners() == 1


@pytest.mark.wide
def test_rqs_own_tools_show_the_jobs(place: Place) -> None:
    for _ in range(2):
        place.submit("count", rows=5)
    failed = place.submit("refuse")
    place.start(long_jobs=2)
    wait_until(lambda: [status.status for status in place.jobs.list()].count("running") == 2)
    command = [str(Path(sys.executable).parent / "rq"), "info", "--url", place.server.url, "--raw"]
    command += ["--serializer", "shoal.long_jobs.serializer.MsgpackSerializer"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    long = queue_names(place.settings.keys)[0]
    assert f"queue {long} 1" in shown
    assert shown.count(f" busy {long}.") == 2
    assert place.wait(failed, "queued").error is None
    place.let_go()
    place.wait(failed, "failed")


def test_a_runner_without_places_ends_at_once(own_redis: RedisServer) -> None:
    done = run("jobs", redis_url=own_redis.url, long_jobs=0)
    assert done.returncode == 1
    assert "long_jobs is 0: a runner takes at least 1" in done.stderr
