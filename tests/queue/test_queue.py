"""The queue on a real Redis: jobs are put, taken, cancelled and reclaimed; each is answered once, and none is lost."""

import numpy as np
import pytest
from conftest import PATIENCE_S
from queues import ALIVE_S, Queue

import shoal.queue.consumer
from shoal.contract.jobs import LANES, Job
from shoal.contract.replies import Reply
from shoal.errors import TooLarge, UnknownJob
from shoal.operations import Embed
from shoal.queue.consumer import MAX_WRITE_BYTES, Answer, Delivery
from shoal.settings import DEFAULTS


def submitted() -> Job:
    return Embed(["storm"])


def addressed(address: str = "me") -> Job:
    return Embed(["storm"], reply_to=address)


def take_one(queue: Queue, consumer: str = "a") -> Delivery:
    (delivery,) = queue.take(consumer, ["interactive"], 1)
    return delivery


def take_all(queue: Queue, consumer: str) -> list[Delivery]:
    return queue.take(consumer, LANES, 100)


def answer(delivery: Delivery, model: str = "") -> Answer:
    job = delivery.job()
    return Answer(delivery, Reply(job.id, tokens=[3], timings={"queue_s": 0.5}, model=model), job.reply_to)


def num_pending(queue: Queue) -> int:
    return sum(queue.redis.zcard(key) for key in queue.redis.scan_iter(queue.keys.held("*")))


def test_the_age_of_a_lane_is_the_age_of_its_oldest_unanswered_job(queue: Queue) -> None:
    first, second = addressed(), addressed()
    queue.put("bulk", [first, second])
    now_ms = int(queue.redis.time()[0]) * 1000
    times = {first.id: now_ms - 200_000, second.id: now_ms - 100_000}
    queue.redis.zadd(queue.keys.of_lane("bulk", "jobs"), times)
    deliveries = queue.take("a", LANES, 10)
    assert 200 <= queue.loads()["bulk"].oldest_age_s < 200 + PATIENCE_S
    assert queue.loads()["interactive"].oldest_age_s == 0
    queue.reply(answer(delivery) for delivery in deliveries[:1])
    assert 100 <= queue.loads()["bulk"].oldest_age_s < 100 + PATIENCE_S


def test_the_wait_of_a_job_is_never_negative() -> None:
    delivery = Delivery("interactive", "a", b"", "w", put_ms=1_500)
    assert [delivery.queued_s(now) for now in (4.0, 1.0)] == [2.5, 0.0]  # the clock may be behind Redis's


