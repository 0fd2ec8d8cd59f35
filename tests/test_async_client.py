"""The client for asyncio: many tasks in one loop, which may be cancelled, and a Redis that goes away meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from typing import Any

import numpy as np
import pytest
import redis
from conftest import PATIENCE_S, WORDS, RedisServer
from queues import Queue
from tcp_proxy import Proxy

from shoal import AsyncClient
from shoal.broker import async_connection, circuit_breaker
from shoal.broker.async_broker import AsyncBroker
from shoal.broker.async_connection import ConnectionMaker
from shoal.client.parts import TEXTS_PER_JOB
from shoal.errors import Internal, Overloaded, ShoalError, Unavailable
from shoal.jobs import LANES, Job, Options
from shoal.keys import Keys
from shoal.queue import dispatching
from shoal.queue.consumer import Answer
from shoal.queue.lane import LaneLimits
from shoal.queue.packed_jobs import PackedJobs, StreamEntry
from shoal.queue.producer import AsyncProducer
from shoal.replies import Reply
from shoal_workers.encoding.encoder import Encoder

NUM_TASKS = 200


def async_client(queue: Queue, url: str, **settings: Any) -> AsyncClient:
    """Return a client of the queue's pool."""
    own: dict[str, Any] = {"key_prefix": queue.keys.prefix, "pool": queue.keys.pool, "timeout_s": PATIENCE_S}
    return AsyncClient(url, **(own | settings))


