"""The queue on a real Redis: jobs are put, taken, cancelled and reclaimed. Each is answered once, and none is lost."""

import numpy as np
import pytest
from conftest import PATIENCE_S
from queues import ALIVE_S, Queue

import shoal.queue.consumer
from shoal.contract.jobs import LANES, Job
from shoal.contract.replies import Reply
from shoal.errors import TooLarge, UnknownJob
from shoal.operations import Embed
from shoal.queue import scripts
from shoal.queue.consumer import MAX_WRITE_BYTES, Answer, Delivery
from shoal.settings import DEFAULTS


def put(queue: Queue, num: int = 1) -> list[Job]:
    jobs: list[Job] = [Embed(["storm"], reply_to="me") for _ in range(num)]
    queue.put("interactive", jobs)
    return jobs


def pushed(queue: Queue) -> Job:
    job = Embed(["storm"])
    queue.redis.rpush(queue.keys.lane("bulk"), job.pack())
    return job


def test_the_age_of_a_lane_is_the_age_of_its_oldest_unanswered_job(queue: Queue) -> None:
    first, second = put(queue, 2)
    now_ms = int(queue.redis.time()[0]) * 1000
    times = {first.id: now_ms - 200_000, second.id: now_ms - 100_000}
    queue.redis.zadd(queue.keys.of_lane("interactive", "jobs"), times)
    assert 200 <= queue.loads()["interactive"].oldest_age_s < 200 + PATIENCE_S
    assert queue.loads()["bulk"].oldest_age_s == 0
    queue.answer(queue.take("a", LANES, 1))
    assert 100 <= queue.loads()["interactive"].oldest_age_s < 100 + PATIENCE_S
    delivery = Delivery("interactive", "a", b"", "w", put_ms=1_500)
    assert [delivery.queued_s(now) for now in (4.0, 1.0)] == [2.5, 0.0]  # the clock may be behind Redis's


