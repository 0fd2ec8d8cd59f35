"""Lanes: their limits, the turns of clients, idempotency keys, and the replies to their jobs."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from conftest import PATIENCE_S
from queues import Queue, queue_of, set_limits

from shoal import Client
from shoal.contract.jobs import LANES, Job
from shoal.contract.replies import Reply
from shoal.errors import Overloaded, ShoalError, TooLarge, Unavailable, UnknownJob
from shoal.operations import Embed
from shoal.queue import producer
from shoal.queue.consumer import MAX_TAKE_BYTES, Answer, Delivery
from shoal.queue.lane import LaneLimits, PackedJobs
from shoal.queue.producer import READ_BYTES
from shoal.settings import Settings


def jobs(count: int, num_texts: int = 1) -> list[Job]:
    return [Embed(["storm"] * num_texts, reply_to="me") for _ in range(count)]


def load(queue: Queue, lane: str = "interactive") -> dict[bytes, bytes]:
    return dict(queue.redis.hgetall(queue.keys.of_lane(lane, "load")))


def take(queue: Queue, room: int, lane: str = "interactive") -> list[Delivery]:
    taken = queue.consumer("w").take({lane: room})
    queue.answer(taken)
    return taken


#: The fields of a record.
RECORD = (
    *("job", "lane", "client", "texts", "put_ms", "worker", "deaths", "died"),
    *("status", "reply_to", "lives", "watchers"),
)


class TestFairness:
    @pytest.mark.parametrize("number", ["", "nan", "inf", "-inf", "x"])  # other programs may write such a credit
    def test_jobs_of_a_client_keep_their_order(self, queue: Queue, number: str) -> None:
        put = [job for size in (1, 40, 2, 33, 1, 1) for job in jobs(1, size)]
        for job in put:
            queue.put("interactive", [job], client="one")
            queue.put("interactive", jobs(3), client="another")
        queue.redis.hset(queue.keys.of_lane("interactive", "credit"), mapping={"client:one": number, "owed": number})
        taken = [one.key for _ in range(20) for one in take(queue, 7) if one.client == "one"]
        assert taken == [job.id for job in put]

    def test_between_two_floods_texts_are_shared(self, queue: Queue) -> None:
        sizes, room = (1, 40), 80
        for n, size in enumerate(sizes):
            queue.put("bulk", jobs(4_000 // size, size), client=f"flood {n}")
        texts = Counter[str]()
        while sum(texts.values()) < 4_000:
            taken = queue.consumer("w").take({"bulk": room})
            assert taken
            for one in taken:
                texts[one.client] += len(one.job().texts)
        assert abs(texts["flood 0"] - texts["flood 1"]) <= 64 + max(sizes)

    def test_new_clients_go_before_the_rest_of_a_flood_and_their_first_turn_is_short(self, queue: Queue) -> None:
        queue.put("bulk", jobs(1_000), client="flood")
        take(queue, 64, "bulk")
        for n in range(8):
            queue.put("bulk", jobs(100), client=f"new {n}")
        found = Counter(one.client for one in take(queue, 36, "bulk"))
        assert found == {f"new {n}": 4 for n in range(8)} | {"flood": 4}
        assert [*found] == [*(f"new {n}" for n in range(8)), "flood"]

    @pytest.mark.parametrize("owed", ["0", "-1e300"])  # the second one was written by another program
    def test_a_new_name_for_each_job_does_not_keep_a_client_that_waits_from_its_turn(
        self, queue: Queue, owed: str
    ) -> None:
        queue.put("bulk", jobs(200), client="waits")
        take(queue, 4, "bulk")  # the first turn of the client
        queue.redis.hset(queue.keys.of_lane("bulk", "credit"), "owed", owed)
        found = Counter[str]()
        for n in range(400):
            queue.put("bulk", jobs(1), client=f"invented {n}")
            found.update("waits" if one.client == "waits" else "invented" for one in take(queue, 1, "bulk"))
        assert found["waits"] >= 200 - 32

    def test_a_client_that_took_more_than_its_turn_waits_for_longer(self, queue: Queue) -> None:
        queue.put("bulk", jobs(4, 320), client="long")
        queue.put("bulk", jobs(2_000), client="short")
        order = [one.client for _ in range(60) for one in take(queue, 16, "bulk")]
        between = order[order.index("long") + 1 :].index("long")
        assert 320 - 64 <= between <= 320 + 64

    @pytest.mark.parametrize("then", ["wait", "hold", "cancel", "give_back", "leave"])
    @pytest.mark.parametrize("value", [None, "", "nan", "inf", "-1", "x", "9" * 30, "9" * 5_000, b"\xff"])
    def test_a_record_that_another_program_wrote_harms_no_other_job(
        self, queue: Queue, value: str | bytes | None, then: str
    ) -> None:
        written: list[Job] = [Embed(["storm"]) for _ in (*RECORD, "the whole record")]
        queue.put("interactive", written, client="written")
        others = jobs(len(RECORD))
        queue.put("interactive", others, client="other")
        consumer = queue.consumer("w")
        taken = queue.take("w", LANES, 100) if then != "wait" else []
        for field, job in zip(RECORD, written[:-1], strict=True):
            if value is None:
                queue.redis.hdel(queue.keys.record(job.id), field)
            else:
                queue.redis.hset(queue.keys.record(job.id), field, value)
        queue.redis.delete(whole := queue.keys.record(written[-1].id))
        if value is not None:
            queue.redis.set(whole, value)
        for job in written if then == "cancel" else ():
            with suppress(UnknownJob):
                queue.cancel(job.id)
        if then == "give_back":
            consumer.give_back(taken)
        elif then == "leave":
            consumer.leave()
        for _ in range(4):
            taken += queue.take("w", LANES, 100)
            runs = consumer.start([(one, one.key) for one in taken])
            assert written[-1].id not in [one.key for one, is_run in zip(taken, runs, strict=True) if is_run]
            queue.reply([Answer(one, Reply(one.key), "me" if one.client == "other" else None) for one in taken])
            taken = []
        assert not queue.unread.sweep()
        assert {job.id for job in others} <= {reply.id for reply in queue.inbox("me").wait()}
        queue.put("interactive", jobs(2), client="written")
        assert len(queue.take("w", LANES, 100)) == 2
        queue.redis.delete(*queue.redis.keys(f"{queue.keys.root}:*"))

    def test_a_client_may_fill_seven_eighths_of_the_room_that_others_leave(self, queue: Queue) -> None:
        settings = Settings(max_backlog=800, max_backlog_texts=800, max_backlog_mb=3, max_result_mb=4)
        assert LaneLimits.from_settings(settings) == LaneLimits(800, 800, 3 * 2**20, 4 * 2**20)
        assert LaneLimits.from_settings(Settings()) == LaneLimits()
        set_limits(queue, LaneLimits.from_settings(settings))
        for num in (701, 801):
            words = rf"{num} jobs at a time exceed .* bulk lane, 700 \(SHOAL_MAX_BACKLOG\)"
            with pytest.raises(TooLarge, match=words):
                queue.put("bulk", jobs(num), client="flood")
        queue.put("bulk", jobs(700), client="flood")
        with pytest.raises(Overloaded, match="no room in the bulk lane"):
            queue.put("bulk", jobs(1), client="flood")
        queue.put("bulk", jobs(64), client="quiet")
        queue.put("bulk", jobs(31), client="other")  # 88 and 32 are seven eighths of 100 and 36
        with pytest.raises(Overloaded, match="795 unanswered jobs"):
            queue.put("bulk", jobs(2), client="other")
        for number in range(5):
            queue.put("bulk", jobs(1), client=f"late {number}")
        with pytest.raises(Overloaded, match="800 unanswered jobs"):
            queue.put("bulk", jobs(1), client="too late")

    def test_an_idempotency_key_does_not_change_the_client_that_a_job_counts_for(self, client: Client) -> None:
        set_limits(queue_of(client), LaneLimits(max_jobs=16))

        def submit(name: str, number: int) -> None:
            client.run(lambda own: own.put(Embed([f"{number}"] * 32), "bulk", f"{name} {number}", client=name))

        for number in range(14):
            submit("flood", number)
        with pytest.raises(Overloaded):
            submit("flood", 14)
        submit("quiet", 0)
        front = load(queue_of(client), "bulk")
        assert (front[b"texts:flood"], front[b"texts:quiet"]) == (b"448", b"32")


class TestTake:
    def test_it_is_bounded_by_texts_and_jobs_of_each_lane(self, queue: Queue) -> None:
        queue.put("interactive", jobs(5, 30), client="a")
        queue.put("bulk", jobs(5), client="a")
        taken = queue.consumer("w").take({"interactive": 64, "bulk": 2})
        assert [(d.lane, len(d.job().texts)) for d in taken] == [("interactive", 30)] * 3 + [("bulk", 1)] * 2
        taken = queue.consumer("w").take(dict.fromkeys(LANES, 200), max_jobs=1)
        assert [d.lane for d in taken] == list(LANES)
        assert len(queue.consumer("v").take(dict.fromkeys(LANES, 200))) == 3

    @pytest.mark.parametrize(
        ("size", "room", "num_taken"),
        [(8_000, 64, 32), (2**20, 8_192, MAX_TAKE_BYTES // 2**20), (MAX_TAKE_BYTES + 1, 1, 1)],
    )
    def test_it_is_bounded_by_bytes_and_by_texts_of_4_kib(
        self, queue: Queue, size: int, room: int, num_taken: int
    ) -> None:
        for _ in range(2 * num_taken):
            queue.put("bulk", [Embed(["x" * size], reply_to="me")])
        assert len(queue.consumer("w").take({"bulk": room})) == num_taken


class TestBounds:
    def test_a_job_that_is_put_twice_counts_once_and_a_pushed_job_a_text_for_each_kib_once_a_worker_has_looked(
        self, queue: Queue
    ) -> None:
        (job,) = jobs(1)
        for given, is_new in (([job, job], [True, False]), ([job], [False])):
            (answer,) = queue.put_many([PackedJobs.pack("interactive", given)])
            assert not isinstance(answer, ShoalError)
            assert answer["is_new"] == is_new
        assert load(queue)[b"texts"] == b"1"
        for size in (0, 1, 1_024, 1_025):
            queue.redis.rpush(queue.keys.lane("bulk"), b"x" * size)
        assert queue.loads()["bulk"].num_jobs == 4
        taken = queue.take("a", ["bulk"], 100)
        wanted = {b"jobs:": 4, b"texts": 4, b"texts:": 4, b"bytes": 2_050, b"bytes:": 2_050}
        assert load(queue, "bulk") == {name: b"%d" % number for name, number in wanted.items()}
        queue.reply([Answer(one) for one in taken])
        assert load(queue, "bulk") == {}
        assert queue.backlog()["bulk"] == 0
        queue.redis.rpush(queue.keys.lane("bulk"), *[b"x"] * 300)
        for _ in range(2):
            queue.take("a", ["bulk"], 1)
        assert queue.redis.llen(queue.keys.lane("bulk")) == 43  # the flood has 256 jobs waiting in the lane
        assert len(queue.take("a", ["bulk"], 1_000)) == 256
        assert queue.redis.exists(queue.keys.of_lane("bulk", "wake"))  # a worker is woken for the remaining jobs


class TestRetryAfter:
    @pytest.mark.parametrize(("texts_per_s", "retry_after_s"), [(10.0, 4), (1e6, 1), (0.001, 60), (0.0, 60)])
    def test_it_is_the_time_in_which_the_pool_makes_room(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch, texts_per_s: float, retry_after_s: int
    ) -> None:
        monkeypatch.setattr(producer, "SPEED_KNOWN_S", PATIENCE_S)
        set_limits(queue, LaneLimits(max_jobs=100))
        queue.put("bulk", jobs(80), client="flood")
        for speed in (texts_per_s, 2.0):  # the second speed is not read yet
            for name in "vw":
                queue.pool.announce(name, {"state": "ready", "texts_per_s": speed / 2})
            with pytest.raises(Overloaded) as refusal:
                queue.put("bulk", jobs(47), client="flood")  # 127 texts are 39 over the limit of 88
            assert refusal.value.retry_after_s == retry_after_s


class TestOnce:
    def test_a_refused_job_does_not_use_its_key(self, queue: Queue) -> None:
        queue.put("bulk", jobs(1))
        set_limits(queue, LaneLimits(max_jobs=1))
        job = Embed(["storm"])
        with pytest.raises(Overloaded):
            queue.put_once("bulk", job, "k")
        set_limits(queue, LaneLimits())
        assert queue.put_once("bulk", job, "k") == job.id

    def test_of_many_submits_with_one_key_at_once_one_is_put(self, client: Client) -> None:
        with ThreadPoolExecutor(16) as threads:
            handles = list(
                threads.map(lambda _: client.submit("embed", "storm", lane="bulk", idempotency_key="k"), range(50))
            )
        assert len({handle.id for handle in handles}) == 1
        assert queue_of(client).backlog()["bulk"] == 1


class TestReplies:
    def test_after_an_error_no_unread_reply_is_deleted(self, queue: Queue) -> None:
        address = queue.keys.replies("me")
        inbox, data = queue.inbox("me"), Reply("x").pack()
        queue.redis.xadd(address, {"reply": data}, id="7-7")
        assert len(inbox.wait(0.01)) == 1
        queue.redis.set(address, "something else", ex=60)
        with pytest.raises(Unavailable):
            inbox.wait(0.01)
        queue.redis.delete(address)
        queue.redis.xadd(address, {"reply": data}, id="7-7")  # in a new Redis, this id is new
        queue.redis.expire(address, 60)
        assert len(inbox.wait(0.01)) == 1
        assert inbox.wait(0.01) == []

    def test_replies_of_a_redis_whose_clock_is_behind_are_read(self, queue: Queue) -> None:
        queue.put("interactive", jobs(3))
        inbox, address = queue.inbox("me"), queue.keys.replies("me")
        queue.answer(queue.take("a", LANES, 3))
        assert len(inbox.wait()) == 3
        queue.broker.close()  # like a failover between two reads: the next read opens a connection, and gets no error
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
            assert len(reads) < 20  # small replies are read many at a time
        assert [job_id for read in reads for job_id in read] == ["large"] * 30 + ["small"] * 200
        assert max(read.count("large") for read in reads) == 3

    def test_if_another_key_has_the_address_or_name_of_a_reply_only_this_reply_is_lost(self, queue: Queue) -> None:
        submitted = Embed(["storm"])
        queue.put("interactive", [Embed(["storm"], reply_to="taken"), submitted, *jobs(1)])
        for key in (queue.keys.replies("taken"), queue.keys.result(submitted.id)):
            queue.redis.set(key, "by something else", ex=60)
        assert queue.answer(queue.take("a", LANES, 3)) == 3
        assert len(queue.inbox("me").wait()) == 1
        assert queue.status(submitted.id)[0] == "failed"
        letters = [letter[b"reason"] for _, letter in queue.redis.xrange(queue.keys.dead)]
        assert [b"WRONGTYPE" in reason for reason in letters] == [True, True]
        assert queue.backlog()["interactive"] == 0