def test_replies_are_written_in_groups_of_limited_bytes(queue: Queue) -> None:
    sizes = [MAX_WRITE_BYTES // 2, 10, MAX_WRITE_BYTES + 1, MAX_WRITE_BYTES // 2, MAX_WRITE_BYTES + 1]
    queue.put("interactive", [addressed() for _ in sizes])
    deliveries = queue.take("a", LANES, 10)
    replies = [
        Reply(delivery.job().id, vectors=np.zeros((1, size // 4), np.float32))
        for delivery, size in zip(deliveries, sizes, strict=True)
    ]
    written: list[int] = []
    answers = [Answer(delivery, reply, "me") for delivery, reply in zip(deliveries, replies, strict=True)]
    count = queue.consumer("a").reply(answers, lambda: written.append(queue.redis.xlen(queue.keys.replies("me"))))
    assert count == len(sizes)
    assert written == [0, 2, 3, 4]
    stream = queue.redis.xrange(queue.keys.replies("me"))
    are_large = [len(fields[b"reply"]) > MAX_WRITE_BYTES for _, fields in stream]
    assert are_large == [False, False, False, True, True]  # large replies delay no small one


def test_a_job_that_was_never_put_is_unknown(queue: Queue) -> None:
    for ask in (queue.status, queue.cancel, lambda job_id: queue.wait_result(job_id, 5)):
        with pytest.raises(UnknownJob, match='no job "nobody"'):
            ask("nobody")


def pushed(queue: Queue) -> Job:
    job = Embed(["storm"])
    queue.redis.rpush(queue.keys.lane("bulk"), job.pack())
    return job


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
    assert num_pending(queue) == 0
    assert queue.backlog()["bulk"] == 0


@pytest.mark.parametrize("what", ["jobs", "pushed", "words", "overflow"])
def test_a_pushed_job_is_not_lost_while_another_program_has_a_key_of_its_lane(queue: Queue, what: str) -> None:
    job, other = pushed(queue), submitted()
    key = queue.keys.of_lane("bulk", what) if what == "jobs" else f"{queue.keys.root}:lane:pushed"
    if value := {"words": "another program", "overflow": 2**63 - 1}.get(what):
        queue.redis.set(key, value)
    else:
        queue.redis.hset(key, "another", "program")
    queue.put("interactive", [other])
    assert [delivery.key for delivery in queue.take("a", LANES, 2)] == [other.id]  # the other lane goes on
    queue.redis.delete(key)
    queue.redis.set(queue.keys.record("+1"), "another program", ex=60)
    (delivery,) = queue.take("a", LANES, 1)
    assert delivery.job() == job


def test_a_pushed_job_that_cannot_be_started_is_answered_and_its_record_says_so(queue: Queue) -> None:
    job = pushed(queue)
    (delivery,) = queue.take("a", LANES, 1)
    assert delivery.put_as is None
    assert queue.reply([answer(delivery)]) == 1
    assert queue.status(job.id)[0] == "done"
    reply = queue.wait_result(job.id, 0)
    assert reply is not None
    assert reply.id == job.id


def test_a_refused_push_with_the_id_of_a_job_under_way_does_not_touch_this_job(queue: Queue) -> None:
    job = submitted()
    queue.put("interactive", [job])
    queue.redis.rpush(queue.keys.lane("bulk"), job.pack())
    (delivery,) = queue.take("a", ["bulk"], 1)
    assert queue.reply([answer(delivery)]) == 1
    assert queue.status(job.id)[0] == "queued"
    assert queue.wait_result(job.id, 0) is None
    assert queue.reply([answer(take_one(queue))]) == 1
    assert queue.wait_result(job.id, 0)


def test_what_dead_workers_held_waits_again_before_the_others_in_its_order(queue: Queue) -> None:
    jobs = [addressed() for _ in range(6)]
    queue.put("interactive", jobs)
    queue.pool.announce("alive")
    held = {worker: queue.take(worker, LANES, 2) for worker in ("dead", "alive")}
    queue.die()
    assert queue.consumer("alive").lost(held["alive"]) == []
    found: list[str] = []
    for _ in range(2):  # each suspect comes alone
        (delivery,) = queue.take("me", LANES, 9)
        assert (delivery.deaths, delivery.died) == (1, "dead")
        assert queue.take("me", LANES, 9) == []
        assert found or queue.take("other", ["interactive"], 1)[0].key == jobs[4].id  # it takes no suspects
        queue.reply([answer(delivery)])
        found.append(delivery.key)
    assert found == [job.id for job in jobs[:2]]
    assert [delivery.key for delivery in queue.take("me", LANES, 9)] == [jobs[5].id]


def test_a_suspect_that_ends_its_worker_is_the_only_job_that_is_blamed(queue: Queue) -> None:
    (suspect, *others) = jobs = [addressed() for _ in range(4)]
    queue.put("interactive", jobs)
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


def test_jobs_of_a_worker_that_leaves_are_no_suspects(queue: Queue) -> None:
    queue.put("interactive", [addressed()])
    take_one(queue, "a")
    queue.leave("a")
    delivery = take_one(queue, "b")
    assert delivery.deaths == 0


def test_a_worker_keeps_the_jobs_that_it_knows(queue: Queue) -> None:
    queue.put("interactive", [addressed() for _ in range(2)])
    known, unknown = queue.take("a", LANES, 2)
    assert queue.consumer("a").reclaim([known]) == (1, {})
    assert [delivery.key for delivery in take_all(queue, "b")] == [unknown.key]


def test_a_job_that_was_cancelled_after_it_was_taken_does_not_start(queue: Queue) -> None:
    jobs = [submitted() for _ in range(2)]
    queue.put("interactive", jobs)
    deliveries = queue.take("a", LANES, 2)
    assert queue.cancel(jobs[0].id) == "cancelled"
    assert queue.start("a", deliveries) == [False, True]


@pytest.mark.parametrize(("num_taken", "ring"), [(0, "new"), (4, "old")])
def test_a_client_leaves_its_ring_with_its_last_waiting_job(queue: Queue, num_taken: int, ring: str) -> None:
    jobs, key = [addressed() for _ in range(num_taken + 1)], queue.keys.of_lane("interactive", ring)
    queue.put("interactive", jobs)
    queue.take("a", ["interactive"], num_taken)
    assert queue.redis.exists(key)
    queue.withdraw([jobs[-1].id])
    assert not queue.redis.exists(key)


@pytest.mark.parametrize("share", [0.6, 1.1])
def test_after_a_silence_of_all_each_worker_has_time_for_a_heartbeat_before_it_counts_as_dead(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(shoal.queue.consumer, "ALIVE_S", ALIVE_S)
    queue.put("interactive", [addressed()])
    take_one(queue, "a")
    queue.may_look("b")
    queue.redis.zincrby(queue.keys.alive, -share * ALIVE_S * 1_000, "b")  # Redis was away for this share of the time
    assert queue.consumer("b").reclaim(()) == (0, {})
    queue.pool.announce("b")
    queue.pool.announce("c")
    assert queue.consumer("b").reclaim(()) == (0, {})
    queue.may_look("b")  # the time is over
    queue.pool.announce("c")
    queue.leave("b")  # a worker that leaves does not look: it would count no dead worker
    assert queue.consumer("b").reclaim(()) == (0, {"a": 1})


def test_one_worker_at_a_time_looks_for_dead_ones(queue: Queue) -> None:
    for name in ("b", "c"):
        queue.may_look(name)
    assert queue.consumer("b").reclaim(()) == (0, {})
    queue.put("interactive", [addressed()])
    take_one(queue, "a")
    assert queue.consumer("c").reclaim(()) == (0, {})
    assert 0 < queue.redis.pttl(queue.keys.reclaimed) <= 900
    queue.redis.pexpire(queue.keys.reclaimed, 3_600_000)  # as after the clock of Redis was set back
    assert queue.consumer("c").reclaim(()) == (0, {"a": 1})


def test_a_reply_over_the_limit_is_too_large(queue: Queue) -> None:
    queue.put("interactive", [addressed()])
    delivery = take_one(queue)
    vectors = np.zeros((DEFAULTS.max_reply_mb * 2**20 // 4_000 + 1, 1_000), np.float32)
    queue.reply([Answer(delivery, Reply(delivery.job().id, vectors=vectors), "me")])
    (reply,) = queue.inbox("me").wait()
    assert isinstance(reply.error, TooLarge)


def test_of_two_workers_with_the_same_job_only_the_one_that_holds_it_is_heard(queue: Queue) -> None:
    job = submitted()
    queue.put("interactive", [job])
    slow = take_one(queue, "slow")
    queue.die("slow")
    quick = take_all(queue, "quick")[0]
    assert quick.key == slow.key
    assert queue.reply([answer(slow, "slow")]) == 0
    assert queue.reply([answer(quick, "quick")]) == 1
    assert queue.reply([answer(slow, "slow")]) == 0
    assert queue.redis.llen(queue.keys.result(job.id)) == 1
    reply = queue.wait_result(job.id, 0)
    assert reply is not None
    assert reply.model == "quick"