def test_replies_are_written_in_groups_of_limited_bytes(queue: Queue) -> None:
    sizes = [MAX_WRITE_BYTES // 2, 10, MAX_WRITE_BYTES + 1, MAX_WRITE_BYTES // 2, MAX_WRITE_BYTES + 1]
    put(queue, len(sizes))
    written: list[int] = []
    answers = [
        Answer(delivery, Reply(delivery.job().id, vectors=np.zeros((1, size // 4), np.float32)), "me")
        for delivery, size in zip(queue.take("a", LANES, 10), sizes, strict=True)
    ]
    assert queue.consumer("a").reply(answers, lambda: written.append(queue.redis.xlen(queue.keys.replies("me")))) == 5
    assert written == [0, 2, 3, 4]
    stream = queue.redis.xrange(queue.keys.replies("me"))
    are_large = [len(fields[b"reply"]) > MAX_WRITE_BYTES for _, fields in stream]
    assert are_large == [False, False, False, True, True]  # large replies delay no small one
    queue.redis.xadd(queue.keys.replies("me"), {"reply": b"no reply"})
    assert len(queue.inbox("me").wait()) == 5


def test_a_pushed_job_has_a_status_from_its_start_and_can_be_cancelled_then(queue: Queue) -> None:
    job = pushed(queue)
    (delivery,) = queue.take("a", LANES, 1)
    with pytest.raises(UnknownJob):
        queue.cancel(job.id)
    assert queue.start("a", [delivery]) == [True]
    assert queue.status(job.id)[0] == "running"
    assert queue.wait_result(job.id, 0) is None
    assert queue.cancel(job.id) == "cancelled"
    assert queue.redis.delete(queue.keys.result(job.id))
    with pytest.raises(UnknownJob, match="is cancelled, and its result has expired"):
        queue.wait_result(job.id, 0)
    assert not queue.redis.exists(queue.keys.held("a"))
    assert queue.backlog()["bulk"] == 0
    refused = pushed(queue)
    queue.put("interactive", [refused])  # another job under way has the same id
    assert queue.answer(queue.take("a", ["bulk"], 1)) == 1
    assert queue.status(refused.id)[0] == "queued"
    assert queue.wait_result(refused.id, 0) is None


@pytest.mark.parametrize("what", ["jobs", "new", "of:", "pushed", "words", "overflow"])
def test_a_pushed_job_is_not_lost_while_another_program_has_a_key_of_its_lane(queue: Queue, what: str) -> None:
    job = pushed(queue)
    key = queue.keys.of_lane("bulk", what) if what in ("jobs", "new", "of:") else f"{queue.keys.root}:lane:pushed"
    if value := {"words": "another program", "overflow": 2**63 - 1}.get(what):
        queue.redis.set(key, value)
    else:
        queue.redis.hset(key, "another", "program")
    (other,) = put(queue)
    assert [delivery.key for delivery in queue.take("a", LANES, 2)] == [other.id]  # the other lane goes on
    queue.redis.delete(key)
    queue.redis.set(queue.keys.record("+1"), "another program", ex=60)
    (delivery,) = queue.take("a", LANES, 1)
    assert delivery.job() == job


def test_jobs_of_dead_workers_wait_again_in_order_before_the_others(queue: Queue) -> None:
    jobs = put(queue, 6)
    queue.pool.announce("alive")
    held = {worker: queue.take(worker, LANES, 2) for worker in ("dead", "alive")}
    queue.die()
    assert queue.consumer("alive").lost(held["alive"]) == []
    found: list[str] = []
    for _ in range(2):  # each suspect comes alone
        (delivery,) = queue.take("me", LANES, 9)
        assert (delivery.deaths, delivery.died) == (1, "dead")
        assert queue.redis.llen(queue.keys.of_lane("bulk", "wake")) == 1 - len(found)  # an idle worker takes the next
        assert queue.take("me", LANES, 9) == []
        assert found or queue.take("other", ["interactive"], 1)[0].key == jobs[4].id  # this worker takes no suspects
        queue.answer([delivery])
        found.append(delivery.key)
    assert found == [job.id for job in jobs[:2]]
    assert [delivery.key for delivery in queue.take("me", LANES, 9)] == [jobs[5].id]


def test_a_suspect_that_ends_its_worker_is_the_only_job_that_is_blamed(queue: Queue) -> None:
    (suspect, *others) = put(queue, 4)
    assert len(queue.take("dead", LANES, 1)) == 1
    queue.pool.announce("next")
    consumer = queue.consumer("next")
    assert len(consumer.take({"interactive": 2})) == 2
    queue.die("dead")
    (delivery,) = consumer.take({"interactive": 1}, takes_suspects=True)
    assert (delivery.key, delivery.deaths, consumer.more_suspects) == (suspect.id, 1, False)
    queue.die("next")
    found = [queue.take(name, LANES, 9) for name in ("a", "b")]
    assert [(one.key, one.deaths) for one in found[0]] == [(suspect.id, 2)]
    assert [(one.key, one.deaths) for one in found[1]] == [(job.id, 0) for job in others]


def test_a_worker_keeps_the_jobs_that_it_knows_and_leaves_no_suspects(queue: Queue) -> None:
    put(queue, 2)
    known, unknown = queue.take("a", LANES, 2)
    assert queue.consumer("a").reclaim([known]) == (1, {})
    assert [delivery.key for delivery in queue.take("b", LANES, 100)] == [unknown.key]
    queue.leave("a")
    assert [(delivery.key, delivery.deaths) for delivery in queue.take("b", LANES, 100)] == [(known.key, 0)]


@pytest.mark.parametrize("share", [0.6, 1.1])
def test_after_a_silence_of_all_each_worker_has_time_for_a_heartbeat_before_it_counts_as_dead(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(shoal.queue.consumer, "ALIVE_S", ALIVE_S)
    put(queue)
    queue.take("a", LANES, 1)
    queue.may_look("b")
    queue.redis.zincrby(queue.keys.alive, -share * ALIVE_S * 1_000, "b")  # Redis was away for this share of the time
    assert queue.consumer("b").reclaim(()) == (0, {})
    queue.pool.announce("b")
    queue.pool.announce("c")
    assert queue.consumer("b").reclaim(()) == (0, {})
    queue.may_look("b")  # the time is over
    queue.pool.announce("c")
    queue.leave("b")  # a worker that leaves does not look for dead workers
    assert queue.consumer("b").reclaim(()) == (0, {"a": 1})


def test_one_worker_at_a_time_looks_for_dead_ones(queue: Queue) -> None:
    for name in ("b", "c"):
        queue.may_look(name)
    assert queue.consumer("b").reclaim(()) == (0, {})
    put(queue)
    queue.take("a", LANES, 1)
    assert queue.consumer("c").reclaim(()) == (0, {})
    assert 0 < queue.redis.pttl(queue.keys.reclaimed) <= 900
    queue.redis.pexpire(queue.keys.reclaimed, 3_600_000)  # as if the clock of Redis had been set back
    assert queue.consumer("c").reclaim(()) == (0, {"a": 1})
    assert not queue.redis.exists(queue.keys.reclaimed)
    for n in range(9):
        queue.put("bulk", [Embed(["storm"])])
        queue.take(f"dead{n}", ["bulk"], 1)
    queue.may_look("c")
    nums_dead = [len(queue.consumer("c").reclaim(())[1]) for _ in range(3)]
    assert nums_dead == [8, 1, 0]  # after a look that found dead workers, the next one may follow at once


def test_an_address_that_watches_a_job_again_takes_no_place_of_another(queue: Queue) -> None:
    queue.put("interactive", [job := Embed(["storm"])])
    watch, nums = scripts.load("watch"), []
    for address in ("a", "b", "b", *map(str, range(62)), "c"):
        queue.broker.run(watch, [queue.keys.root], {"id": job.id, "address": address})
        nums.append(len(set((queue.redis.hget(queue.keys.record(job.id), "watchers") or b"").split())))
    assert nums == [1, 2, 2, *range(3, 65), 64]
    queue.start("w", queue.take("w", LANES, 1))
    assert queue.broker.run(watch, [queue.keys.root], {"id": job.id, "address": "d"})["is_open"]  # while it runs too


def test_a_reply_over_the_limit_is_too_large(queue: Queue) -> None:
    put(queue)
    queue.answer(
        queue.take("a", LANES, 1), vectors=np.zeros((DEFAULTS.max_reply_mb * 2**20 // 4_000 + 1, 1_000), np.float32)
    )
    (reply,) = queue.inbox("me").wait()
    assert isinstance(reply.error, TooLarge)


def test_of_two_workers_with_the_same_job_only_the_one_that_holds_it_is_heard(queue: Queue) -> None:
    job = Embed(["storm"])
    queue.put("interactive", [job])
    slow = queue.take("slow", LANES, 1)
    queue.die("slow")
    quick = queue.take("quick", LANES, 100)
    assert [one.key for one in quick] == [one.key for one in slow]
    assert queue.answer(slow, model="slow") == 0
    assert queue.answer(quick, model="quick") == 1
    assert queue.answer(slow, model="slow") == 0
    assert queue.redis.llen(queue.keys.result(job.id)) == 1
    reply = queue.wait_result(job.id, 0)
    assert reply is not None
    assert reply.model == "quick"


def test_a_refused_push_with_the_id_of_a_job_under_way_does_not_touch_this_job(queue: Queue) -> None:
    job = pushed(queue)
    queue.put("interactive", [job])
    assert queue.answer(queue.take("a", ["bulk"], 1)) == 1
    assert queue.status(job.id)[0] == "queued"
    assert queue.wait_result(job.id, 0) is None
    assert queue.answer(queue.take("a", ["interactive"], 1)) == 1
    assert queue.wait_result(job.id, 0)


def test_a_job_that_was_cancelled_after_it_was_taken_does_not_start(queue: Queue) -> None:
    jobs = [Embed(["storm"]) for _ in range(2)]
    queue.put("interactive", jobs)
    deliveries = queue.take("a", LANES, 2)
    assert queue.cancel(jobs[0].id) == "cancelled"
    assert queue.start("a", deliveries) == [False, True]


@pytest.mark.parametrize(("num_taken", "ring"), [(0, "new"), (4, "old")])
def test_a_client_leaves_its_ring_with_its_last_waiting_job(queue: Queue, num_taken: int, ring: str) -> None:
    jobs, key = put(queue, num_taken + 1), queue.keys.of_lane("interactive", ring)
    queue.take("a", ["interactive"], num_taken)
    assert queue.redis.exists(key)
    queue.withdraw([jobs[-1].id])
    assert not queue.redis.exists(key)
    queue.put("interactive", [submitted := Embed(["storm"])])
    queue.withdraw([submitted.id])
    assert not queue.redis.exists(queue.keys.record(submitted.id))
