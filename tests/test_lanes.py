"""Lanes: their limits, the front and the overflow, the turns of clients, and jobs that are put once."""

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from breaking import Plan, connect
from conftest import PATIENCE_S, wait_until
from queues import Queue, queue_of

import shoal.queue.consumer
from shoal import Client, operations
from shoal.broker.broker import Broker
from shoal.errors import InvalidRequest, Overloaded, ShoalError, TooLarge, Unavailable
from shoal.jobs import LANES, Job
from shoal.operations import Embed
from shoal.queue.answer import Answer
from shoal.queue.consumer import GROUP, MAX_TAKE_BYTES, Consumer
from shoal.queue.delivery import Delivery
from shoal.queue.lane import MAX_FRONT_BYTES, MAX_FRONT_TEXTS, LaneLimits, Source
from shoal.queue.packed_jobs import PackedJobs
from shoal.queue.pool import Pool
from shoal.queue.producer import ONCE_TTL_S
from shoal.queue.reply_stream import READ_BYTES, ReplyStream
from shoal.replies import Reply
from shoal.settings import Settings


def jobs(count: int, num_texts: int = 1) -> list[Job]:
    """Jobs whose replies go to an address."""
    return [Embed(["storm"] * num_texts, reply_to="me") for _ in range(count)]


def answer(queue: Queue, deliveries: list[Delivery]) -> int:
    """Replies to the jobs."""
    found = [operations.unpack(delivery.data) for delivery in deliveries]
    return queue.reply(Answer(d, Reply(job.id), job.reply_to) for d, job in zip(deliveries, found, strict=True))


def load(queue: Queue, lane: str = "interactive") -> dict[bytes, bytes]:
    """Return the load of the lane."""
    return dict(queue.redis.hgetall(queue.keys.load(lane)))