async def wait_for(is_true: Callable[[], object]) -> None:
    """Let other tasks run until the condition holds; fail the test if it does not."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():
            await asyncio.sleep(0.01)


def answer_all(queue: Queue) -> int:
    """Answer all jobs that wait, each text by the number of its characters; return how many there were."""
    deliveries = queue.take("a", LANES, 1_000)
    jobs = [Job.unpack(delivery.data) for delivery in deliveries]
    pairs = zip(deliveries, jobs, strict=True)
    return queue.reply([Answer(delivery, reply_to(job), job.reply_to) for delivery, job in pairs])


def reply_to(job: Job) -> Reply:
    """Return a reply to the job whose vectors are the numbers of characters of its texts."""
    sizes = [len(text) for text in job.texts]
    return Reply(job.id, vectors=np.array(sizes, np.float32)[:, None], tokens=sizes, truncated=[False] * len(sizes))


@contextmanager
def answering(queue: Queue) -> Iterator[None]:
    """Answer jobs in a thread."""
    stopped = threading.Event()

    def serve() -> None:
        while not stopped.wait(0.01):
            answer_all(queue)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def num_interactive(queue: Queue) -> int:
    """Return how many interactive jobs are unanswered."""
    return queue.backlog()["interactive"]


async def outcomes(tasks: Sequence[asyncio.Task[Any]]) -> list[Any]:
    """Return the results and errors of the tasks."""
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.gather(*tasks, return_exceptions=True)


class TestManyTasks:
    def test_two_connections_serve_them(self, own_redis: RedisServer) -> None:
        queue = Queue.connect(own_redis.url, Keys())
        queue.join()

        async def use() -> None:
            async with async_client(queue, f"{own_redis.url}?socket_timeout={PATIENCE_S}") as client:
                before = len(queue.redis.client_list())
                tasks = [asyncio.create_task(client.embed("x" * n)) for n in range(NUM_TASKS)]
                await wait_for(lambda: num_interactive(queue) == NUM_TASKS)
                assert len(queue.redis.client_list()) == before + 2
                assert answer_all(queue) == NUM_TASKS
                assert [vector.tolist() for vector in await outcomes(tasks)] == [[n] for n in range(NUM_TASKS)]
                assert len(queue.redis.client_list()) == before + 2

        asyncio.run(use())
        queue.close()

    @pytest.mark.usefixtures("serving")
    def test_each_gets_its_own_vectors(self, queue: Queue, redis_url: str, encoder: Encoder) -> None:
        texts = [f"{word} {n}" for n in range(NUM_TASKS // len(WORDS)) for word in WORDS]

        async def use() -> list[Any]:
            async with async_client(queue, redis_url) as client:
                return await asyncio.gather(*map(client.embed, texts))

        assert np.stack(asyncio.run(use())) == pytest.approx(encoder.embed(texts, Options(), ""), abs=1e-5)

    def test_results_of_submitted_jobs_are_waited_for_without_a_connection_each(
        self, queue: Queue, redis_url: str
    ) -> None:
        async def use() -> None:
            async with async_client(queue, redis_url) as client:
                handles = await asyncio.gather(*(client.submit("embed", "x" * n) for n in range(NUM_TASKS)))
                tasks = [asyncio.create_task(handle.result()) for handle in handles]
                record = queue.keys.record(handles[-1].id)
                await wait_for(lambda: queue.redis.hexists(record, "watchers"))
                assert answer_all(queue) == NUM_TASKS
                assert [reply.tokens for reply in await outcomes(tasks)] == [[n] for n in range(NUM_TASKS)]

        asyncio.run(use())

    def test_a_large_job_does_not_keep_others_waiting(self, queue: Queue, redis_url: str) -> None:
        async def use() -> None:
            async with async_client(queue, redis_url) as client:
                tasks = [asyncio.create_task(client.embed(text)) for text in ("x" * 2**20, "small")]
                await wait_for(lambda: num_interactive(queue) == 2)
                answer_all(queue)
                assert [vector.tolist() for vector in await outcomes(tasks)] == [[2**20], [5]]

        asyncio.run(use())


async def embed_within(client: AsyncClient, deadline: asyncio.Timeout) -> None:
    """Embed a text until the deadline."""
    async with deadline:
        await client.embed("storm")


class TestCancelling:
    def test_the_jobs_of_a_cancelled_task_are_withdrawn(self, queue: Queue, redis_url: str) -> None:
        async def use() -> None:
            async with async_client(queue, redis_url) as client:
                tasks = [asyncio.create_task(client.embed(["storm"] * 40)) for _ in range(20)]
                await wait_for(lambda: num_interactive(queue) == 40)
                for task in tasks[1:]:
                    task.cancel()
                await wait_for(lambda: num_interactive(queue) == 2)
                answer_all(queue)
                vectors, *errors = await outcomes(tasks)
                assert vectors.shape == (40, 1)
                assert {type(error) for error in errors} == {asyncio.CancelledError}

        asyncio.run(use())
        assert num_interactive(queue) == 0

    def test_a_timeout_of_asyncio_withdraws_them(self, queue: Queue, redis_url: str) -> None:
        async def use() -> None:
            async with async_client(queue, redis_url) as client:
                await client.queue.pool.alive()  # it is connected
                deadline = asyncio.timeout(None)
                waiting = asyncio.create_task(embed_within(client, deadline))
                await wait_for(lambda: num_interactive(queue) == 1)
                deadline.reschedule(0)
                assert [type(error) for error in await outcomes([waiting])] == [TimeoutError]

        asyncio.run(use())
        assert num_interactive(queue) == 0

    def test_jobs_that_are_on_their_way_into_the_lane_are_withdrawn_then(self, own_redis: RedisServer) -> None:
        queue = Queue.connect(own_redis.url, Keys())
        queue.join()

        async def use(proxy: Proxy) -> None:
            async with async_client(queue, url_of(proxy)) as client:
                await client.queue.put("bulk", [Job("embed", ["storm"])])  # Redis knows the script
                proxy.hold()
                sent = client.connect().call("interactive", [job := Job("embed", ["storm"])])
                await asyncio.sleep(0)
                client.connect().forget([job])
                proxy.release()
                assert len(sent) == 1

        with Proxy(own_redis.port) as proxy:
            asyncio.run(use(proxy))
        assert queue.backlog() == {"interactive": 0, "bulk": 1}
        queue.close()

    def test_a_task_that_is_cancelled_at_once_puts_nothing(self, queue: Queue, redis_url: str) -> None:
        async def use() -> None:
            async with async_client(queue, redis_url) as client:
                task = asyncio.create_task(client.embed("storm"))
                await asyncio.sleep(0)
                task.cancel()
                assert [type(error) for error in await outcomes([task])] == [asyncio.CancelledError]

        asyncio.run(use())
        assert num_interactive(queue) == 0

    def test_a_task_that_waits_for_a_result_leaves_the_job_as_it_is(self, queue: Queue, redis_url: str) -> None:
        async def use() -> None:
            async with async_client(queue, redis_url) as client:
                handle = await client.submit("embed", "storm")
                task = asyncio.create_task(handle.result())
                await wait_for(lambda: queue.redis.hexists(queue.keys.record(handle.id), "watchers"))
                task.cancel()
                await outcomes([task])
                assert await handle.status() == "queued"
                answer_all(queue)
                assert (await handle.result()).tokens == [5]

        asyncio.run(use())


def url_of(proxy: Proxy) -> str:
    """Return the URL of the Redis behind the proxy, which may take any time to answer."""
    return f"redis://127.0.0.1:{proxy.port}/0?socket_timeout={PATIENCE_S}&socket_connect_timeout={PATIENCE_S}"


class TestStream:
    def test_an_async_iterable_is_read_no_further_than_the_window(self, queue: Queue, redis_url: str) -> None:
        window, num_texts, num_read = 3, 10 * TEXTS_PER_JOB + 5, 0

        async def source() -> AsyncIterator[str]:
            nonlocal num_read
            for num_read in range(1, num_texts + 1):
                yield "x" * num_read

        async def use() -> list[float]:
            found: list[float] = []
            async with async_client(queue, redis_url) as client:
                async for vector in client.embed_stream(source(), window=window):
                    found.append(float(vector[0]))
                    assert queue.backlog()["bulk"] <= window
                    assert num_read - len(found) < (window + 1) * TEXTS_PER_JOB
            return found

        with answering(queue):
            assert asyncio.run(use()) == list(range(1, num_texts + 1))

    def test_closing_it_early_withdraws_the_rest(self, queue: Queue, redis_url: str) -> None:
        async def use() -> None:
            async with async_client(queue, redis_url) as client:
                async with aclosing(client.embed_stream(["storm"] * 10 * TEXTS_PER_JOB, window=4)) as stream:
                    first = asyncio.create_task(anext(stream))
                    await wait_for(lambda: queue.backlog()["bulk"] == 4)
                    (delivery,) = queue.take("a", ["bulk"], 1)
                    job = Job.unpack(delivery.data)
                    queue.reply([Answer(delivery, reply_to(job), job.reply_to)])
                    assert (await first).tolist() == [5]
                await wait_for(lambda: queue.backlog()["bulk"] == 0)

        asyncio.run(use())

    def test_to_cancel_the_task_that_reads_withdraws_the_rest(self, queue: Queue, redis_url: str) -> None:
        async def use() -> None:
            async with async_client(queue, redis_url) as client:
                stream = client.embed_stream(["storm"] * 10 * TEXTS_PER_JOB, window=4)
                task = asyncio.create_task(anext(stream))
                await wait_for(lambda: queue.backlog()["bulk"] == 4)
                task.cancel()
                await outcomes([task])
                await wait_for(lambda: queue.backlog()["bulk"] == 0)

        asyncio.run(use())

    def test_while_the_lane_is_full_a_job_is_sent_again(self, queue: Queue, redis_url: str) -> None:
        pauses: list[float] = []
        stack = ExitStack()

        class Watched(AsyncClient):
            async def _sleep(self, seconds: float) -> None:
                if not pauses:
                    stack.enter_context(answering(queue))
                pauses.append(seconds)
                await asyncio.sleep(0.01)

        async def use() -> list[float]:
            own: dict[str, Any] = {"key_prefix": queue.keys.prefix, "pool": queue.keys.pool, "timeout_s": PATIENCE_S}
            async with Watched(redis_url, **own, limits=LaneLimits(max_jobs=1)) as client:
                texts = ["x"] * TEXTS_PER_JOB + ["yy"] * TEXTS_PER_JOB
                return [float(vector[0]) async for vector in client.embed_stream(texts, window=2)]

        queue.put("bulk", [Job("embed", ["storm"])])
        with stack:
            assert asyncio.run(use()) == [1.0] * TEXTS_PER_JOB + [2.0] * TEXTS_PER_JOB
        assert pauses


class TestRedisAway:
    def test_the_loop_runs_while_redis_does_not_answer(self, own_redis: RedisServer) -> None:
        async def use(proxy: Proxy) -> None:
            async with AsyncClient(url_of(proxy)) as client:
                await client.queue.pool.alive()
                proxy.hold()
                tasks = [asyncio.create_task(client.queue.pool.alive()) for _ in range(3)]
                for _ in range(100):
                    await asyncio.sleep(0)
                assert not any(task.done() for task in tasks)
                proxy.release()  # which a blocked loop would never come to
                assert await outcomes(tasks) == [set()] * 3

        with Proxy(own_redis.port) as proxy:
            asyncio.run(use(proxy))

    def test_tasks_that_wait_learn_that_redis_went_and_it_goes_on_when_it_is_back(self, own_redis: RedisServer) -> None:
        queue = Queue.connect(own_redis.url, Keys())
        queue.join()

        async def use() -> None:
            async with async_client(queue, own_redis.url) as client:
                handle = await client.submit("embed", "storm", lane="bulk")
                tasks = [asyncio.create_task(client.embed("storm")) for _ in range(20)]
                tasks.append(asyncio.create_task(client.embed(["storm"] * 40)))
                await wait_for(lambda: num_interactive(queue) == 22)
                waiting = asyncio.create_task(handle.result())
                await wait_for(lambda: queue.redis.hexists(queue.keys.record(handle.id), "watchers"))
                own_redis.stop()
                for error in await outcomes([*tasks, waiting]):
                    assert isinstance(error, Unavailable)
                with pytest.raises(Unavailable, match="check that it runs"):
                    await client.embed("storm")
                own_redis.start()
                with answering(queue):
                    assert np.array_equal(await client.embed("storm"), [5])
                    assert (await handle.result()).tokens == [5]

        asyncio.run(use())
        queue.close()

    def test_a_restart_that_takes_a_moment_loses_nothing(
        self, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dispatching, "GRACE_S", PATIENCE_S)
        queue = Queue.connect(own_redis.url, Keys())
        queue.join()

        async def use() -> None:
            async with async_client(queue, own_redis.url) as client:
                tasks = [asyncio.create_task(client.embed("storm")) for _ in range(20)]
                await wait_for(lambda: num_interactive(queue) == 20)
                own_redis.stop()
                own_redis.start()
                assert answer_all(queue) == 20
                assert [vector.tolist() for vector in await outcomes(tasks)] == [[5]] * 20

        asyncio.run(use())
        queue.close()

    def test_while_it_is_silent_all_fail_at_once(self, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        async def use(proxy: Proxy) -> None:
            broker = AsyncBroker(ConnectionMaker(url_of(proxy), 0.0))
            assert await broker.execute("PING") == b"PONG"
            monkeypatch.setattr(circuit_breaker, "TRY_EVERY_S", PATIENCE_S)
            monkeypatch.setattr(async_connection, "LATE_S", 0.0)
            proxy.hold()
            with pytest.raises(Unavailable):
                await broker.execute("PING", block_s=-PATIENCE_S)  # its time is over at once
            proxy.release()
            for error in await outcomes([asyncio.create_task(broker.execute("PING")) for _ in range(20)]):
                assert isinstance(error, Unavailable)  # although it would be answered
            await broker.close()

        with Proxy(own_redis.port) as proxy:
            asyncio.run(use(proxy))

    def test_an_answer_that_came_while_something_held_the_loop_up_is_read(
        self, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def use() -> None:
            connection = ConnectionMaker(own_redis.url, PATIENCE_S).make()
            await connection.connect()
            ping = connection.pack_command("PING")
            assert await connection.ask(ping, 1, block_s=-PATIENCE_S) == [b"PONG"]  # its time is over at once
            monkeypatch.setattr(async_connection, "LATE_S", 0.0)
            with pytest.raises(redis.TimeoutError):
                await connection.ask(connection.pack_command("BLPOP", "nothing", 0), 1, block_s=-PATIENCE_S)
            await connection.disconnect()

        monkeypatch.setattr(async_connection, "LATE_S", PATIENCE_S)
        asyncio.run(use())

    def test_connections_that_redis_has_closed_are_replaced(self, own_redis: RedisServer) -> None:
        queue = Queue.connect(own_redis.url, Keys())

        async def use() -> None:
            async with async_client(queue, own_redis.url) as client:
                for _ in range(3):
                    assert await client.queue.pool.alive() == set()
                    queue.redis.client_kill_filter(_type="normal", skipme=True)

        asyncio.run(use())
        queue.close()

    def test_a_replica_is_left_for_the_primary(self, own_redis: RedisServer) -> None:
        async def use() -> None:
            async with AsyncClient(own_redis.url) as client:
                with redis.Redis.from_url(own_redis.url) as connection:
                    connection.replicaof("127.0.0.1", 1)
                    with pytest.raises(Unavailable, match="it is a replica"):
                        await client.submit("embed", "storm")
                    connection.replicaof("NO", "ONE")
                assert await (await client.submit("embed", "storm")).status() == "queued"

        asyncio.run(use())

    def test_a_full_redis_refuses(self, own_redis: RedisServer) -> None:
        async def use() -> None:
            async with AsyncClient(own_redis.url) as client:
                with redis.Redis.from_url(own_redis.url) as connection:
                    connection.config_set("maxmemory", 1)
                with pytest.raises(Overloaded, match="no memory left"):
                    await client.embed("storm")

        asyncio.run(use())


class TestClosing:
    def test_tasks_that_wait_are_told_and_none_is_left(self, queue: Queue, redis_url: str) -> None:
        async def use() -> None:
            client = async_client(queue, redis_url)
            handle = await client.submit("embed", "storm", lane="bulk")
            tasks = [asyncio.create_task(steps) for steps in (client.embed("storm"), handle.result())]
            await wait_for(lambda: num_interactive(queue) == 1)
            await wait_for(lambda: queue.redis.hexists(queue.keys.record(handle.id), "watchers"))
            await client.close()
            for error in await outcomes(tasks):
                assert isinstance(error, Unavailable)
                assert "the client was closed" in str(error)
            assert asyncio.all_tasks() == {asyncio.current_task()}
            await client.close()

        asyncio.run(use())
        answer_all(queue)

    def test_one_that_was_never_used_is_closed_like_any_other(self, redis_url: str) -> None:
        async def use() -> None:
            async with AsyncClient(redis_url):
                pass

        asyncio.run(use())

    def test_closed_it_serves_another_loop_and_open_it_does_not(self, queue: Queue, redis_url: str) -> None:
        client = async_client(queue, redis_url)

        async def use() -> set[str]:
            return await client.queue.pool.alive()

        async def close() -> None:
            await client.close()

        with asyncio.Runner() as first, asyncio.Runner() as second:
            assert first.run(use()) == set()
            for steps in (use, close):
                with pytest.raises(RuntimeError, match="in use in another event loop: make one for each loop"):
                    second.run(steps())
            first.run(close())
            assert second.run(use()) == set()
            second.run(close())

    def test_without_a_loop_it_says_so(self, redis_url: str) -> None:
        with pytest.raises(RuntimeError, match="no running event loop"):
            AsyncClient(redis_url).connect()


def test_after_an_unforeseen_error_tasks_that_wait_are_told_and_it_goes_on(
    queue: Queue, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: AsyncProducer, puts: Sequence[PackedJobs]) -> list[list[StreamEntry | None] | ShoalError]:
        raise RuntimeError("unforeseen")

    async def use() -> None:
        async with async_client(queue, redis_url) as client:
            with monkeypatch.context() as patch:
                patch.setattr(AsyncProducer, "put_many", fail)
                with pytest.raises(Internal, match="in an unforeseen way"):
                    await client.embed("storm")
            with answering(queue):
                assert np.array_equal(await client.embed("storm"), [5])

    asyncio.run(use())
