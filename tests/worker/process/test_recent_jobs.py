"""The last jobs in a worker's heartbeat."""

import time

from queues import Queue, drive, work_off

from shoal.operations import Embed, Search
from shoal_workers.loop.worker import Worker
from shoal_workers.process.measurements import MAX_JOBS
from shoal_workers.service.service import about


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
    queue.put("bulk", [Embed(["storm"], id=f"job{n}", reply_to="me") for n in range(2 * MAX_JOBS)], client="web")
    work_off(worker, queue)
    assert len(about(worker)["recent"]) == MAX_JOBS
