"""The client for asyncio: many tasks in one event loop, cancelled tasks, streams, and closing."""

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from awaiting import answer_all, answering, async_client, in_loop, num_interactive, outcomes, reply_to, url_of, wait_for
from conftest import RedisServer, wait_until
from queues import Queue, set_limits
from tcp_proxy import Proxy

from shoal import AsyncClient
from shoal.broker.async_broker import AsyncBroker, ConnectionMaker
from shoal.contract.jobs import TEXTS_PER_JOB
from shoal.errors import Overloaded, Unavailable
from shoal.operations import Embed
from shoal.queue.consumer import Answer
from shoal.queue.lane import LaneLimits

NUM_TASKS = 200


@pytest.fixture
def client(queue: Queue, redis_url: str) -> AsyncClient:
    """A client of the test's own pool. It is closed when the test's event loop ends."""
    return async_client(queue, redis_url)


@in_loop
async def test_two_connections_serve_many_tasks(own_redis: RedisServer, own_queue: Queue) -> None:
    async with async_client(own_queue, own_redis.url) as client:
        assert num_interactive(own_queue) == 0
        before = len(own_queue.redis.client_list())
        tasks = [asyncio.create_task(client.embed("x" * n)) for n in range(NUM_TASKS)]
        await wait_for(lambda: num_interactive(own_queue) == NUM_TASKS)
        assert len(own_queue.redis.client_list()) == before + 2
        assert answer_all(own_queue) == NUM_TASKS
        assert [vector.tolist() for vector in await outcomes(tasks)] == [[n] for n in range(NUM_TASKS)]
        assert len(own_queue.redis.client_list()) == before + 2


class TestCancelling:
    @in_loop
    async def test_the_jobs_of_a_cancelled_task_are_withdrawn(self, queue: Queue, redis_url: str) -> None:
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
        assert num_interactive(queue) == 0

    @in_loop
    async def test_a_cancelled_task_that_waits_for_a_result_does_not_cancel_the_job(
        self, queue: Queue, client: AsyncClient
    ) -> None:
        handle = await client.submit("embed", "storm")
        task = asyncio.create_task(handle.result())
        await wait_for(lambda: queue.redis.hexists(queue.keys.record(handle.id), "watchers"))
        task.cancel()
        await outcomes([task])
        assert await handle.status() == "queued"
        answer_all(queue)
        assert (await handle.result()).tokens == [5]


class TestStream:
    def test_an_async_iterable_is_not_read_beyond_the_window(self, queue: Queue, redis_url: str) -> None:
        window, num_texts, num_read = 3, 10 * TEXTS_PER_JOB + 5, 0

        async def source() -> AsyncIterator[str]:
            nonlocal num_read
            for num_read in range(1, num_texts + 1):
                yield "x" * num_read

        async def use() -> None:
            async with async_client(queue, redis_url) as client:
                num_found = 0
                async for vector in client.embed_stream(source(), window=window):
                    num_found += 1
                    assert vector.tolist() == [num_found]
                    assert queue.backlog()["bulk"] <= window
                    assert num_read - num_found < (window + 1) * TEXTS_PER_JOB
            assert num_found == num_texts

        with answering(queue):
            asyncio.run(use())

    @in_loop
    async def test_closing_it_withdraws_a_job_that_was_sent_again(self, queue: Queue, client: AsyncClient) -> None:
        """A job whose vectors have another fingerprint than the first ones is sent again, under another id."""
        stream = client.open_stream("bulk", {})
        for text in ("x", "yy"):
            await stream.send([text])
        await wait_for(lambda: queue.backlog()["bulk"] == 2)
        for delivery, fingerprint in zip(queue.take("a", ["bulk"], 2), "ab", strict=True):
            job = delivery.job()
            queue.reply([Answer(delivery, replace(reply_to(job), fingerprint=fingerprint), job.reply_to)])
        assert (await stream.receive()).tolist() == [[1.0]]
        second = asyncio.create_task(stream.receive())
        await wait_for(lambda: queue.backlog()["bulk"] == 1)
        second.cancel()
        await outcomes([second])
        stream.close()
        await wait_for(lambda: queue.backlog()["bulk"] == 0)

    @in_loop
    async def test_a_job_refused_by_a_full_lane_is_sent_again(self, queue: Queue, client: AsyncClient) -> None:
        queue.pool.announce("a", {"state": "ready", "texts_per_s": 1e6})  # so that a refused job waits only 1 s
        set_limits(queue, LaneLimits(max_jobs=1))
        queue.put("bulk", [Embed(["storm"])])
        stream = client.open_stream("bulk", {})
        for text in ("x", "yy"):
            await stream.send([text])
        await wait_for(lambda: all(pending.done() for _, pending in stream.sent))
        assert {type(pending.result().error) for _, pending in stream.sent} == {Overloaded}
        with answering(queue):
            assert [(await stream.receive()).tolist() for _ in range(2)] == [[[1.0]], [[2.0]]]


