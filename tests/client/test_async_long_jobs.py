"""Long jobs in an event loop: they do not block the loop, and tasks are cancelled and clients closed meanwhile."""

import asyncio
from pathlib import Path

import pytest
from awaiting import async_client, in_loop, outcomes, url_of, wait_for
from queues import Queue
from tcp_proxy import Proxy

from shoal import AsyncClient, Client
from shoal.errors import Unavailable, UnknownJob

pytest_plugins = ["long_job_fixtures"]
pytestmark = pytest.mark.usefixtures("rq")


@pytest.fixture
def job_id(client: Client, tmp_path: Path) -> str:
    """The id of a long job that waits for a runner."""
    return client.bulk(tmp_path / "news.csv", tmp_path / "vectors").id


async def turns(num: int = 50) -> None:
    """Let other tasks run for a while."""
    for _ in range(num):
        await asyncio.sleep(0)


@in_loop
async def test_a_slow_redis_does_not_block_the_loop(proxy: Proxy) -> None:
    async with AsyncClient(url_of(proxy)) as client:
        with pytest.raises(UnknownJob):
            await client.long_job("nobody").status()  # so that the client is connected
        proxy.hold()
        tasks = [asyncio.create_task(client.long_job("nobody").status()) for _ in range(9)]
        await turns()
        assert not any(task.done() for task in tasks)
        proxy.release()
        assert {type(error) for error in await outcomes(tasks)} == {UnknownJob}


class TestCancelling:
    @in_loop
    async def test_a_cancelled_wait_does_not_cancel_the_job(self, queue: Queue, redis_url: str, job_id: str) -> None:
        async with async_client(queue, redis_url) as client:
            job, seen = client.long_job(job_id), list[str]()
            task = asyncio.create_task(job.wait(on_status=lambda status: seen.append(status.status)))
            await wait_for(lambda: seen)
            task.cancel()
            assert [type(error) for error in await outcomes([task])] == [asyncio.CancelledError]
            assert await job.status() == "queued"
            assert await job.cancel() == "cancelled"


class TestClosing:
    @in_loop
    async def test_waiting_tasks_get_an_error_and_no_task_or_connection_is_left(
        self, queue: Queue, redis_url: str, job_id: str
    ) -> None:
        client, seen = async_client(queue, redis_url), list[str]()
        before = len(queue.redis.client_list())
        job = client.long_job(job_id)
        tasks = [asyncio.create_task(job.wait(on_status=lambda s: seen.append(s.status))) for _ in range(3)]
        await wait_for(lambda: len(seen) >= 3)
        await client.close()
        for error in await outcomes(tasks):
            assert isinstance(error, Unavailable)
            assert "the client was closed" in str(error)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await wait_for(lambda: len(queue.redis.client_list()) <= before)
        assert await job.status() == "queued"  # the client opens again
        await client.close()

    @in_loop
    async def test_unanswered_calls_fail(self, proxy: Proxy) -> None:
        client = AsyncClient(url_of(proxy))
        with pytest.raises(UnknownJob):
            await client.long_job("nobody").status()
        proxy.hold()
        tasks = [asyncio.create_task(client.long_job("nobody").wait()) for _ in range(9)]
        await turns()
        await client.close()
        assert {type(error) for error in await outcomes(tasks)} == {Unavailable}
        assert asyncio.all_tasks() == {asyncio.current_task()}
