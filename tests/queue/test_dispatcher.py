"""The dispatcher delivers each reply, and each result of a submitted job, to the client that waits for it."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest
from awaiting import in_loop
from blocking import ThreadDispatcher, ThreadPending
from conftest import PATIENCE_S, wait_until
from queues import Queue, set_limits

import shoal.queue.dispatcher
from shoal.contract.jobs import LANES
from shoal.contract.replies import Reply
from shoal.errors import Internal, ShoalError, Unavailable
from shoal.operations import Embed
from shoal.queue.dispatcher import Pending
from shoal.queue.lane import MAX_JOINED_BYTES, MAX_JOINED_JOBS, MAX_PUTS_OF_CLIENT, LaneLimits, PackedJobs, take_groups
from shoal.queue.producer import Producer, ReplyStream


def by_client(*puts: PackedJobs) -> dict[tuple[str, str], list[PackedJobs]]:
    return {key: [put for put in puts if (put.client, put.lane) == key] for key in {(p.client, p.lane) for p in puts}}


def test_a_group_has_a_client_a_lane_and_limits_and_a_client_with_few_puts_goes_first() -> None:
    def packed(lane: str, client: str, *texts: str) -> PackedJobs:
        return PackedJobs.pack(lane, [Embed([text]) for text in texts], "me", client)

    many, few = [packed("bulk", "many", "a") for _ in range(2 * MAX_PUTS_OF_CLIENT + 1)], packed("bulk", "few", "b")
    puts = by_client(*many, few)
    assert take_groups(puts) == [[few], many[:MAX_PUTS_OF_CLIENT]]
    assert take_groups(puts) == [many[MAX_PUTS_OF_CLIENT:-1]]
    assert puts == by_client(many[-1])
    half = [packed("bulk", "a", *"x" * (MAX_JOINED_JOBS // 2)) for _ in range(3)]
    other, large = packed("interactive", "a", "x"), packed("bulk", "b", "x" * (MAX_JOINED_BYTES + 1))
    last = packed("bulk", "b", "x")
    puts = by_client(*half, other, large, last)
    assert take_groups(puts) == [[other], [large], half[:2]]
    assert puts == by_client(half[2], last)


class FailingStream(ReplyStream):
    """A stream of replies. Each of its `failures` is called, and raises an error, in place of one read."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.failures = list[Callable[[], None]]()

    async def wait(self, timeout_s: float = 0.05) -> list[Reply]:
        if self.failures:
            self.failures.pop(0)()
        return await super().wait(timeout_s)


class Hooked(Producer):
    """A producer that awaits `before` ahead of each round trip of puts, and calls `after` at its end."""

    stream: FailingStream
    after: Callable[[], object] = staticmethod(lambda: None)

    async def before(self, puts: Sequence[PackedJobs]) -> None:
        """Do nothing."""

    async def put_many(self, puts: Sequence[PackedJobs]) -> list[dict[str, Any] | ShoalError]:
        await self.before(puts)
        outcomes = await super().put_many(puts)
        self.after()
        return outcomes

    def inbox(self, address: str) -> ReplyStream:
        self.stream = FailingStream(self.commands, self.keys.replies(address))
        return self.stream


@pytest.fixture
def dispatcher(queue: Queue) -> Iterator[ThreadDispatcher]:
    dispatcher = ThreadDispatcher(queue, Hooked)
    yield dispatcher
    dispatcher.close()


@pytest.fixture
def producer(dispatcher: ThreadDispatcher) -> Hooked:
    assert isinstance(dispatcher.producer, Hooked)
    return dispatcher.producer


def answer_all(queue: Queue) -> int:
    return queue.answer(queue.take("a", LANES, 10_000))


