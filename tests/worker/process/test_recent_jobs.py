"""The last jobs and the longest waits in a worker's heartbeat, and the worker's throughput."""

import time

import pytest
from blocking import Pool, read_pool
from queues import Queue, drive, work_off

from shoal.broker.clock import Clock
from shoal.contract.outline import Outline
from shoal.errors import Expired
from shoal.operations import Embed, Search
from shoal.queue.consumer import Delivery
from shoal_api.viewers.pool_meter import PoolMeter
from shoal_workers.loop.worker import Worker
from shoal_workers.process.measurements import (
    HALF_LIFE_S,
    MAX_JOBS,
    PART_S,
    WINDOW_S,
    EndedJob,
    JobLog,
    RecentJobs,
    Throughput,
)
from shoal_workers.service.service import about

NOW_S = 1_790_000_000.0


class Now(Clock):
    now_s = NOW_S

    def now(self) -> float:
        return self.now_s


def refused(job_log: JobLog, *waits: tuple[str, float], now_s: float = NOW_S) -> RecentJobs:
    """Log refused jobs with these lanes and waits until `NOW_S`, and return the log's recent jobs."""
    job, error = Embed(["storm"], id="a", reply_to="me"), Expired("it is late")
    job_log._clock.now_s = now_s  # type: ignore[attr-defined]
    for lane, waited_s in waits:
        delivery = Delivery(lane, job.id, job.pack(), "w", int((NOW_S - waited_s) * 1_000), client="web")
        job_log.note([EndedJob.refused(delivery, Outline.read(delivery.data), error)], now_s)
    return job_log.recent


def test_a_heartbeat_has_the_last_jobs_and_their_errors(queue: Queue, worker: Worker) -> None:
    assert about(worker)["written_at"] is None  # the worker has not measured its clock yet
    worker.step(block_s=0)
    queue.put("bulk", [Embed(["storm", "rain", "storm"], id="a", reply_to="me")], client="web")
    drive(worker)
    queue.put("interactive", [Search(["storm"], id="b", k=2, reply_to="me")], client="203.0.113.7")
    drive(worker)
    found = about(worker)
    assert [(job["id"], job["op"], job["lane"], job["client"]) for job in found["recent"]] == [
        ("b", "search", "interactive", "203.0.113.7"),
        ("a", "embed", "bulk", "web"),
    ]
    job = found["recent"][1]
    assert (job["num_texts"], job["num_cached"], job["status"], job["error"]) == (3, 0, "done", None)
    assert job["num_tokens"] > 3
    assert 0 < sum(job["timings"].values()) <= job["total_s"]
    assert abs(job["ended_at"] - time.time()) < 600
    assert found["written_at"] >= job["ended_at"] - 0.001
    assert found["longest_waits"].keys() == {"interactive", "bulk"}
    assert "storm" not in str(found["recent"])
    late = Embed(["storm"], id="late", reply_to="me", deadline=time.time() - 60)
    queue.put("bulk", [late, Search(["storm"], id="lost", index="nowhere", reply_to="me")], client="web")
    queue.redis.rpush(queue.keys.lane("bulk"), b"no job")
    work_off(worker, queue)
    failed = {job["id"]: (job["status"], job["error"], job["op"], job["client"]) for job in worker.log.recent.newest()}
    assert failed["late"] == ("expired", "expired", "embed", "web")
    assert failed["lost"] == ("failed", "unknown_index", "search", "web")
    assert failed[None][:3] == ("failed", "malformed_job", None)


def test_the_pool_shows_the_jobs_of_a_heartbeat(queue: Queue, worker: Worker) -> None:
    worker.step(block_s=0)
    queue.put("bulk", [Embed(["storm"], id="a", reply_to="me")], client="web")
    meter, pool = PoolMeter(), Pool(queue.broker, queue.keys, alive_s=3_600)
    for _ in range(2):
        pool.announce(worker.id, about(worker))
        found = meter.measure(read_pool(queue))
        drive(worker)  # answers the job in the first round
    assert [(job["id"], job["worker"]) for job in found["recent"]] == [("a", worker.id)]
    (shown,) = found["workers"]
    assert (shown["state"], shown["model"]) == ("ready", worker.encoder.model.name)
    assert found["rates"]["jobs_per_s"] > 0
    assert found["rates"]["encode_s"] > 0


def test_a_heartbeat_has_only_the_newest_jobs_and_the_longest_waits_of_the_last_minute(queue: Queue) -> None:
    recent = refused(JobLog("w", Now(queue.broker)), *[("bulk", 0.0)] * (2 * MAX_JOBS), ("interactive", 3.0)).newest()
    assert len(recent) == MAX_JOBS
    assert (recent[0]["lane"], recent[0]["total_s"]) == ("interactive", pytest.approx(3.0))
    job_log = JobLog("w", Now(queue.broker))
    longest_waits = refused(job_log, ("bulk", 9.0), ("interactive", 1.0), ("bulk", 3.0)).longest_waits
    assert longest_waits(NOW_S + PART_S) == {"bulk": 9.0, "interactive": 1.0}
    refused(job_log, ("bulk", 2.0), now_s=NOW_S + WINDOW_S / 2)
    assert longest_waits(NOW_S + WINDOW_S / 2) == {"bulk": 2.0 + WINDOW_S / 2, "interactive": 1.0}
    assert longest_waits(NOW_S + WINDOW_S + PART_S).keys() == {"bulk"}
    assert longest_waits(NOW_S + 2 * WINDOW_S) == {}
    refused(job_log, ("bulk", 9.0))
    assert longest_waits(NOW_S - 10 * WINDOW_S) == {}  # the clock was set back


def test_the_throughput_is_recent_texts_over_busy_seconds() -> None:
    throughput = Throughput()
    assert throughput.texts_per_s == 0
    for _ in range(100):
        throughput.num_texts += 1_000
        throughput.add_busy(1)
    assert throughput.texts_per_s == pytest.approx(1_000, rel=0.1)
    for _ in range(int(3 * HALF_LIFE_S)):
        throughput.num_texts += 100
        throughput.add_busy(1)
    assert 100 < throughput.texts_per_s < 300