class TestFairness:
    def test_a_flood_does_not_keep_others_waiting(self, queue: Queue) -> None:
        queue.put("interactive", jobs(1_000), client="flood")
        queue.put("interactive", jobs(1), client="quiet")
        waited = 0
        while True:
            taken = queue.take("a", ["interactive"], 16)
            waited += len(taken)
            answer(queue, taken)
            if b"client:quiet" not in load(queue):
                break
        assert waited <= 2 * (MAX_FRONT_TEXTS + 16)  # what the flood has at the front, and as many of the back

    def test_the_overflow_is_read_beside_the_front(self, queue: Queue) -> None:
        queue.put("interactive", jobs(400), client="flood")
        taken = queue.take("a", ["interactive"], 16)
        assert [delivery.is_overflow for delivery in taken] == [False] * 16 + [True] * 16

    def test_a_long_job_goes_to_the_overflow(self, queue: Queue) -> None:
        queue.put("interactive", [*jobs(1, 33), *jobs(1, 32)], client="a")
        (front,) = queue.take("w", ["interactive"], 16, has_overflow=False)
        (back,) = queue.take("w", ["interactive"], 16)
        assert [len(operations.unpack(taken.data).texts) for taken in (front, back)] == [32, 33]
        assert (front.is_overflow, back.is_overflow) == (False, True)

    def test_a_job_of_many_bytes_goes_to_the_overflow(self, queue: Queue) -> None:
        queue.put("bulk", [Embed(["x" * (MAX_FRONT_BYTES // 4)], reply_to="me")], client="a")
        assert queue.redis.xlen(queue.keys.overflow("bulk")) == 1
        assert b"client:a" not in load(queue, "bulk")

    def test_the_front_takes_so_many_bytes_of_each_client(self, queue: Queue) -> None:
        large = [Embed(["气" * 10_000], reply_to="me") for _ in range(20)]
        queue.put("bulk", large, client="a")
        queue.put("bulk", jobs(1), client="b")
        assert queue.redis.xlen(queue.keys.lane("bulk")) == MAX_FRONT_BYTES // len(large[0].pack()) + 1 == 9
        taken = queue.take("w", ["bulk"], 20)
        assert load(queue, "bulk")[b"client bytes:a"] == b"%d" % (8 * len(large[0].pack()))
        answer(queue, taken)
        assert load(queue, "bulk") == {}

    def test_who_has_been_answered_is_at_the_front_again(self, queue: Queue) -> None:
        queue.put("interactive", jobs(MAX_FRONT_TEXTS + 1), client="a")
        assert queue.redis.xlen(queue.keys.overflow("interactive")) == 1
        answer(queue, queue.take("w", ["interactive"], 1_000))
        queue.put("interactive", jobs(1), client="a")
        assert queue.redis.xlen(queue.keys.overflow("interactive")) == 0

    def test_the_last_eighth_is_for_those_who_have_little(self, queue: Queue) -> None:
        queue.limits = LaneLimits(max_jobs=800)
        with pytest.raises(
            TooLarge, match=r"701 jobs at a time are over .* bulk lane takes, 700 \(SHOAL_MAX_BACKLOG\)"
        ):
            queue.put("bulk", jobs(701), client="flood")
        queue.put("bulk", jobs(700), client="flood")
        with pytest.raises(Overloaded, match="no room in the bulk lane"):
            queue.put("bulk", jobs(1), client="flood")
        queue.put("bulk", jobs(64), client="quiet")
        queue.put("bulk", jobs(36), client="other")
        with pytest.raises(Overloaded, match="800 unanswered jobs"):
            queue.put("bulk", jobs(1), client="late")

    def test_the_last_eighth_is_not_for_long_jobs(self, queue: Queue) -> None:
        queue.limits = LaneLimits(max_texts=800)
        long_jobs, (one_more,) = jobs(14, 50), jobs(1, 50)
        queue.put("bulk", long_jobs, client="flood")
        with pytest.raises(Overloaded, match="no room in the bulk lane"):
            queue.put("bulk", [one_more], client="flood")
        queue.put("bulk", jobs(100), client="quiet")

    def test_an_idempotency_key_does_not_change_the_client_that_a_job_counts_for(self, client: Client) -> None:
        client.queue.limits = LaneLimits(max_jobs=16)
        queue_of(client).join()

        def submit(name: str, number: int) -> None:
            client.submit("embed", [f"{number}"] * 32, lane="bulk", idempotency_key=f"{name} {number}", client=name)

        for number in range(14):
            submit("flood", number)
        with pytest.raises(Overloaded):
            submit("flood", 14)
        submit("quiet", 0)
        front = load(queue_of(client), "bulk")
        assert (front[b"client:flood"], front[b"client:quiet"]) == (b"128", b"32")

    def test_a_submit_without_a_client_counts_for_the_program_with_and_without_a_key(self, client: Client) -> None:
        client.submit("embed", "storm", lane="bulk", idempotency_key="k")
        client.submit("embed", "rain", lane="bulk")
        assert load(queue_of(client), "bulk")[f"client:{client.name}".encode()] == b"2"


class TestOverflow:
    def test_clients_take_turns(self, queue: Queue) -> None:
        queue.put("bulk", jobs(MAX_FRONT_TEXTS + 2_000), client="flood")
        consumer, room = queue.consumer("w"), {Source("bulk", True): 16}
        answer(queue, consumer.take(room))
        (job,) = jobs(1, 33)
        queue.put("bulk", [job], client="late")
        first, second = consumer.take(room), consumer.take(room)
        assert job.id in [operations.unpack(delivery.data).id for delivery in (*first, *second)]

    def test_jobs_of_a_client_that_overflows_keep_their_order(self, queue: Queue) -> None:
        put = [job for _ in range(MAX_FRONT_TEXTS + 10) for job in jobs(1)]
        for job in put:
            queue.put("interactive", [job], client="many")
        consumer, taken = queue.consumer("w"), []
        front, overflow = Source("interactive"), Source("interactive", True)
        for _ in range(20):
            deliveries = consumer.take({front: 16}) or consumer.take({overflow: 16})
            taken += [operations.unpack(delivery.data).id for delivery in deliveries]
            answer(queue, deliveries)
            put += (more := jobs(1))
            queue.put("interactive", more, client="many")
        assert taken == [job.id for job in put[: len(taken)]]

    def test_long_jobs_of_a_client_do_not_send_its_short_ones_to_the_overflow(self, queue: Queue) -> None:
        queue.put("interactive", jobs(3, 40), client="a")
        queue.put("interactive", (short := jobs(1)), client="a")
        (delivery,) = queue.consumer("w").take({Source("interactive"): 16})
        assert operations.unpack(delivery.data).id == short[0].id

    def test_short_jobs_of_one_put_keep_their_order(self, queue: Queue) -> None:
        queue.put("interactive", jobs(MAX_FRONT_TEXTS - 10), client="a")
        queue.put("interactive", [*jobs(1, 12), *jobs(1)], client="a")
        assert queue.redis.xlen(queue.keys.lane("interactive")) == MAX_FRONT_TEXTS - 10

    def test_between_two_floods_texts_are_shared(self, queue: Queue) -> None:
        queue.put("bulk", jobs(20, 40), client="long")
        queue.put("bulk", jobs(MAX_FRONT_TEXTS + 800), client="many")
        consumer, texts = queue.consumer("w"), Counter[int]()
        for _ in range(10):
            for delivery in consumer.take({Source("bulk", True): 80}):
                num_texts = len(operations.unpack(delivery.data).texts)
                texts[num_texts] += num_texts
        assert abs(texts[40] - texts[1]) <= 120

    def test_a_new_name_for_each_job_does_not_keep_a_client_that_waits_from_its_turn(self, queue: Queue) -> None:
        waiting, consumer, num_taken = jobs(5, 40), queue.consumer("w"), 0
        queue.put("bulk", jobs(2, 40), client="invented")
        queue.put("bulk", waiting, client="waits")
        unanswered = {job.id for job in waiting}
        while unanswered:
            queue.put("bulk", jobs(1, 40), client=f"invented {num_taken}")
            taken = consumer.take({Source("bulk", True): 1})
            unanswered -= {operations.unpack(delivery.data).id for delivery in taken}
            num_taken += answer(queue, taken)
            assert num_taken < 60
        assert num_taken > 30  # of new clients there were eight times as many

    def test_new_clients_go_before_the_rest_of_a_flood(self, queue: Queue) -> None:
        queue.put("bulk", jobs(50, 40), client="flood")
        new = {}
        for n in range(8):
            (job,) = jobs(1, 40)
            queue.put("bulk", [job], client=f"new {n}")
            new[job.id] = job
        taken = [queue.consumer("w").take({Source("bulk", True): 1})[0] for _ in range(11)]
        assert sum(operations.unpack(delivery.data).id in new for delivery in taken) == 8

    def test_a_waiting_job_counts_its_wait_from_when_it_was_put(self, queue: Queue) -> None:
        before = time.time()
        queue.put("bulk", jobs(2, 33), client="a")
        after = time.time()
        deliveries = queue.take("w", ["bulk"], 66)
        assert len(deliveries) == 2
        for delivery in deliveries:
            assert int(before * 1000) <= delivery.put_ms <= int(after * 1000) + 1

    def test_waiting_jobs_are_cancelled_withdrawn_and_counted(self, queue: Queue) -> None:
        submitted = [Embed(["storm"] * 33) for _ in range(3)]
        queue.put("bulk", submitted, client="a")
        (places,) = queue.put_many([PackedJobs.pack("bulk", jobs(2, 33), client="b")])
        assert isinstance(places, list)
        assert queue.loads()["bulk"].num_texts == 5 * 33
        assert queue.holds([place for place in places if place]) == [True, True]
        assert [queue.cancel(job.id) for job in submitted] == ["cancelled"] * 3
        assert queue.withdraw([place for place in places if place]) == 2
        assert queue.holds([place for place in places if place]) == [False, False]
        assert queue.backlog()["bulk"] == 0
        assert load(queue, "bulk") == {}
        assert queue.take("w", ["bulk"], 100) == []

    def test_workers_that_wait_are_woken_one_after_the_other(self, queue: Queue) -> None:
        with ThreadPoolExecutor(2) as threads:
            room = {Source("bulk", True): 33}
            taking = [threads.submit(queue.consumer(name).take, room, PATIENCE_S) for name in ("a", "b")]
            wait_until(lambda: queue.redis.info("clients")["blocked_clients"] >= 2)
            queue.put("bulk", jobs(2, 33), client="a")
            assert [found.client for one in taking for found in one.result()] == ["a", "a"]


class TestTake:
    def test_it_is_bounded_by_texts_of_each_source(self, queue: Queue) -> None:
        queue.put("interactive", jobs(5, 30), client="a")
        queue.put("bulk", jobs(5), client="a")
        taken = queue.consumer("w").take({Source("interactive"): 64, Source("bulk"): 2})
        assert [(d.lane, len(operations.unpack(d.data).texts)) for d in taken] == [("interactive", 30)] * 3 + [
            ("bulk", 1)
        ] * 2

    def test_it_is_bounded_by_bytes(self, queue: Queue) -> None:
        queue.put("bulk", [Embed(["x" * 2**20], reply_to="me") for _ in range(8)])
        assert len(queue.consumer("w").take({Source("bulk", True): 64})) == MAX_TAKE_BYTES // 2**20

    def test_one_job_is_taken_whatever_its_size(self, queue: Queue) -> None:
        queue.put("bulk", [Embed(["x" * (MAX_TAKE_BYTES + 1)], reply_to="me") for _ in range(2)])
        assert len(queue.consumer("w").take({Source("bulk", True): 1})) == 1

    def test_a_source_without_room_is_not_read(self, queue: Queue) -> None:
        queue.put("interactive", jobs(1))
        assert queue.consumer("w").take({Source("interactive"): 0, Source("bulk"): 5}) == []


class TestBounds:
    @pytest.mark.parametrize("bounds", [LaneLimits(max_jobs=9), LaneLimits(max_texts=39), LaneLimits(max_bytes=700)])
    def test_a_lane_is_bounded_by_jobs_texts_and_bytes(self, queue: Queue, bounds: LaneLimits) -> None:
        queue.limits = bounds
        queue.put("bulk", jobs(5, 4))
        with pytest.raises(Overloaded, match="5 unanswered jobs with 20 texts and"):
            queue.put("bulk", jobs(5, 4))
        answer(queue, queue.take("a", LANES, 10))
        queue.put("bulk", jobs(5, 4))

    def test_what_is_held_is_exact_however_a_job_ends(self, queue: Queue) -> None:
        replied, buried, cancelled, withdrawn = jobs(1, 2)[0], jobs(1, 3)[0], Embed(["storm"]), jobs(1, 5)[0]
        for job in (replied, buried, cancelled):
            queue.put("interactive", [job], client="a")
        put = PackedJobs.pack("interactive", [withdrawn], client="b")
        (places,) = queue.put_many([put])
        assert isinstance(places, list)
        assert load(queue)[b"texts"] == b"11"
        assert (load(queue)[b"client:a"], load(queue)[b"client:b"]) == (b"6", b"5")
        assert queue.cancel(cancelled.id) == "cancelled"
        assert queue.withdraw([place for place in places if place]) == 1
        first, second = queue.take("a", ["interactive"], 10)
        answer(queue, [first])
        assert load(queue)[b"texts"] == b"3"
        queue.drop([second])
        assert load(queue) == {}

    def test_its_bounds_are_those_of_the_settings(self) -> None:
        settings = Settings(max_backlog=1, max_backlog_texts=2, max_backlog_mb=3, max_result_mb=4)
        assert LaneLimits.from_settings(settings) == LaneLimits(1, 2, 3 * 2**20, 4 * 2**20)
        assert LaneLimits.from_settings(Settings()) == LaneLimits()

    def test_a_job_that_is_known_needs_no_room(self, queue: Queue) -> None:
        job = Embed(["storm"])
        queue.put("bulk", [job, Embed(["rain"])])
        queue.limits = LaneLimits(max_jobs=1)
        queue.put("bulk", [job])
        assert load(queue, "bulk")[b"texts"] == b"2"

    def test_a_job_that_is_named_twice_in_a_put_is_put_once(self, queue: Queue) -> None:
        (job,) = jobs(1)
        (places,) = queue.put_many([PackedJobs.pack("bulk", [job, job])])
        assert not isinstance(places, ShoalError)
        assert [place is None for place in places] == [False, True]
        assert load(queue, "bulk")[b"texts"] == b"1"

    def test_a_job_that_no_script_put_counts_as_a_job_alone(self, queue: Queue) -> None:
        for fields in (
            {"job": b"", "texts": 0},
            {"job": b"x"},
            {"job": b"x", "texts": "many"},
            {"job": b"x", "client": "a"},
            {"data": b"x"},
        ):
            queue.redis.xadd(queue.keys.lane("bulk"), fields)
        queue.put("bulk", jobs(1), client="a")
        queue.drop(queue.take("a", ["bulk"], 10))
        assert load(queue, "bulk") == {}

    def test_an_empty_lane_forgets_what_it_held(self, queue: Queue) -> None:
        queue.put("bulk", jobs(3))
        queue.redis.delete(queue.keys.lane("bulk"))
        queue.put("bulk", jobs(1))
        assert load(queue, "bulk")[b"texts"] == b"1"


class TestRetryAfter:
    def refused(self, queue: Queue, count: int) -> int:
        with pytest.raises(Overloaded) as refusal:
            queue.put("bulk", jobs(count), client="flood")
        return refusal.value.retry_after_s

    def test_it_is_when_the_pool_will_have_made_room(self, queue: Queue) -> None:
        Pool(queue.broker, queue.keys, alive_s=3_600).announce("w", {"state": "ready", "texts_per_s": 10.0})
        queue.limits = LaneLimits(max_jobs=100)
        queue.put("bulk", jobs(80), client="flood")
        assert self.refused(queue, 47) == 3  # 127 jobs, and room for 100: 27 have to go

    def test_it_is_long_without_workers(self, queue: Queue) -> None:
        queue.put("bulk", jobs(1))
        queue.limits = LaneLimits(max_jobs=1)
        assert self.refused(queue, 1) == 60

    def test_it_is_a_second_at_least(self, queue: Queue) -> None:
        Pool(queue.broker, queue.keys, alive_s=3_600).announce("w", {"state": "ready", "texts_per_s": 1e6})
        queue.put("bulk", jobs(1))
        queue.limits = LaneLimits(max_jobs=1)
        assert self.refused(queue, 1) == 1


class TestOnce:
    def test_the_same_key_gives_the_same_job(self, queue: Queue) -> None:
        first, second = Embed(["storm"]), Embed(["storm"])
        assert queue.put_once("bulk", first, "k") == first.id
        assert queue.put_once("bulk", second, "k") == first.id
        assert queue.put_once("bulk", second, "k", owner="somebody else") == second.id
        assert queue.backlog()["bulk"] == 2

    def test_it_is_refused_for_something_else(self, queue: Queue) -> None:
        first = Embed(["storm"])
        queue.put_once("bulk", first, "k")
        with pytest.raises(InvalidRequest, match=f"used for job {first.id}"):
            queue.put_once("bulk", Embed(["rain"]), "k")

    def test_a_refused_job_does_not_use_its_key(self, queue: Queue) -> None:
        queue.put("bulk", jobs(1))
        queue.limits = LaneLimits(max_jobs=1)
        job = Embed(["storm"])
        with pytest.raises(Overloaded):
            queue.put_once("bulk", job, "k")
        queue.limits = LaneLimits()
        assert queue.put_once("bulk", job, "k") == job.id

    def test_a_key_and_its_job_are_known_for_a_day(self, queue: Queue) -> None:
        job = Embed(["storm"])
        queue.put_once("bulk", job, "k")
        assert queue.redis.ttl(queue.keys.record(job.id)) > ONCE_TTL_S
        answer(queue, queue.take("a", LANES, 1))
        lives = [queue.redis.ttl(name) for name in queue.redis.scan_iter(f"{queue.keys.root}:once:*")]
        assert min(*lives, queue.redis.ttl(queue.keys.record(job.id)), ONCE_TTL_S) > ONCE_TTL_S - 60

    def test_of_many_at_the_same_time_one_is_put(self, client: Client) -> None:
        queue_of(client).join()
        with ThreadPoolExecutor(16) as threads:
            handles = list(
                threads.map(lambda _: client.submit("embed", "storm", lane="bulk", idempotency_key="k"), range(50))
            )
        assert len({handle.id for handle in handles}) == 1
        assert client.queue.backlog()["bulk"] == 1

    @pytest.mark.parametrize("key", ["", "x" * 256, "a\nb"])
    def test_a_key_that_is_none_is_refused(self, client: Client, key: str) -> None:
        with pytest.raises(InvalidRequest, match="the idempotency key is"):
            client.submit("embed", "storm", idempotency_key=key)


class TestClaim:
    def test_of_a_workers_jobs_those_delivered_least_come_first(self, queue: Queue) -> None:
        queue.put("interactive", jobs(3))
        first, second, third = queue.take("dead", LANES, 3)
        queue.redis.xclaim(queue.keys.lane("interactive"), GROUP, "dead", 0, [first.entry], retrycount=3)
        order = [queue.claim("me", {"me"}), queue.claim("me", {"me", "dead"})]
        assert [delivery.entry for delivery in order if delivery][:1] == [second.entry]
        claimed = queue.claim("other", {"me", "other"})
        assert claimed is not None
        assert (claimed.entry, claimed.owner, claimed.num_deliveries) == (third.entry, "dead", 2)
        claimed = queue.claim("other", {"me", "other"})
        assert claimed is not None
        assert (claimed.entry, claimed.num_deliveries) == (first.entry, 3)  # a suspect that was not named

    def test_what_the_worker_holds_is_not_claimed_and_what_it_lost_is(self, queue: Queue) -> None:
        queue.put("interactive", jobs(3))
        consumer = queue.consumer("me")
        held = consumer.take({Source("interactive"): 3})
        assert consumer.claim(lambda: {"me"}, held) is None
        lost = consumer.claim(lambda: {"me"}, held[:2])
        assert lost is not None
        assert (lost.entry, lost.num_deliveries) == (held[2].entry, 1)

    def test_it_looks_beyond_the_jobs_that_are_held(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shoal.queue.consumer, "MAX_LOOKED_AT", 1)
        queue.put("interactive", jobs(3))
        *held, lost = queue.take("a", ["interactive"], 3)
        claimed = queue.claim("a", {"a"}, held)
        assert claimed is not None
        assert claimed.entry == lost.entry

    def test_of_an_isolated_job_and_its_neighbours_only_the_job_is_counted(self, queue: Queue) -> None:
        queue.put("interactive", jobs(3))
        dying = queue.consumer("dying")
        held = dying.take({Source("interactive"): 3})
        dying.isolate(held[1])
        claimed = [queue.claim("me", {"me"}, held) for _ in range(3)]
        counts = {delivery.entry: delivery.num_deliveries for delivery in claimed if delivery}
        assert counts == {held[0].entry: 1, held[1].entry: 2, held[2].entry: 1}
        assert 0 < queue.redis.ttl(queue.keys.isolated("dying")) <= 3_600

    def test_without_an_isolated_job_each_is_counted(self, queue: Queue) -> None:
        queue.put("interactive", jobs(2))
        dying = queue.consumer("dying")
        held = dying.take({Source("interactive"): 2})
        dying.isolate(held[0])
        dying.isolate(None)
        claimed = [queue.claim("me", {"me"}, held) for _ in range(2)]
        assert [delivery.num_deliveries for delivery in claimed if delivery] == [2, 2]

    def test_a_suspect_counts_only_while_it_is_named_and_its_claim_names_it(self, queue: Queue) -> None:
        queue.put("interactive", jobs(2))
        room = {Source("interactive"): 1}
        (suspect,) = queue.consumer("first").take(room)
        dying = queue.consumer("dying")
        assert dying.claim(lambda: {"dying"}) is not None
        (taken,) = dying.take(room)
        dying.isolate(None)
        counts = []
        for name in ("other", "last"):  # each dies when it has claimed both
            claimed = [queue.claim(name, {name}) for _ in range(2)]
            counts.append({one.entry: one.num_deliveries for one in claimed if one})
        assert counts == [{suspect.entry: 2, taken.entry: 2}, {suspect.entry: 2, taken.entry: 3}]
        assert taken.entry in queue.redis.get(queue.keys.isolated("last"))

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_a_name_is_withdrawn_also_if_the_connection_broke_when_it_was_given(
        self, queue: Queue, redis_url: str, when: str
    ) -> None:
        queue.put("interactive", jobs(1))
        plan = Plan()
        broker = Broker(connect(redis_url, plan).connection_pool)
        consumer = Consumer(broker, queue.keys, "w")
        (delivery,) = consumer.take({Source("interactive"): 1})
        for suspect in (delivery, None):
            plan.breaks(when, 1)
            with pytest.raises(Unavailable):
                consumer.isolate(suspect)
            plan.clear()
        consumer.isolate(None)
        assert not queue.redis.exists(queue.keys.isolated("w"))
        broker.close()

    def test_a_suspect_that_its_worker_takes_back_is_named(self, queue: Queue) -> None:
        queue.put("interactive", jobs(1))
        queue.take("dead", LANES, 1)
        for _ in range(2):
            claimed = queue.claim("me", {"me"})
            assert claimed is not None
            assert (claimed.num_deliveries, claimed.is_suspect) == (2, True)
            assert queue.redis.delete(queue.keys.isolated("me")) == 1

    def test_jobs_of_a_worker_that_ends_of_itself_are_not_counted(self, queue: Queue) -> None:
        queue.put("interactive", jobs(2))
        leaving = queue.consumer("leaving")
        leaving.take({Source("interactive"): 2})
        leaving.absolve()
        claimed = [queue.claim("me", {"me"}) for _ in range(2)]
        assert [one.num_deliveries for one in claimed if one] == [1, 1]

    def test_of_many_workers_one_gets_each_job_and_none_is_lost(self, queue: Queue) -> None:
        queue.put("interactive", jobs(40))
        queue.take("dead", LANES, 40)
        alive = {f"w{n}" for n in range(8)}

        def claim_all(worker: str) -> int:
            count = 0
            while delivery := queue.claim(worker, alive - {worker} | {worker}):
                count += answer(queue, [delivery])
            return count

        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(claim_all, alive)) == 40
        assert queue.backlog()["interactive"] == 0

    def test_a_worker_that_joins_while_another_looks_keeps_its_jobs(self, queue: Queue) -> None:
        queue.put("interactive", jobs(1))
        names = {"me"}

        def alive() -> set[str]:
            found = set(names)
            names.add("late")
            queue.take("late", LANES, 1)
            return found

        assert queue.consumer("me").claim(alive) is None
        assert queue.consumer("me").claim(lambda: names) is None

    def test_the_back_of_a_lane_is_claimed_too(self, queue: Queue) -> None:
        queue.put("bulk", jobs(MAX_FRONT_TEXTS + 1), client="a")
        taken = queue.take("dead", ["bulk"], 1_000)
        assert len(taken) == MAX_FRONT_TEXTS + 1
        claimed = 0
        while delivery := queue.claim("me", {"me"}):
            claimed += answer(queue, [delivery])
        assert claimed == MAX_FRONT_TEXTS + 1


class NotesWaits(Broker):
    """A broker that notes for how long Redis was let wait."""

    waited_s = -1.0

    def pipeline(self, *commands: Sequence[Any], block_s: float = 0.0) -> list[Any]:
        self.waited_s = block_s
        return super().pipeline(*commands, block_s=block_s)


class TestReplies:
    def test_redis_is_let_wait_for_replies_as_long_as_is_asked(self, queue: Queue) -> None:
        broker = NotesWaits(queue.broker.connection_pool)
        assert ReplyStream(broker, queue.keys.replies("me"), 60).wait(0.05) == []
        assert broker.waited_s == 0.05

    def test_a_reply_is_read_again_after_an_error(self, queue: Queue) -> None:
        queue.put("interactive", jobs(3))
        inbox = queue.inbox("me")
        answer(queue, queue.take("a", LANES, 3))
        assert len(inbox.wait()) == 3
        assert inbox.wait(0.01) == []
        assert queue.redis.xlen(queue.keys.replies("me")) == 0

    def test_after_an_error_nothing_is_deleted_that_was_not_read(self, queue: Queue) -> None:
        address = queue.keys.replies("me")
        inbox, data = queue.inbox("me"), Reply("x").pack()
        queue.redis.xadd(address, {"reply": data}, id="7-7")
        assert len(inbox.wait(0.01)) == 1
        queue.redis.set(address, "something else", ex=60)
        with pytest.raises(Unavailable):
            inbox.wait(0.01)
        queue.redis.delete(address)
        queue.redis.xadd(address, {"reply": data}, id="7-7")  # of a Redis that gave no such id yet
        queue.redis.expire(address, 60)
        assert len(inbox.wait(0.01)) == 1
        assert inbox.wait(0.01) == []

    def test_replies_of_a_redis_whose_clock_is_behind_are_read(self, queue: Queue) -> None:
        queue.put("interactive", jobs(3))
        inbox, address = queue.inbox("me"), queue.keys.replies("me")
        answer(queue, queue.take("a", LANES, 3))
        assert len(inbox.wait()) == 3
        queue.broker.close()  # a failover between two reads: the next one opens a connection, and meets no error
        queue.redis.delete(address)
        for n in range(8):
            queue.redis.xadd(address, {"reply": Reply(f"late-{n}").pack()}, id=f"{n + 1}-0")
        queue.redis.expire(address, 60)
        assert [reply.id for reply in inbox.wait()] == [f"late-{n}" for n in range(8)]
        assert inbox.wait(0.01) == []
        assert queue.redis.xlen(address) == 0

    def test_large_replies_are_read_a_few_at_a_time(self, queue: Queue) -> None:
        inbox, address = queue.inbox("me"), queue.keys.replies("me")
        large = Reply("large", vectors=np.zeros((1, READ_BYTES // 16), np.float32)).pack()
        queue.redis.xadd(address, {"reply": large})
        assert len(inbox.wait()) == 1
        for data in [large] * 30 + [Reply("small").pack()] * 200:
            queue.redis.xadd(address, {"reply": data})
        queue.redis.expire(address, 60)
        reads = []
        while found := inbox.wait(0.01):
            reads.append([reply.id for reply in found])
        assert [job_id for read in reads for job_id in read] == ["large"] * 30 + ["small"] * 200
        assert max(read.count("large") for read in reads) == 3
        assert len(reads) < 20  # small ones are read many at a time

    def test_an_address_that_is_something_else_costs_its_own_reply_alone(self, queue: Queue) -> None:
        queue.put("interactive", [Embed(["storm"], reply_to="taken"), *jobs(1)])
        queue.redis.set(queue.keys.replies("taken"), "by something else", ex=60)
        assert answer(queue, queue.take("a", LANES, 2)) == 2
        assert len(queue.inbox("me").wait()) == 1
        ((_, letter),) = queue.redis.xrange(queue.keys.dead)
        assert b"WRONGTYPE" in letter[b"reason"]
        assert queue.backlog()["interactive"] == 0

    def test_a_reply_that_cannot_be_written_ends_the_job_as_failed(self, queue: Queue) -> None:
        job = Embed(["storm"])
        queue.put("interactive", [job])
        queue.redis.set(queue.keys.result(job.id), "something else", ex=60)
        assert answer(queue, queue.take("a", LANES, 1)) == 1
        assert queue.status(job.id)[0] == "failed"

    def test_a_record_that_is_something_else_costs_the_status_alone(self, queue: Queue) -> None:
        taken, other = Embed(["storm"]), Embed(["rain"])
        queue.put("interactive", [taken, other])
        queue.redis.delete(queue.keys.record(taken.id))
        queue.redis.set(queue.keys.record(taken.id), "by something else", ex=60)
        deliveries = queue.take("a", LANES, 2)
        assert queue.start("a", deliveries) == [True, True]
        assert answer(queue, deliveries) == 2
        assert queue.redis.llen(queue.keys.result(taken.id)) == 1
        assert queue.status(other.id)[0] == "done"

    def test_a_wait_ends_when_a_reply_comes(self, queue: Queue) -> None:
        inbox = queue.inbox("me")
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(inbox.wait, PATIENCE_S)
            wait_until(lambda: queue.redis.info("clients")["blocked_clients"] >= 1)
            queue.put("interactive", jobs(1))
            answer(queue, queue.take("a", LANES, 1))
            assert len(waiting.result()) == 1


def test_waiting_jobs_are_found_after_a_worker_died_between_a_blocking_read_and_its_refill(queue: Queue) -> None:
    jobs = [Embed([f"{n}"] * 40, reply_to="me") for n in range(3)]
    for job in jobs:
        queue.put("bulk", [job], client="a")
    overflow = queue.keys.overflow("bulk")
    read = queue.redis.xreadgroup("workers", "dies", {overflow: ">"}, count=1)
    assert len(read[0][1]) == 1
    assert len(queue.take("lives", ["bulk"], 100)) == 2