@in_loop
async def test_a_cancellation_that_comes_with_the_reply_is_not_lost() -> None:
    pending = Pending()
    waiting = asyncio.create_task(pending.within(PATIENCE_S))
    await asyncio.sleep(0)
    pending.set_result(Reply("a"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await pending.within(0)).id == "a"


def test_jobs_of_a_caller_that_leaves_during_their_put_are_withdrawn(
    queue: Queue, dispatcher: ThreadDispatcher, producer: Hooked
) -> None:
    stays, *leaves = (Embed(["storm"]) for _ in range(3))
    left = Event()

    def leave() -> None:  # Redis has accepted the put, and the caller does not know it yet
        dispatcher.asynchronous.forget(leaves)
        left.set()

    producer.after = leave
    for odd in (b"\xc1", b"no map", b"", Reply("of no caller").pack()):
        queue.redis.xadd(queue.keys.replies(dispatcher.address), {"reply": odd})
    pending = dispatcher.send("interactive", [stays, *leaves])
    assert left.wait(PATIENCE_S)
    wait_until(lambda: queue.backlog()["interactive"] == 1)
    assert queue.redis.hget(queue.keys.of_lane("interactive", "load"), "texts") == b"1"
    assert answer_all(queue) == 1
    assert pending[0].result(PATIENCE_S).id == stays.id


def call_at_once(dispatcher: ThreadDispatcher, *calls: tuple[str, Embed]) -> list[ThreadPending]:
    """Send jobs, each of the client with this name, before any of them is put."""

    async def call() -> list[Pending]:
        return [dispatcher.asynchronous.send("bulk", [job], client)[0] for client, job in calls]

    return [ThreadPending(dispatcher, pending) for pending in dispatcher.run(call())]


def test_the_puts_of_a_client_are_one_run_of_the_script(own_queue: Queue) -> None:
    own_queue.put("bulk", [Embed(["storm"])])  # so that Redis knows the script
    dispatcher, before = ThreadDispatcher(own_queue), own_queue.redis.info("commandstats")["cmdstat_evalsha"]["calls"]
    pending = call_at_once(dispatcher, *((client, Embed(["storm"])) for client in "aabbba"))
    wait_until(lambda: all(each.is_put for each in pending))
    assert own_queue.redis.info("commandstats")["cmdstat_evalsha"]["calls"] - before == 2
    assert answer_all(own_queue) == 7
    assert {each.result(PATIENCE_S).status for each in pending} == {"done"}
    dispatcher.close()


def test_a_put_that_fails_does_not_fail_the_others(
    queue: Queue, dispatcher: ThreadDispatcher, producer: Hooked
) -> None:
    jobs = [Embed(["storm"]) for _ in range(3)]
    object.__setattr__(jobs[1], "id", "no name")
    first, second, third = call_at_once(dispatcher, *(("a", job) for job in jobs))
    with pytest.raises(Unavailable):
        second.result(PATIENCE_S)
    wait_until(lambda: first.is_put and third.is_put)
    assert queue.backlog()["bulk"] == 2

    async def fail(puts: Sequence[PackedJobs]) -> None:
        raise Unavailable("Redis does not answer")

    def fail_later() -> None:
        vars(producer)["before"] = fail

    set_limits(queue, LaneLimits(max_jobs=4))
    producer.after = fail_later
    accepted, *others = call_at_once(dispatcher, *((client, Embed(["storm"])) for client in "bcc"))
    for other in others:
        with pytest.raises(Unavailable):
            other.result(PATIENCE_S)
    assert (accepted.is_put, queue.backlog()["bulk"]) == (True, 3)


def test_after_an_unforeseen_error_callers_get_it_and_the_dispatcher_goes_on(
    queue: Queue, dispatcher: ThreadDispatcher, producer: Hooked
) -> None:
    first, second = (Embed(["storm"]) for _ in range(2))
    (pending,) = dispatcher.send("interactive", [first])

    def fail() -> None:
        raise RuntimeError("unforeseen")

    producer.stream.failures.append(fail)
    with pytest.raises(Internal):
        pending.result(PATIENCE_S)
    (pending,) = dispatcher.send("interactive", [second])
    wait_until(lambda: pending.is_put)
    answer_all(queue)
    assert pending.result(PATIENCE_S).id == second.id


def test_a_caller_that_comes_when_redis_is_back_gets_no_error(
    queue: Queue, dispatcher: ThreadDispatcher, producer: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shoal.queue.dispatcher, "GRACE_S", -1.0)
    late = list[Pending]()
    first, second = (Embed(["storm"]) for _ in range(2))
    (pending,) = dispatcher.send("interactive", [first])

    def fail() -> None:
        raise Unavailable("away")

    def fail_late() -> None:
        late.extend(dispatcher.asynchronous.send("interactive", [second]))
        fail()

    producer.stream.failures += [fail, fail_late]
    with pytest.raises(Unavailable, match="away"):
        pending.result(PATIENCE_S)
    wait_until(lambda: late and late[0].is_put)
    answer_all(queue)
    assert ThreadPending(dispatcher, late[0]).result(PATIENCE_S).id == second.id


def test_large_jobs_do_not_delay_other_jobs(queue: Queue, dispatcher: ThreadDispatcher, producer: Hooked) -> None:
    is_sending, is_through = asyncio.Event(), asyncio.Event()

    async def send_slowly(puts: Sequence[PackedJobs]) -> None:
        if any(put.num_bytes > 2**20 for put in puts):
            is_sending.set()
            await is_through.wait()

    vars(producer)["before"] = send_slowly
    dispatcher.send("interactive", [Embed(["rain"])])
    (sending,) = dispatcher.send("interactive", [Embed(["x" * 2**20] * 2)])
    dispatcher.run(is_sending.wait())
    (pending,) = dispatcher.send("interactive", [Embed(["storm"])])
    wait_until(lambda: pending.is_put)
    assert queue.backlog()["interactive"] == 2

    async def let_through() -> None:
        is_through.set()

    dispatcher.run(let_through())
    wait_until(lambda: sending.is_put)
    assert answer_all(queue) == 3


# Results of submitted jobs


@pytest.fixture(autouse=True)
def look_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shoal.queue.dispatcher, "LOOK_AGAIN_S", 2 * PATIENCE_S)


