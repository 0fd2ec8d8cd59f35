"""Unread results are counted for the pool and for each client, and limited. A result that is gone counts no longer."""

import numpy as np
import pytest
from api_stub import MakeApp, error_of
from queues import Queue, drive, set_limits

from shoal.contract.jobs import LANES, Job
from shoal.contract.replies import Reply
from shoal.errors import InvalidText, Overloaded, TooLarge
from shoal.operations import Embed
from shoal.queue.consumer import Answer, Consumer
from shoal.queue.lane import LaneLimits, UnreadLoad
from shoal_workers.loop.worker import Worker

pytest_plugins = ["api_fixtures"]

#: Bytes that count for an unread result in addition to its reply.
KEYS_BYTES = 1_024

NOTHING = UnreadLoad(0, 0)


def answered(queue: Queue, count: int = 1, client: str = "a", num_values: int = 100) -> list[Job]:
    jobs: list[Job] = [Embed(["storm"]) for _ in range(count)]
    queue.put("bulk", jobs, client)
    answer_all(queue, num_values)
    return jobs


def answer_all(queue: Queue, num_values: int = 100) -> None:
    while deliveries := queue.take("w", LANES, 100):
        queue.answer(deliveries, vectors=np.zeros((1, num_values), np.float32))


def size_of(queue: Queue, job: Job) -> int:
    return len(queue.redis.lindex(queue.keys.result(job.id), 0)) + KEYS_BYTES


def of_client(queue: Queue, client: str) -> int:
    return int(queue.redis.hget(queue.keys.unread_load, f"client:{client}") or 0)


def make_due(queue: Queue) -> None:
    for result in queue.redis.zrange(queue.keys.unread, 0, -1):
        queue.redis.zadd(queue.keys.unread, {result: 0})


def sweep(queue: Queue) -> None:
    make_due(queue)
    assert not all(queue.unread.sweep() for _ in range(100))


def is_refused(queue: Queue, client: str) -> bool:
    try:
        queue.put("bulk", [Embed(["storm"])], client)
    except Overloaded:
        return True
    return False


def answer_until_refused(queue: Queue, client: str) -> int:
    """Let the client submit jobs until it is refused; return how many were answered."""
    for num_jobs in range(1_000):
        if is_refused(queue, client):
            return num_jobs
        answer_all(queue)
    pytest.fail(f"{client} is never refused")


class TestFreed:
    def test_a_fetched_result_counts_no_longer(self, queue: Queue) -> None:
        first, second = answered(queue, 2)
        for _ in range(2):
            assert queue.wait_result(first.id, 0) is not None
            assert queue.unread.load() == (1, size_of(queue, second))
        queue.wait_result(second.id, 0)
        assert queue.redis.exists(queue.keys.unread, queue.keys.unread_load) == 0
        pushed = Embed(["storm"])
        queue.redis.rpush(queue.keys.lane("bulk"), pushed.pack())
        answer_all(queue)
        assert of_client(queue, "") == size_of(queue, pushed)

    def test_a_worker_sweeps_results_that_are_gone(self, queue: Queue, worker: Worker) -> None:
        jobs = answered(queue, 3)
        assert queue.redis.blpop([queue.keys.result(jobs[0].id)], 1)
        queue.redis.delete(queue.keys.result(jobs[1].id))  # as if it had expired
        queue.redis.persist(queue.keys.result(jobs[2].id))  # by another program
        make_due(queue)
        worker.step(block_s=0)
        assert queue.unread.load() == (1, size_of(queue, jobs[2]))
        assert of_client(queue, "a") == size_of(queue, jobs[2])
        queue.redis.delete(queue.keys.result(jobs[2].id))

    @pytest.mark.parametrize("number", ["x", "", "nan", "inf", "-inf", "1e300"])
    def test_sums_of_another_program_refuse_no_client_and_a_sweep_counts_anew(self, queue: Queue, number: str) -> None:
        answered(queue, 3)
        sums = dict.fromkeys(("result", "bytes", "client:a"), number)
        queue.redis.hset(queue.keys.unread_load, mapping=sums)
        assert not is_refused(queue, "a")
        sweep(queue)
        assert queue.unread.load() == NOTHING

    def test_many_results_are_swept_a_part_at_a_time(self, queue: Queue) -> None:
        for job in answered(queue, 501):
            queue.redis.delete(queue.keys.result(job.id))
        make_due(queue)
        assert (queue.unread.sweep(), queue.unread.load().num_results) == (True, 1)
        assert (queue.unread.sweep(), queue.unread.load()) == (False, NOTHING)

    def test_a_result_is_looked_at_when_its_age_has_doubled(self, queue: Queue) -> None:
        (job,) = answered(queue)

        def looked_at_after_s(left_s: int) -> float:
            queue.redis.expire(queue.keys.result(job.id), left_s)
            sweep(queue)
            ((_, due),) = queue.redis.zrange(queue.keys.unread, 0, -1, withscores=True)
            return float(due) - float(queue.redis.time()[0])

        assert 0 <= looked_at_after_s(queue.result_ttl_s) <= 2
        assert 80 <= looked_at_after_s(queue.result_ttl_s - 100) <= 120
        assert 80 <= looked_at_after_s(100) <= 100

    def test_a_full_redis_sweeps_and_lets_results_be_read(self, own_queue: Queue) -> None:
        kept, gone = answered(own_queue, 2)
        own_queue.redis.delete(own_queue.keys.result(gone.id))
        make_due(own_queue)
        own_queue.redis.config_set("maxmemory", 1)
        own_queue.unread.sweep()
        assert own_queue.unread.load().num_results == 1
        own_queue.wait_result(kept.id, 0)
        assert own_queue.unread.load() == NOTHING


