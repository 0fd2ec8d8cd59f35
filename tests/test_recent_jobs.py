"""Recent jobs: what a worker's heartbeat tells of the jobs that it answered last."""

import time
from collections import Counter

import pytest
from blocking import Pool, PoolHistory
from queues import Queue, drive

from shoal.errors import Expired, ShoalError
from shoal.operations import Embed, Search
from shoal.queue.delivery import Delivery
from shoal_workers.recent_jobs import MAX_JOBS, PART_S, WINDOW_S, RecentJobs
from shoal_workers.service import about
from shoal_workers.worker import Worker

NOW_S = 1_790_000_000.0


def refused(lane: str, waited_s: float, error: ShoalError | None = None) -> tuple[Delivery, ShoalError]:
    """Return a delivery that waited so long until now, and the error that it is answered with."""
    job = Embed(["storm"], id="a", reply_to="me")
    put_ms = int((NOW_S - waited_s) * 1_000)
    return Delivery(lane, job.id, job.pack(), "w", put_ms, client="web"), error or Expired("it is late")


def test_a_worker_tells_what_it_did(queue: Queue, worker: Worker) -> None:
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


def test_a_job_that_fails_is_told_with_its_error(queue: Queue, worker: Worker) -> None:
    worker.step(block_s=0)
    late = Embed(["storm"], id="late", reply_to="me", deadline=time.time() - 60)
    queue.put("bulk", [late, Search(["storm"], id="lost", index="nowhere", reply_to="me")], client="web")
    queue.redis.rpush(queue.keys.lane("bulk"), b"no job")
    drive(worker)
    found = {job["id"]: (job["status"], job["error"], job["op"], job["client"]) for job in worker.recent.newest()}
    assert found["late"] == ("expired", "expired", "embed", "web")
    assert found["lost"] == ("failed", "unknown_index", "search", "web")
    assert found[None][:3] == ("failed", "malformed_job", None)


def test_long_jobs_have_their_client_too(queue: Queue, worker: Worker) -> None:
    worker.step(block_s=0)
    queue.put("bulk", [Embed([f"{n} {k}" for k in range(40)], reply_to="me") for n in range(6)], client="web")
    drive(worker)
    assert Counter(job["client"] for job in worker.recent.newest()) == {"web": 6}


def test_the_history_shows_what_a_worker_tells(queue: Queue, worker: Worker) -> None:
    worker.step(block_s=0)
    queue.put("bulk", [Embed(["storm"], id="a", reply_to="me")], client="web")
    history, pool = PoolHistory(queue), Pool(queue.broker, queue.keys, alive_s=3_600)
    for _ in range(2):
        pool.announce(worker.id, about(worker))
        history.sample()
        drive(worker)  # the first time it answers the job
    found = history.snapshot()
    assert [(job["id"], job["worker"]) for job in found["recent"]] == [("a", worker.id)]
    (shown,) = found["workers"]
    assert (shown["state"], shown["model"]) == ("ready", worker.encoder.model.name)
    assert found["history"]["jobs_per_s"][-1] > 0
    assert found["history"]["encode_s"][-1] > 0


def test_before_its_clock_is_measured_a_worker_tells_no_time(worker: Worker) -> None:
    assert about(worker)["written_at"] is None


def test_the_newest_are_kept() -> None:
    recent = RecentJobs()
    recent.add_failed([refused("bulk", 0.0) for _ in range(2 * MAX_JOBS)], NOW_S)
    recent.add_failed([refused("interactive", 3.0)], NOW_S)
    found = recent.newest()
    assert len(found) == MAX_JOBS
    assert (found[0]["lane"], found[0]["total_s"]) == ("interactive", pytest.approx(3.0))


def test_the_longest_wait_is_that_of_the_last_minute() -> None:
    recent = RecentJobs()
    recent.add_failed([refused("bulk", 9.0), refused("interactive", 1.0), refused("bulk", 3.0)], NOW_S)
    assert recent.longest_waits(NOW_S + PART_S) == {"bulk": 9.0, "interactive": 1.0}
    recent.add_failed([refused("bulk", 2.0)], NOW_S + WINDOW_S / 2)
    assert recent.longest_waits(NOW_S + WINDOW_S / 2) == {"bulk": 2.0 + WINDOW_S / 2, "interactive": 1.0}
    assert recent.longest_waits(NOW_S + WINDOW_S + PART_S).keys() == {"bulk"}
    assert recent.longest_waits(NOW_S + 2 * WINDOW_S) == {}


def test_it_goes_on_when_the_clock_was_set_back() -> None:
    recent = RecentJobs()
    recent.add_failed([refused("bulk", 9.0)], NOW_S)
    assert recent.longest_waits(NOW_S - 10 * WINDOW_S) == {}