class TestClosing:
    @in_loop
    async def test_waiting_tasks_get_an_error_and_their_jobs_are_withdrawn(self, queue: Queue, redis_url: str) -> None:
        client = async_client(queue, redis_url)
        handle = await client.submit("embed", "storm", lane="bulk")
        texts = ["storm"] * 20 * TEXTS_PER_JOB
        tasks = [asyncio.create_task(steps) for steps in (client.embed(texts), handle.result())]
        await wait_for(lambda: num_interactive(queue) == 20)
        queue.take("a", ["interactive"], 5)  # a worker has taken some of the jobs
        await wait_for(lambda: queue.redis.hexists(queue.keys.record(handle.id), "watchers"))
        await client.close()
        assert num_interactive(queue) == 0
        for error in await outcomes(tasks):
            assert isinstance(error, Unavailable)
            assert "the client was closed" in str(error)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await client.close()
        answer_all(queue)

    @in_loop
    async def test_tasks_that_read_the_cache_get_an_error_and_do_not_reopen_the_client(self, proxy: Proxy) -> None:
        client = AsyncClient(url_of(proxy))
        await client.queue.pool.alive()
        assert client.long_jobs.list() == []
        assert proxy.num_open() > 1
        proxy.hold()
        tasks = [asyncio.create_task(client.embed("storm")) for _ in range(3)]
        await asyncio.sleep(0)
        await client.close()
        for error in await outcomes(tasks):
            assert isinstance(error, Unavailable)
            assert "the client was closed" in str(error)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        proxy.release()
        await wait_for(lambda: proxy.num_open() == 0)

    @pytest.mark.parametrize("num_steps", [1, 3])
    @in_loop
    async def test_commands_to_redis_while_the_loop_ends_do_not_hang(self, redis_url: str, num_steps: int) -> None:
        broker = AsyncBroker(ConnectionMaker(redis_url))
        first = asyncio.create_task(broker.execute("PING"))
        for _ in range(num_steps):
            await asyncio.sleep(0)
        second = asyncio.create_task(broker.execute("PING"))
        for task in asyncio.all_tasks() - {asyncio.current_task(), first, second}:
            task.cancel()
        assert {type(outcome) for outcome in await outcomes([first, second])} <= {bytes, Unavailable}
        await broker.close()

    @in_loop
    async def test_closing_goes_on_when_its_task_is_cancelled(self, own_queue: Queue, proxy: Proxy) -> None:
        client = AsyncClient(url_of(proxy))
        task = asyncio.create_task(client.embed("storm"))
        await wait_for(lambda: num_interactive(own_queue) == 1)
        proxy.hold()
        closing = asyncio.create_task(client.close())
        await asyncio.wait([task])
        closing.cancel()
        assert [type(error) for error in await outcomes([closing])] == [asyncio.CancelledError]
        proxy.release()
        await wait_for(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        await wait_for(lambda: proxy.num_open() == 0)
        await client.close()
        assert num_interactive(own_queue) == 0

    def test_the_end_of_a_loop_closes_the_client_and_the_next_loop_reopens_it(
        self, own_queue: Queue, proxy: Proxy
    ) -> None:
        client, waiting = AsyncClient(url_of(proxy)), list[asyncio.Task[Any]]()

        async def wait() -> None:
            waiting.append(asyncio.create_task(client.embed("storm")))
            await wait_for(lambda: num_interactive(own_queue) == 1)
            await client.queue.pool.alive()  # the put is answered first, and its answer names the entry to withdraw

        for _ in range(2):
            asyncio.run(wait())
            assert waiting[-1].cancelled()
            assert num_interactive(own_queue) == 0
            wait_until(lambda: proxy.num_open() == 0)
        asyncio.run(client.close())

    @pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
    def test_a_client_can_be_used_in_another_loop_once_it_or_its_loop_is_closed(
        self, queue: Queue, redis_url: str
    ) -> None:
        client = async_client(queue, redis_url)

        async def use() -> set[str]:
            return await client.queue.pool.alive()

        for _ in range(2):
            loop = asyncio.new_event_loop()
            assert loop.run_until_complete(use()) == set()
            loop.close()  # the loop's tasks have not ended
        with asyncio.Runner() as first, asyncio.Runner() as second:
            assert first.run(use()) == set()
            for steps in (use, client.close):
                with pytest.raises(RuntimeError, match="in use in another event loop: make one for each loop"):
                    second.run(steps())
            first.run(client.close())
            assert second.run(use()) == set()
            second.run(client.close())
        with pytest.raises(RuntimeError, match="no running event loop"):
            _ = client.dispatcher
        gc.collect()