class TestLostCounts:
    def test_without_the_set_the_counts_begin_anew(self, queue: Queue) -> None:
        answered(queue, 3)
        queue.redis.delete(queue.keys.unread)  # lost in a failover
        answered(queue)
        sweep(queue)
        assert queue.unread.load() == NOTHING
        (job,) = answered(queue)
        assert queue.unread.load() == (1, size_of(queue, job))

    @pytest.mark.parametrize("what", ["unread", "limits"])
    def test_a_sweep_that_another_programs_key_stops_is_logged_once_and_jobs_of_a_dead_worker_are_done(
        self, queue: Queue, worker: Worker, caplog: pytest.LogCaptureFixture, what: str
    ) -> None:
        queue.put("bulk", [Embed(["storm"])])
        assert queue.take("dead", ["bulk"], 1)
        if what == "limits":
            queue.redis.hset(queue.keys.limits, "result_ttl_s", "junk")
        else:
            queue.redis.set(queue.keys.unread, "junk")
        queue.may_look(worker.id)
        assert drive(worker) == 1
        for _ in range(2):
            assert queue.unread.sweep() is False
        told = [record.getMessage() for record in caplog.records if record.name == "shoal.queue.consumer"]
        assert len(told) == 2  # one by the worker and one by this queue


class TestBound:
    def test_a_client_that_fetches_nothing_is_refused_and_others_are_not(self, queue: Queue) -> None:
        set_limits(queue, LaneLimits(max_unread_bytes=100_000))
        num_jobs = answer_until_refused(queue, "flood")
        held = of_client(queue, "flood")
        assert 100_000 / 2 <= held < 100_000 / 2 + held / num_jobs
        before = queue.redis.dbsize()
        with pytest.raises(Overloaded, match=r"fetch results, then submit again") as refusal:
            queue.put("bulk", [Embed(["storm"])], "flood")
        assert f"{held:,} bytes" in str(refusal.value)
        assert f"less than {100_000 - held:,}" in str(refusal.value)
        assert queue.redis.dbsize() == before
        for name in ("b", "c", "d", "e"):
            answered(queue, client=name)
        assert is_refused(queue, "flood")
        queue.put("bulk", [Embed(["storm"], reply_to="me")], "flood")  # the reply does not become a result

    def test_jobs_that_were_put_before_fill_redis_at_most_twice_as_much(self, queue: Queue) -> None:
        limit, jobs = 100_000, [Embed(["storm"]) for _ in range(60)]
        queue.put("bulk", jobs, "flood")
        other = Embed(["storm"])
        queue.put("bulk", [other], "b")
        consumer = Consumer(queue.broker, queue.keys, "w", max_unread_bytes=limit)
        for delivery in sorted(consumer.take({"bulk": 100}), key=lambda one: one.client == "b"):
            job_id = delivery.job().id
            vectors = np.zeros((1, 300 if job_id in (jobs[-1].id, other.id) else 2_000), np.float32)
            error = InvalidText("small") if job_id == jobs[-2].id else None
            reply = Reply.failure(job_id, error) if error else Reply(job_id, vectors=vectors)
            assert consumer.reply([Answer(delivery, reply)]) == 1
        assert limit < queue.unread.load().num_bytes < 2 * limit + len(jobs) * 2 * KEYS_BYTES
        statuses = [queue.status(job.id)[0] for job in jobs]
        assert statuses == sorted(statuses)  # the first are done, the others failed
        refused = queue.wait_result(jobs[-1].id, 0)
        assert refused is not None
        assert isinstance(refused.error, TooLarge)
        assert (refused.status, "fetch them, then submit again" in str(refused.error)) == ("failed", True)
        kept = queue.wait_result(jobs[-2].id, 0)  # for a small error there is always room
        assert kept is not None
        assert isinstance(kept.error, InvalidText)
        assert queue.status(other.id)[0] == "done"
        for job in jobs:
            queue.wait_result(job.id, 0)
        queue.wait_result(other.id, 0)
        assert queue.unread.load() == NOTHING

    def test_a_client_with_few_unread_bytes_is_not_refused_because_of_others(self, queue: Queue) -> None:
        set_limits(queue, LaneLimits(max_unread_bytes=200_000))
        answered(queue, 200)  # one put, which is accepted because nothing is unread yet
        assert queue.unread.load().num_bytes > 200_000
        assert is_refused(queue, "a")
        num_jobs = answer_until_refused(queue, "b")
        floor, held = 200_000 // 64, of_client(queue, "b")
        assert floor <= held < floor + held / num_jobs
        with pytest.raises(Overloaded, match=f"less than {floor:,}"):
            queue.put("bulk", [Embed(["storm"])], "b")


