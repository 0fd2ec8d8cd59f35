"""The queue on a real Redis: what is put is taken, answered once, cancelled, claimed, and never lost."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE_S, RedisServer
from queues import Queue

from shoal import operations
from shoal.blocking import run_now
from shoal.broker.commands import BlockingCommands
from shoal.broker.script import Script, ScriptCall
from shoal.errors import InvalidText, Overloaded, TooLarge, Unavailable, UnknownJob
from shoal.jobs import LANES, Job
from shoal.keys import Keys
from shoal.operations import Embed
from shoal.queue.answer import MAX_WRITE_BYTES, Answer
from shoal.queue.consumer import GROUP
from shoal.queue.dead_letters import DeadLetter
from shoal.queue.delivery import Delivery
from shoal.queue.lane import LaneLimits, LaneLoad, Source
from shoal.queue.packed_jobs import MAX_JOINED_BYTES, MAX_JOINED_JOBS, PackedJobs, group_puts
from shoal.queue.producer import AsyncProducer
from shoal.replies import Reply
from shoal.settings import DEFAULTS


def submitted() -> Job:
    """A job with a record, as `Client.submit` makes it."""
    return Embed(["storm"])


def addressed(address: str = "me") -> Job:
    """A job whose reply goes to an address."""
    return Embed(["storm"], reply_to=address)


def take_one(queue: Queue, consumer: str = "a") -> Delivery:
    """The next interactive job."""
    (delivery,) = queue.take(consumer, ["interactive"], 1)
    return delivery


def answer(delivery: Delivery, model: str = "") -> Answer:
    """A reply to the delivered job."""
    job = operations.unpack(delivery.data)
    return Answer(delivery, Reply(job.id, tokens=[3], timings={"queue_s": 0.5}, model=model), job.reply_to)


def num_pending(queue: Queue) -> int:
    """Jobs delivered and not answered."""
    return sum(queue.redis.xpending(queue.keys.lane(lane), GROUP)["pending"] for lane in LANES)


def test_jobs_come_out_in_the_order_they_went_in(queue: Queue) -> None:
    jobs = [submitted() for _ in range(5)]
    queue.put("interactive", jobs)
    deliveries = queue.take("a", LANES, 10)
    assert [operations.unpack(delivery.data) for delivery in deliveries] == jobs
    assert {delivery.lane for delivery in deliveries} == {"interactive"}
    assert queue.take("b", LANES, 10) == []


def test_put_takes_all_or_none(queue: Queue) -> None:
    queue.limits = LaneLimits(max_jobs=3)
    queue.put("bulk", [submitted(), submitted()])
    with pytest.raises(Overloaded, match="2 unanswered jobs"):
        queue.put("bulk", [submitted(), submitted()])
    assert queue.backlog() == {"interactive": 0, "bulk": 2}
    queue.put("bulk", [submitted()])
    queue.put("interactive", [addressed()])
    assert queue.backlog() == {"interactive": 1, "bulk": 3}


def test_each_put_is_refused_or_accepted_by_itself(queue: Queue) -> None:
    queue.limits = LaneLimits(max_jobs=2)
    accepted, refused = queue.put_many([PackedJobs.pack("bulk", [addressed() for _ in range(size)]) for size in (2, 1)])
    assert isinstance(accepted, list)
    assert isinstance(refused, Overloaded)


def test_puts_of_one_client_that_follow_each_other_are_one_run_of_the_script(own_redis: RedisServer) -> None:
    queue, large = Queue.connect(own_redis.url, Keys()), Embed(["x" * MAX_JOINED_BYTES], reply_to="me")
    clients = ["a", "a", "b", "b", "b", "a"]
    puts = [PackedJobs.pack("bulk", [addressed(), addressed()], client=client) for client in clients]
    puts += [PackedJobs.pack("bulk", [job], client="a") for job in (large, submitted(), submitted())]
    queue.put_many(puts[:1])  # so that Redis knows the script
    before = queue.redis.info("commandstats")["cmdstat_evalsha"]["calls"]
    outcomes = queue.put_many(puts[1:])
    num_runs = queue.redis.info("commandstats")["cmdstat_evalsha"]["calls"] - before
    assert num_runs == len([["a"], ["b", "b", "b"], ["a"], ["large"], ["submitted"], ["submitted"]])
    found = [place for outcome in outcomes if isinstance(outcome, list) for place in outcome if place]
    assert [place.job_id for place in found] == [job.id for put in puts[1:] for job in put.jobs]
    assert queue.holds(found) == [True] * 13
    at_front = [operations.unpack(delivery.data).id for delivery in queue.take("w", ["bulk"], 99, has_overflow=False)]
    assert at_front == [job.id for put in puts for job in put.jobs if job is not large]
    assert queue.status(puts[-1].jobs[0].id)[0] == "queued"
    queue.close()


def test_a_put_that_is_at_fault_takes_no_other_with_it(queue: Queue) -> None:
    puts = [PackedJobs.pack("bulk", [addressed()]) for _ in range(3)]
    object.__setattr__(puts[1].jobs[0], "id", "no name")
    first, second, third = queue.put_many(puts)
    assert isinstance(second, Unavailable)
    assert [len(outcome) for outcome in (first, third) if isinstance(outcome, list)] == [1, 1]
    assert queue.backlog()["bulk"] == 2


def test_a_run_of_the_script_has_so_many_jobs() -> None:
    size = MAX_JOINED_JOBS // 2
    puts = [PackedJobs.pack("bulk", [addressed() for _ in range(size)]) for _ in range(5)]
    assert [sum(len(put.jobs) for put in group) for group in group_puts(puts)] == [2 * size, 2 * size, size]


class OneRoundTrip(BlockingCommands):
    """Commands to a Redis that answers one round trip, and then no more."""

    num_left = 1

    def _check(self) -> None:
        self.num_left -= 1
        if self.num_left < 0:
            raise Unavailable("Redis does not answer")

    async def execute(self, *command: Any, block_s: float = 0.0) -> Any:
        self._check()
        return await super().execute(*command, block_s=block_s)

    async def run(self, script: Script, keys: Sequence[str], arguments: Mapping[str, Any]) -> Any:
        self._check()
        return await super().run(script, keys, arguments)

    async def run_many(self, script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
        self._check()
        return await super().run_many(script, calls)


def test_a_put_that_was_accepted_has_its_place_though_redis_fails_before_others_are_made(queue: Queue) -> None:
    producer = AsyncProducer(OneRoundTrip(queue.broker), queue.keys, LaneLimits(max_jobs=2, max_unread_bytes=0))
    puts = [PackedJobs.pack("bulk", [addressed()], client=client) for client in ("a", "b", "b")]
    puts.append(PackedJobs.pack("bulk", [submitted()], client="c"))
    accepted, second, third, unread = run_now(producer.put_many(puts))
    assert isinstance(accepted, list)
    assert queue.holds([place for place in accepted if place]) == [True]
    assert (type(second), type(third), type(unread)) == (Unavailable, Unavailable, Overloaded)
    assert queue.backlog()["bulk"] == 1


def test_a_submitted_job_put_twice_runs_once(queue: Queue) -> None:
    job = submitted()
    queue.put("interactive", [job])
    queue.put("interactive", [job])
    assert queue.backlog()["interactive"] == 1


def test_a_text_that_utf8_cannot_hold_is_refused_before_anything_is_written(queue: Queue) -> None:
    with pytest.raises(InvalidText, match=r"text 1: lone surrogate '\\ud800' at character 2"):
        queue.put("interactive", [Embed(["fine", "no\ud800"])])
    assert queue.backlog()["interactive"] == 0


def test_a_reply_goes_to_its_address(queue: Queue) -> None:
    jobs = [addressed("me"), addressed("you"), addressed("me")]
    queue.put("interactive", jobs)
    assert queue.reply(answer(delivery) for delivery in queue.take("a", LANES, 10)) == 3
    assert [reply.id for reply in queue.inbox("me").wait()] == [jobs[0].id, jobs[2].id]
    assert [reply.id for reply in queue.inbox("you").wait()] == [jobs[1].id]
    assert queue.backlog()["interactive"] == 0


def test_a_job_whose_reply_goes_to_an_address_has_no_record(queue: Queue) -> None:
    job = addressed()
    queue.put("interactive", [job])
    assert not queue.redis.exists(queue.keys.record(job.id))


def test_a_lane_holds_the_jobs_of_its_front_and_its_overflow(queue: Queue) -> None:
    assert queue.loads() == dict.fromkeys(LANES, LaneLoad(0, 0, 0))
    jobs = [addressed(), *(Embed(["storm"] * 40, reply_to="me") for _ in range(3))]
    queue.put("interactive", jobs)
    queue.take("a", ["interactive"], 1)
    num_bytes = sum(len(job.pack()) for job in jobs)
    load = queue.loads()["interactive"]
    assert load == LaneLoad(4, 121, num_bytes, load.oldest_age_s)


@pytest.mark.parametrize("is_taken", [False, True])
def test_the_age_of_a_lane_is_that_of_the_first_job_at_its_front_or_in_its_overflow(
    queue: Queue, is_taken: bool
) -> None:
    """A job of the overflow has waited before it came into the stream."""
    queue.join()
    now_ms = int(queue.redis.time()[0]) * 1000
    fields = {"job": addressed().pack(), "texts": 1}
    for stream, age_s in ((queue.keys.lane("interactive"), 100), (queue.keys.lane("bulk"), 50)):
        queue.redis.xadd(stream, fields, id=f"{now_ms - 1000 * age_s}-0")
    queue.redis.xadd(queue.keys.overflow("bulk"), fields | {"put_ms": now_ms - 200_000})
    queue.put("interactive", [addressed()])
    if is_taken:
        queue.take("a", LANES, 10)
    ages = {lane: load.oldest_age_s for lane, load in queue.loads().items()}
    assert 100 <= ages["interactive"] < 100 + PATIENCE_S
    assert 200 <= ages["bulk"] < 200 + PATIENCE_S


def test_the_wait_of_a_job_is_counted_from_when_redis_took_it_in() -> None:
    delivery = Delivery("interactive", b"1-0", b"", put_ms=1_500)
    assert delivery.queued_s(4.0) == 2.5
    assert delivery.queued_s(1.0) == 0.0


def test_replies_are_written_in_groups_of_so_many_bytes(queue: Queue) -> None:
    sizes = [MAX_WRITE_BYTES // 2, 10, MAX_WRITE_BYTES + 1, MAX_WRITE_BYTES // 2, MAX_WRITE_BYTES + 1]
    queue.put("interactive", [addressed() for _ in sizes])
    deliveries = queue.take("a", LANES, 10)
    replies = [
        Reply(operations.unpack(delivery.data).id, vectors=np.zeros((1, size // 4), np.float32))
        for delivery, size in zip(deliveries, sizes, strict=True)
    ]
    written: list[int] = []
    answers = [Answer(delivery, reply, "me") for delivery, reply in zip(deliveries, replies, strict=True)]
    count = queue.consumer("a").reply(answers, lambda: written.append(queue.redis.xlen(queue.keys.replies("me"))))
    assert count == len(sizes)
    assert written == [0, 2, 3, 4]  # the large ones come last, each alone


def test_nothing_to_reply_or_to_withdraw_is_no_round_trip(queue: Queue) -> None:
    assert queue.reply([]) == 0
    assert queue.withdraw([]) == 0


def test_wake_ends_a_wait_without_a_reply(queue: Queue) -> None:
    inbox = queue.inbox("me")
    inbox.wake()
    assert inbox.wait() == []


def test_of_two_workers_with_the_same_job_only_the_first_is_heard(queue: Queue) -> None:
    job = submitted()
    queue.put("interactive", [job])
    slow = take_one(queue, "slow")
    quick = queue.claim("quick", alive={"quick"})
    assert quick is not None
    assert quick.entry == slow.entry
    assert queue.reply([answer(quick, "quick")]) == 1
    assert queue.reply([answer(slow, "slow")]) == 0
    assert queue.redis.llen(queue.keys.result(job.id)) == 1
    reply = queue.wait_result(job.id, 0)
    assert reply is not None
    assert reply.model == "quick"


def test_a_job_is_queued_then_running_then_done(queue: Queue) -> None:
    job = submitted()
    queue.put("interactive", [job])
    assert queue.status(job.id) == ("queued", {})
    delivery = take_one(queue)
    assert queue.start("a", [delivery]) == [True]
    assert queue.status(job.id) == ("running", {})
    assert queue.wait_result(job.id, 0) is None
    queue.reply([answer(delivery)])
    assert queue.status(job.id) == ("done", {"queue_s": 0.5})


def test_a_job_that_was_never_put_is_unknown(queue: Queue) -> None:
    for ask in (queue.status, queue.cancel, lambda job_id: queue.wait_result(job_id, 5)):
        with pytest.raises(UnknownJob, match='no job "nobody"'):
            ask("nobody")


def test_a_queued_job_is_cancelled(queue: Queue) -> None:
    job = submitted()
    queue.put("bulk", [job])
    assert queue.cancel(job.id) == "cancelled"
    assert queue.cancel(job.id) == "cancelled"
    assert queue.backlog()["bulk"] == 0
    reply = queue.wait_result(job.id, 0)
    assert reply is not None
    assert (reply.status, reply.error.code if reply.error else "") == ("cancelled", "cancelled")


def test_a_job_cancelled_between_taking_and_starting_does_not_run(queue: Queue) -> None:
    job = submitted()
    queue.put("interactive", [job])
    delivery = take_one(queue)
    assert queue.cancel(job.id) == "cancelled"
    assert queue.start("a", [delivery]) == [False]
    assert queue.reply([answer(delivery)]) == 0
    assert num_pending(queue) == 0


def test_a_worker_that_was_paused_before_it_starts_a_job_marks_none_that_another_has_answered(queue: Queue) -> None:
    job = submitted()
    queue.put("interactive", [job])
    paused = take_one(queue, "paused")
    claimed = queue.claim("other", {"other"})
    assert claimed
    assert queue.start("paused", [paused]) == [False]
    assert queue.status(job.id)[0] == "queued"
    queue.reply([answer(claimed)])
    queue.redis.delete(queue.keys.record(job.id), queue.keys.result(job.id))  # as when the result's life is over
    assert queue.start("paused", [paused]) == [False]
    assert not queue.redis.exists(queue.keys.record(job.id))


@pytest.mark.parametrize("first", [0, 1])
def test_of_several_jobs_those_without_an_address_have_a_record(queue: Queue, first: int) -> None:
    jobs = [Embed(["storm"]), addressed()]
    queue.put("bulk", jobs if first == 0 else jobs[::-1])
    assert queue.cancel(jobs[0].id) == "cancelled"
    with pytest.raises(UnknownJob):
        queue.status(jobs[1].id)
    (delivery,) = queue.take("a", LANES, 2)
    assert not delivery.has_record
    assert queue.reply([answer(delivery)]) == 1


def test_an_address_of_all_jobs_leaves_none_with_a_record(queue: Queue) -> None:
    jobs = [Embed(["storm"]), addressed()]
    queue.put_many([PackedJobs.pack("bulk", jobs, reply_to="me")])
    assert not queue.redis.exists(*(queue.keys.record(job.id) for job in jobs))


def by_xadd(queue: Queue, status: str) -> Job:
    """Put a job as a program without scripts does, with a record of that status."""
    job = Embed(["storm"])
    queue.redis.hset(queue.keys.record(job.id), mapping={"status": status})
    queue.redis.xadd(queue.keys.lane("bulk"), {"job": job.pack()})
    return job


def test_a_cancelled_job_that_was_put_by_plain_xadd_does_not_run(queue: Queue) -> None:
    job = by_xadd(queue, "queued")
    assert queue.cancel(job.id) == "cancelled"
    assert queue.start("a", queue.take("a", LANES, 1)) == [False]
    assert queue.status(job.id)[0] == "cancelled"


def test_a_job_that_was_put_by_plain_xadd_is_answered_and_its_record_says_so(queue: Queue) -> None:
    job = by_xadd(queue, "queued")
    (delivery,) = queue.take("a", LANES, 1)
    assert queue.reply([answer(delivery)]) == 1
    assert queue.status(job.id)[0] == "done"
    reply = queue.wait_result(job.id, 0)
    assert reply is not None
    assert reply.id == job.id


def test_a_status_that_is_final_does_not_go_back(queue: Queue) -> None:
    job = by_xadd(queue, "done")
    queue.redis.expire(queue.keys.record(job.id), 60)
    assert queue.start("a", queue.take("a", LANES, 1)) == [True]
    assert queue.status(job.id)[0] == "done"
    assert queue.redis.ttl(queue.keys.record(job.id)) > 0


def test_a_running_job_is_cancelled_and_its_worker_learns_of_it(queue: Queue) -> None:
    cancelled, kept = submitted(), submitted()
    queue.put("interactive", [cancelled, kept])
    consumer = queue.consumer("a")
    deliveries = consumer.take({Source("interactive"): 2})
    queue.start("a", deliveries)
    assert queue.cancel(cancelled.id) == "cancelled"
    assert consumer.lost(deliveries) == deliveries[:1]
    assert queue.reply([answer(delivery) for delivery in deliveries]) == 1
    assert queue.redis.llen(queue.keys.result(cancelled.id)) == 1
    assert (queue.status(cancelled.id)[0], queue.status(kept.id)[0]) == ("cancelled", "done")
    assert queue.redis.ttl(queue.keys.record(cancelled.id)) > 0


def test_a_finished_job_is_not_cancelled(queue: Queue) -> None:
    job = submitted()
    queue.put("interactive", [job])
    queue.reply([answer(take_one(queue))])
    assert queue.cancel(job.id) == "done"
    assert queue.redis.llen(queue.keys.result(job.id)) == 1


def test_a_job_that_a_worker_has_is_withdrawn(queue: Queue) -> None:
    (places,) = queue.put_many([PackedJobs.pack("interactive", [addressed(), addressed()])])
    assert isinstance(places, list)
    consumer = queue.consumer("a")
    first, second = consumer.take({Source("interactive"): 2})
    assert queue.withdraw([place for place in places[:1] if place]) == 1
    assert consumer.lost([first, second]) == [first]
    assert queue.reply([answer(first)]) == 0
    assert [reply.id for reply in queue.inbox("me").wait(0.01)] == []
    assert queue.reply([answer(second)]) == 1


def test_a_job_is_held_until_it_is_answered_and_at_its_own_place_alone(queue: Queue) -> None:
    (places,) = queue.put_many([PackedJobs.pack("interactive", [addressed(), addressed()])])
    assert isinstance(places, list)
    first, second = [place for place in places if place]
    elsewhere = second._replace(entry=first.entry)  # as after Redis has lost its data
    assert queue.holds([first, second, elsewhere]) == [True, True, False]
    queue.reply([answer(take_one(queue))])
    assert queue.holds([first, second]) == [False, True]


def test_a_job_that_another_worker_claimed_is_lost(queue: Queue) -> None:
    queue.put("interactive", [addressed()])
    consumer = queue.consumer("a")
    held = consumer.take({Source("interactive"): 1})
    assert consumer.lost(held) == []
    assert queue.claim("b", {"b"}) is not None
    assert consumer.lost(held) == held
    queue.redis.delete(queue.keys.lane("interactive"))
    assert consumer.lost(held) == []  # Redis came back empty: that says nothing


def test_only_what_a_dead_worker_left_is_claimed_and_one_at_a_time(queue: Queue) -> None:
    queue.put("interactive", [addressed() for _ in range(4)])
    taken = {consumer: queue.take(consumer, LANES, 2) for consumer in ("dead", "alive")}
    claimed = [queue.claim("me", {"alive", "me"}), queue.claim("other", {"alive", "me", "other"})]
    assert [delivery.entry for delivery in claimed if delivery] == [delivery.entry for delivery in taken["dead"]]
    assert queue.claim("third", {"alive", "me", "other", "third"}) is None


def test_a_worker_claims_what_it_failed_to_answer_itself(queue: Queue) -> None:
    queue.put("interactive", [addressed()])
    taken = take_one(queue)
    claimed = queue.claim("a", {"a"})
    assert claimed is not None
    assert (claimed.entry, claimed.num_deliveries) == (taken.entry, 1)  # it has not died of it


def test_without_the_names_of_living_workers_none_counts_as_dead(queue: Queue) -> None:
    queue.put("interactive", [addressed(), addressed()])
    for consumer in ("a", "b"):
        take_one(queue, consumer)
    claimed = queue.claim("a", None)
    assert claimed is not None
    queue.reply([answer(claimed)])
    assert queue.claim("a", None) is None
    assert queue.claim("a", {"a"}) is not None


def test_a_reply_over_the_limit_is_too_large(queue: Queue) -> None:
    queue.put("interactive", [addressed()])
    delivery = take_one(queue)
    vectors = np.zeros((DEFAULTS.max_reply_mb * 2**20 // 4_000 + 1, 1_000), np.float32)
    queue.reply([Answer(delivery, Reply(operations.unpack(delivery.data).id, vectors=vectors), "me")])
    (reply,) = queue.inbox("me").wait()
    assert isinstance(reply.error, TooLarge)


def test_deliveries_are_counted(queue: Queue) -> None:
    queue.put("bulk", [addressed()])
    assert queue.take("a", LANES, 1)[0].num_deliveries == 1
    for n in (2, 3, 4):
        claimed = queue.claim(f"worker{n}", {f"worker{n}"})
        assert claimed is not None
        assert claimed.num_deliveries == n


def test_a_pending_job_that_was_deleted_is_dropped(queue: Queue) -> None:
    queue.put("interactive", [addressed()])
    queue.redis.xdel(queue.keys.lane("interactive"), take_one(queue).entry)
    assert queue.claim("b", {"b"}) is None
    assert num_pending(queue) == 0


def test_a_buried_job_leaves_its_lane_for_the_dead_letters(queue: Queue) -> None:
    queue.put("interactive", [addressed()])
    delivery = take_one(queue)
    queue.reply([Answer(delivery, letter=DeadLetter("poisoned: why", "line 1", "w1"))])
    ((_, letter),) = queue.redis.xrange(queue.keys.dead)
    about = {b"reason": b"poisoned: why", b"traceback": b"line 1", b"worker": b"w1", b"lane": b"interactive"}
    assert letter == {b"job": delivery.data, b"deliveries": b"1", **about}
    assert (queue.backlog()["interactive"], num_pending(queue)) == (0, 0)


def test_a_name_that_is_long_out_of_use_leaves_the_group_when_a_worker_joins(queue: Queue) -> None:
    queue.put("interactive", [addressed(), addressed()])
    queue.reply([answer(take_one(queue, "idle"))])  # Redis before 7.2 knows no consumer that had no job
    take_one(queue, "busy")
    lane = queue.keys.lane("interactive")
    queue.join()
    assert len(queue.redis.xinfo_consumers(lane, GROUP)) == 2
    queue.broker.run(Script.load("shoal.queue", "lane", "join"), [lane], {"forget_after_ms": -1})
    assert [owner["name"] for owner in queue.redis.xinfo_consumers(lane, GROUP)] == [b"busy"]


def test_who_leaves_is_out_of_the_group_unless_it_holds_jobs(queue: Queue) -> None:
    queue.put("interactive", [addressed()])
    delivery = take_one(queue, "busy")
    queue.take("idle", LANES, 1)
    for consumer in ("busy", "idle"):
        queue.leave(consumer)
    lane = queue.keys.lane("interactive")
    assert [owner["name"] for owner in queue.redis.xinfo_consumers(lane, GROUP)] == [b"busy"]
    queue.reply([answer(delivery)])
    queue.leave("busy")
    assert queue.redis.xinfo_consumers(lane, GROUP) == []


def test_join_twice_changes_nothing(queue: Queue) -> None:
    queue.put("interactive", [addressed()])
    take_one(queue)
    queue.join()
    assert num_pending(queue) == 1


class TestAnotherJobInTheSameEntry:
    """After a failover with two primaries, the entry that a worker or a client knows may hold another job."""

    def replaced(self, queue: Queue, stream: str, entry: bytes, is_by_script: bool = True) -> Job:
        """Put another job into the entry, and have another worker take it."""
        job = Embed(["rain"])
        fields = {"job": job.pack()} | ({"texts": 1, "id": job.id} if is_by_script else {})
        queue.redis.delete(stream)
        queue.redis.xadd(stream, fields, id=entry)
        queue.redis.xgroup_create(stream, GROUP, "0")
        assert len(queue.redis.xreadgroup(GROUP, "other", {stream: ">"})[0][1]) == 1
        return job

    def check_kept(self, queue: Queue, stream: str, job: Job) -> None:
        """Fail unless the job is still unanswered and pending for the other worker."""
        ((_, fields),) = queue.redis.xrange(stream)
        assert fields[b"job"] == job.pack()
        assert queue.redis.xpending(stream, GROUP)["consumers"] == [{"name": b"other", "pending": 1}]

    @pytest.mark.parametrize("num_texts", [1, 33], ids=["front", "overflow"])
    @pytest.mark.parametrize("is_by_script", [True, False], ids=["script", "XADD"])
    def test_a_reply_does_not_end_it(self, queue: Queue, num_texts: int, is_by_script: bool) -> None:
        queue.put("bulk", [Embed(["storm"] * num_texts, reply_to="me")])
        (delivery,) = queue.take("a", ["bulk"], 64)
        stream = queue.keys.overflow("bulk") if delivery.is_overflow else queue.keys.lane("bulk")
        other = self.replaced(queue, stream, delivery.entry, is_by_script)
        assert queue.reply([answer(delivery)]) == 0
        assert queue.reply([Answer(delivery, letter=DeadLetter("reason"))]) == 0
        queue.drop([delivery])
        self.check_kept(queue, stream, other)
        assert queue.redis.exists(queue.keys.replies("me"), queue.keys.dead) == 0

    def test_a_job_put_by_plain_xadd_is_told_from_another_one(self, queue: Queue) -> None:
        lane = queue.keys.lane("interactive")
        queue.redis.xadd(lane, {"job": addressed().pack()})
        delivery = take_one(queue)
        other = self.replaced(queue, lane, delivery.entry, is_by_script=False)
        assert queue.reply([answer(delivery)]) == 0
        self.check_kept(queue, lane, other)

    def test_a_client_that_leaves_does_not_withdraw_it(self, queue: Queue) -> None:
        (places,) = queue.put_many([PackedJobs.pack("bulk", [addressed()])])
        assert isinstance(places, list)
        assert places[0]
        other = self.replaced(queue, places[0].stream, places[0].entry)
        assert queue.withdraw([places[0]]) == 0
        self.check_kept(queue, places[0].stream, other)

    def test_cancelling_does_not_remove_it(self, queue: Queue) -> None:
        job, lane = submitted(), queue.keys.lane("bulk")
        queue.put("bulk", [job])
        other = self.replaced(queue, lane, queue.redis.hget(queue.keys.record(job.id), "entry"))
        assert queue.cancel(job.id) == "cancelled"
        self.check_kept(queue, lane, other)