def submit(queue: Queue, num_jobs: int = 1) -> list[str]:
    jobs = [Embed(["storm"]) for _ in range(num_jobs)]
    queue.put("interactive", jobs)
    return [job.id for job in jobs]


@contextmanager
def waits(queue: Queue, ids: list[str], *dispatchers: ThreadDispatcher) -> Iterator[list[Future[Reply | None]]]:
    """For each job and dispatcher, start a thread that waits for the result; return the futures once all wait."""
    with ThreadPoolExecutor(len(ids) * len(dispatchers)) as threads:
        found = [threads.submit(one.wait_result, job_id, PATIENCE_S) for job_id in ids for one in dispatchers]
        wait_until(lambda: all(num_watchers(queue, job_id) >= len(set(dispatchers)) for job_id in ids))
        yield found


def num_watchers(queue: Queue, job_id: str) -> int:
    return len((queue.redis.hget(queue.keys.record(job_id), "watchers") or b"").split())


def test_threads_that_wait_use_no_connections_and_each_gets_its_result(
    queue: Queue, dispatcher: ThreadDispatcher
) -> None:
    ids = submit(queue, 40)
    with waits(queue, ids, dispatcher) as results:
        blocked = {about["cmd"] for about in queue.redis.client_list() if "b" in about["flags"]}
        assert blocked <= {"xread"}
        wait_until(lambda: queue.redis.info("clients")["blocked_clients"] == 1)
        answer_all(queue)
        assert [reply.id if reply else None for reply in (result.result() for result in results)] == ids
    other, (job_id,) = ThreadDispatcher(queue), submit(queue)
    with waits(queue, [job_id], *[dispatcher] * 4, other) as results:  # threads and processes wait for one result
        assert dispatcher.wait_result(job_id, 0.3) is None  # one more thread, which gives up
        answer_all(queue)
        replies = [result.result(PATIENCE_S / 2) for result in results]  # at once, long before their timeout
        assert [reply.id if reply else None for reply in replies] == [job_id] * 5
    other.close()
    assert queue.wait_result(job_id, 0)
    (job_id,) = submit(queue)
    with waits(queue, [job_id], dispatcher) as (result,):
        assert queue.cancel(job_id) == "cancelled"
        reply = result.result(PATIENCE_S / 2)  # at once too
        assert reply is not None
        assert reply.status == "cancelled"


def test_a_job_that_is_answered_while_the_thread_begins_to_wait_is_found(
    queue: Queue, dispatcher: ThreadDispatcher, producer: Hooked
) -> None:
    async def watch(job_id: str, address: str) -> bool:
        answer_all(queue)
        return await Producer.watch_result(producer, job_id, address)

    vars(producer)["watch_result"] = watch
    (job_id,) = submit(queue)
    assert dispatcher.wait_result(job_id, PATIENCE_S)


def test_without_a_note_a_thread_looks_again(
    queue: Queue, dispatcher: ThreadDispatcher, producer: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shoal.queue.dispatcher, "LOOK_AGAIN_S", 0.01)

    async def watch_nothing(*_: object) -> bool:
        return True

    vars(producer)["watch_result"] = watch_nothing
    (job_id,) = submit(queue)
    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(dispatcher.wait_result, job_id, PATIENCE_S)
        answer_all(queue)
        assert result.result()