class TestOverHttp:
    def test_a_submit_is_refused_until_results_are_fetched(self, queue: Queue, make_app: MakeApp) -> None:
        api = make_app(max_result_mb=1).test_client()
        ids = []
        for _ in range(7):
            response = api.post("/v1/jobs", json={"op": "embed", "inputs": "storm"})
            assert response.status_code == 202
            ids.append(response.get_json()["id"])
            answer_all(queue, num_values=20_000)
        response = api.post("/v1/jobs", json={"op": "embed", "inputs": "storm"})
        code, message = error_of(response, 429)
        assert code == "overloaded"
        assert "fetch results" in message
        assert int(response.headers["Retry-After"]) > 0
        assert api.get(f"/v1/jobs/{ids[0]}/result").status_code == 200
        assert api.post("/v1/jobs", json={"op": "embed", "inputs": "storm"}).status_code == 202


class TestIdempotencyKeys:
    def lives(self, queue: Queue) -> list[int]:
        return sorted((queue.redis.ttl(name) for name in queue.redis.scan_iter(queue.keys.once("*"))), reverse=True)

    def submit(self, queue: Queue, client: str = "a") -> Job:
        job = Embed(["storm"])
        queue.put_once("bulk", job, job.id, client=client)
        answer_all(queue)
        assert queue.wait_result(job.id, 0) is not None
        return job

    def test_a_key_counts_for_its_client_until_it_has_expired(self, queue: Queue) -> None:
        job = self.submit(queue)
        assert queue.unread.load() == (0, KEYS_BYTES)
        assert of_client(queue, "a") == KEYS_BYTES
        sweep(queue)
        assert of_client(queue, "a") == KEYS_BYTES
        ((_, due),) = queue.redis.zrange(queue.keys.unread, 0, -1, withscores=True)
        assert 80_000 <= float(due) - float(queue.redis.time()[0]) <= 86_400
        assert queue.redis.ttl(queue.keys.record(job.id)) > 86_300
        for name in queue.redis.scan_iter(queue.keys.once("*")):
            queue.redis.delete(name)  # as if the key had expired
        sweep(queue)
        assert queue.redis.exists(queue.keys.unread, queue.keys.unread_load) == 0

    def test_keys_live_for_less_time_if_a_client_has_more_and_are_limited(self, queue: Queue) -> None:
        set_limits(queue, LaneLimits(max_unread_bytes=100 * KEYS_BYTES))
        first = self.submit(queue)
        for _ in range(49):
            self.submit(queue)
        with pytest.raises(Overloaded, match="and of idempotency keys"):
            self.submit(queue)
        lives = self.lives(queue)
        assert [life > 86_000 for life in lives] == [True] * 21 + [False] * 29
        assert lives[30] < lives[25] < lives[22]
        assert 0 < lives[-1] <= 60
        assert queue.put_once("bulk", Embed(["storm"]), first.id, client="a") == first.id  # the key is known
        self.submit(queue, "other")
