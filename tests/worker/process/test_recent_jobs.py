"""The last jobs in a worker's heartbeat."""

import time

import pytest
from blocking import Pool, read_pool
from queues import Queue, drive, work_off

from shoal.broker.clock import Clock
from shoal.contract.outline import Outline
from shoal.errors import Expired
from shoal.operations import Embed, Search
from shoal.queue.consumer import Delivery
from shoal_workers.loop.worker import Worker
from shoal_workers.process.measurements import (
    MAX_JOBS,
    EndedJob,
    JobLog,
)
from shoal_workers.service.service import about

NOW_S = 1_790_000_000.0


class Now(Clock):
    now_s = NOW_S

    def now(self) -> float:
        return self.now_s


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
    assert "storm" not in str(found["recent"])
    late = Embed(["storm"], id="late", reply_to="me", deadline=time.time() - 60)
    queue.put("bulk", [late, Search(["storm"], id="lost", index="nowhere", reply_to="me")], client="web")
    queue.redis.rpush(queue.keys.lane("bulk"), b"no job")
    work_off(worker, queue)
    failed = {job["id"]: (job["status"], job["error"], job["op"], job["client"]) for job in worker.log.recent}
    assert failed["late"] == ("expired", "expired", "embed", "web")
    assert failed["lost"] == ("failed", "unknown_index", "search", "web")
    assert failed[None][:3] == ("failed", "malformed_job", None)


def test_the_pool_shows_the_jobs_of_a_heartbeat(queue: Queue, worker: Worker) -> None:
    worker.step(block_s=0)
    queue.put("bulk", [Embed(["storm"], id="a", reply_to="me")], client="web")
    drive(worker)
    Pool(queue.broker, queue.keys, alive_s=3_600).announce(worker.id, about(worker))
    found = read_pool(queue).describe()
    assert [(job["id"], job["worker"]) for job in found["recent"]] == [("a", worker.id)]
    (shown,) = found["workers"]
    assert (shown["state"], shown["model"]) == ("ready", worker.encoder.model.name)
    assert (shown["counters"]["jobs"], shown["counters"]["encode_s"] > 0) == (1, True)


def test_a_heartbeat_has_only_the_newest_jobs(queue: Queue) -> None:
    job, log, error = Embed(["storm"], id="a", reply_to="me"), JobLog("w", Now(queue.broker)), Expired("it is late")
    for lane, waited_s in [("bulk", 0.0)] * (2 * MAX_JOBS) + [("interactive", 3.0)]:
        delivery = Delivery(lane, job.id, job.pack(), "w", int((NOW_S - waited_s) * 1_000), client="web")
        log.note([EndedJob.refused(delivery, Outline.read(delivery.data), error)], NOW_S)
    assert len(log.recent) == MAX_JOBS
    assert (log.recent[0]["lane"], log.recent[0]["total_s"]) == ("interactive", pytest.approx(3.0))
