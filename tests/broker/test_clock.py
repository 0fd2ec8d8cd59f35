"""The clock of a pool is Redis's clock, so a machine's wrong clock changes no deadline."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from queues import Queue, drive, queue_of

from shoal import Client
from shoal.broker.broker import Broker
from shoal.broker.clock import Clock
from shoal.contract import wire
from shoal.contract.jobs import LANES, MAX_DEADLINE_S
from shoal.contract.replies import Reply
from shoal.errors import InvalidRequest
from shoal.operations import Embed, Search
from shoal.queue.consumer import Answer, Consumer
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.index import Index
from shoal_workers.loop.worker import Worker

#: Seconds between Redis's clock and this machine's clock in the tests.
WRONG_S = 31.0


class OtherClock(Broker):
    """A broker to a Redis whose clock seems `ahead_s` ahead of this machine's."""

    ahead_s = WRONG_S

    def execute(self, *command: Any, block_s: float = 0.0) -> Any:
        answer = super().execute(*command, block_s=block_s)
        if command != ("TIME",):
            return answer
        return [int(int(answer[0]) + self.ahead_s), int(answer[1])]

    def time(self) -> float:
        seconds, microseconds = super().execute("TIME")
        return float(int(seconds) + int(microseconds) / 1e6 + self.ahead_s)


@pytest.fixture
def broker(redis_url: str) -> Iterator[OtherClock]:
    with closing(OtherClock.connect(redis_url)) as broker:
        yield broker


@pytest.fixture
def other(broker: OtherClock, queue: Queue, encoder: Encoder, index: Index) -> Worker:
    consumer = Consumer(broker, queue.keys, "other")
    return Worker(consumer, encoder, {"default": index}, Bucketing(4_096), clock=Clock(broker))


def reply_of(queue: Queue, worker: Worker, deadline: float) -> Reply:
    job = Embed(["storm"], reply_to="me", deadline=deadline)
    queue.put("interactive", [job])
    drive(worker)
    (reply,) = queue.inbox("me").wait()
    queue.redis.delete(queue.keys.replies("me"))
    return reply


class TestClock:
    def test_the_shortest_round_trip_counts_until_redis_clock_is_set(self, broker: OtherClock) -> None:
        times = iter([0.0, 3.0, 3.0, 3.0, 3.5, 3.5, 3.0, 4.5, 4.5, 3.4, 7.4, 7.4, 5.0])  # the last answer came late
        clock = Clock(broker, lambda: next(times))
        before = broker.time()
        for _ in range(4):
            clock.measure()
        assert clock.error_s == 0.25
        # the shortest began 2 s ago, and Redis read its clock halfway
        assert before <= clock.now() - 1.75 <= broker.time()
        clock = Clock(broker)
        clock.measure()
        assert clock.offset_s == pytest.approx(-broker.ahead_s, abs=1)

    @pytest.mark.parametrize("by_s", [WRONG_S, -WRONG_S])
    def test_a_clock_of_redis_that_is_set_is_known_at_the_next_measurement(
        self, broker: OtherClock, by_s: float
    ) -> None:
        times = iter([0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.5])  # the second round trip is longer
        clock = Clock(broker, lambda: next(times))
        clock.measure()
        broker.ahead_s += by_s
        clock.measure()
        assert clock.now() == pytest.approx(broker.time(), abs=1)


class TestWorker:
    @pytest.mark.parametrize("ahead_s", [WRONG_S, -WRONG_S])
    def test_with_a_wrong_clock_jobs_expire_at_their_deadlines(
        self, other: Worker, broker: OtherClock, queue: Queue, ahead_s: float
    ) -> None:
        broker.ahead_s = ahead_s
        assert reply_of(queue, other, broker.time() + 20).status == "done"
        assert reply_of(queue, other, broker.time() - 20).status == "expired"
        broker.ahead_s -= 2 * WRONG_S  # Redis's clock is set back
        other.admission._next_reclaim = 0.0  # as if a second had passed
        assert reply_of(queue, other, broker.time() + 20).status == "done"

    def test_time_in_the_queue_is_by_redis_clock(self, other: Worker, broker: OtherClock, queue: Queue) -> None:
        broker.ahead_s = 5.0  # changed after the put, as if the job had waited
        assert 5.0 <= reply_of(queue, other, broker.time() + 80).timings["queue_s"] < 80

    def test_a_deadline_that_is_too_far_away_is_refused(self, other: Worker, queue: Queue) -> None:
        reply = reply_of(queue, other, time.time() + 2 * MAX_DEADLINE_S)
        assert reply.error is not None
        assert reply.error.code == "invalid_request"
        assert "it takes Unix seconds, at most a year from now" in reply.error.message


class TestClient:
    def test_a_call_sends_its_timeout_and_no_time_of_this_machine(self, client: Client) -> None:
        queue = queue_of(client)
        with ThreadPoolExecutor(1) as threads:
            calling = threads.submit(client.call, Search(["storm"]), timeout_s=60)
            taken = next(filter(None, (queue.take("a", LANES, 1, block_s=0.5) for _ in range(100))))
            values, job = wire.unpack(taken[0].data), taken[0].job()
            queue.reply([Answer(taken[0], Reply(job.id, hits=[[]]), job.reply_to)])
            calling.result()
        assert "deadline" not in values
        assert 0 < values["timeout_s"] <= 60
        assert job.deadline == pytest.approx(taken[0].put_ms / 1000 + values["timeout_s"])

    def test_a_submitted_job_with_a_deadline_in_milliseconds_is_refused_before_it_is_put(self, client: Client) -> None:
        with pytest.raises(InvalidRequest, match="it takes Unix seconds"):
            client.put(Embed(["storm"], deadline=time.time() * 1_000))
        assert queue_of(client).backlog()["interactive"] == 0
