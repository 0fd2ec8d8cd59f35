"""Threads that wait for results of submitted jobs: all of a process share one connection, and are told at once."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from blocking import ThreadDispatcher as Dispatching
from conftest import PATIENCE_S, RedisServer, wait_until
from queues import Queue

import shoal.queue.dispatcher
from shoal.contract.jobs import LANES
from shoal.contract.keys import Keys
from shoal.contract.replies import Reply
from shoal.errors import Cancelled, Unavailable, UnknownJob
from shoal.operations import Embed
from shoal.queue.delivery import Answer
from shoal.queue.producer import Producer

NUM_JOBS = 40


@pytest.fixture(autouse=True)
def look_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads look for a result again when they are told to only."""
    monkeypatch.setattr(shoal.queue.dispatcher, "LOOK_AGAIN_S", 2 * PATIENCE_S)


@pytest.fixture
def dispatcher(queue: Queue) -> Iterator[Dispatching]:
    """A dispatcher as each process has one."""
    dispatcher = Dispatching(queue)
    yield dispatcher
    dispatcher.close()


def submit(queue: Queue, num_jobs: int = 1) -> list[str]:
    """Put jobs with a record, and return their ids."""
    jobs = [Embed(["storm"]) for _ in range(num_jobs)]
    queue.put("interactive", jobs)
    return [job.id for job in jobs]


def answer_all(queue: Queue) -> None:
    """Answer all jobs that wait."""
    deliveries = queue.take("w", LANES, 10_000)
    queue.reply(Answer(delivery, Reply(delivery.job().id)) for delivery in deliveries)


@contextmanager
def waits(queue: Queue, ids: list[str], *dispatchers: Dispatching) -> Iterator[list[Future[Reply | None]]]:
    """A thread for each job and dispatcher that waits for the result, all of which have begun to."""
    with ThreadPoolExecutor(len(ids) * len(dispatchers)) as threads:
        found = [threads.submit(one.wait_result, job_id, PATIENCE_S) for job_id in ids for one in dispatchers]
        wait_until(lambda: all(num_watchers(queue, job_id) >= len(set(dispatchers)) for job_id in ids))
        yield found


def num_watchers(queue: Queue, job_id: str) -> int:
    """The number of processes that are told when the job is answered."""
    return len((queue.redis.hget(queue.keys.record(job_id), "watchers") or b"").split())


def test_threads_that_wait_hold_no_connections_and_each_gets_its_result(queue: Queue, dispatcher: Dispatching) -> None:
    ids = submit(queue, NUM_JOBS)
    with waits(queue, ids, dispatcher) as results:
        blocked = {about["cmd"] for about in queue.redis.client_list() if "b" in about["flags"]}
        assert blocked <= {"xread"}
        wait_until(lambda: queue.redis.info("clients")["blocked_clients"] == 1)
        answer_all(queue)
        assert [reply.id if reply else None for reply in (result.result() for result in results)] == ids


def test_several_threads_and_processes_wait_for_one_result_and_all_get_it(
    queue: Queue, dispatcher: Dispatching
) -> None:
    other = Dispatching(queue)
    (job_id,) = submit(queue)
    with waits(queue, [job_id], *[dispatcher] * 4, other) as results:
        answer_all(queue)
        assert [reply.id if reply else None for reply in (result.result() for result in results)] == [job_id] * 5
    other.close()
    assert queue.wait_result(job_id, 0)


def test_a_thread_that_waits_for_a_job_that_is_cancelled_is_told(queue: Queue, dispatcher: Dispatching) -> None:
    (job_id,) = submit(queue)
    with waits(queue, [job_id], dispatcher) as (result,):
        assert queue.cancel(job_id) == "cancelled"
        reply = result.result()
    assert reply is not None
    with pytest.raises(Cancelled):
        Reply.join([reply])


def test_a_job_that_is_answered_while_the_thread_begins_to_wait_is_found(queue: Queue) -> None:
    class Slow(Producer):
        async def watch_result(self, job_id: str, address: str) -> bool:
            answer_all(queue)
            return await super().watch_result(job_id, address)

    dispatcher = Dispatching(queue, Slow)
    (job_id,) = submit(queue)
    assert dispatcher.wait_result(job_id, PATIENCE_S)
    dispatcher.close()


def test_without_a_note_a_thread_looks_again(
    queue: Queue, dispatcher: Dispatching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shoal.queue.dispatcher, "LOOK_AGAIN_S", 0.01)

    async def watch_nothing(*_: object) -> bool:
        return True

    monkeypatch.setattr(Producer, "watch_result", watch_nothing)
    (job_id,) = submit(queue)
    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(dispatcher.wait_result, job_id, PATIENCE_S)
        answer_all(queue)
        assert result.result()


def test_a_wait_ends_when_its_time_is_over(queue: Queue, dispatcher: Dispatching) -> None:
    (job_id,) = submit(queue)
    assert dispatcher.wait_result(job_id, 0) is None
    assert num_watchers(queue, job_id) == 0
    assert dispatcher.wait_result(job_id, 0.0004) is None
    with pytest.raises(UnknownJob):
        dispatcher.wait_result("nobody", PATIENCE_S)


def test_threads_that_wait_are_told_that_redis_is_away(own_redis: RedisServer) -> None:
    queue = Queue.connect(own_redis.url, Keys())
    dispatcher = Dispatching(queue)
    with waits(queue, submit(queue, 3), dispatcher) as results:
        own_redis.stop()
        for result in results:
            with pytest.raises(Unavailable):
                result.result()
    dispatcher.close()
    queue.close()
