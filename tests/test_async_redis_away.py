"""The client for asyncio while Redis goes away, is silent, comes back or refuses."""

import asyncio

import numpy as np
import pytest
import redis
from awaiting import answer_all, answering, async_client, num_interactive, outcomes, url_of, wait_for
from conftest import PATIENCE_S, RedisServer
from hiredis import pack_command
from queues import Queue
from tcp_proxy import Proxy

from shoal import AsyncClient
from shoal.broker import async_connection, circuit_breaker
from shoal.broker.async_broker import AsyncBroker
from shoal.broker.async_connection import ConnectionMaker
from shoal.errors import Overloaded, Unavailable
from shoal.keys import Keys
from shoal.queue import dispatcher


def test_the_loop_runs_while_redis_does_not_answer(own_redis: RedisServer) -> None:
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


def test_tasks_that_wait_learn_that_redis_went_and_it_goes_on_when_it_is_back(own_redis: RedisServer) -> None:
    queue = Queue.connect(own_redis.url, Keys())

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


def test_a_restart_that_takes_a_moment_loses_nothing(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "GRACE_S", PATIENCE_S)
    queue = Queue.connect(own_redis.url, Keys())

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


def test_while_it_is_silent_all_fail_at_once(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(proxy: Proxy) -> None:
        broker = AsyncBroker(ConnectionMaker(url_of(proxy), PATIENCE_S))
        assert await broker.execute("PING", block_s=PATIENCE_S) == b"PONG"
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
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use() -> None:
        connection = await ConnectionMaker(own_redis.url, PATIENCE_S).open()
        assert await connection.ask(pack_command(("PING",)), 1, block_s=-PATIENCE_S) == [b"PONG"]  # its time is over
        monkeypatch.setattr(async_connection, "LATE_S", 0.0)
        with pytest.raises(redis.TimeoutError):
            await connection.ask(b"BLPOP nothing 0\r\n", 1, block_s=-PATIENCE_S)
        assert not connection.is_open()

    monkeypatch.setattr(async_connection, "LATE_S", PATIENCE_S)
    asyncio.run(use())


def test_connections_that_redis_has_closed_are_replaced(own_redis: RedisServer) -> None:
    queue = Queue.connect(own_redis.url, Keys())

    async def use() -> None:
        async with async_client(queue, own_redis.url) as client:
            for _ in range(3):
                assert await client.queue.pool.alive() == set()
                queue.redis.client_kill_filter(_type="normal", skipme=True)

    asyncio.run(use())
    queue.close()


def test_a_replica_is_left_for_the_primary(own_redis: RedisServer) -> None:
    async def use() -> None:
        async with AsyncClient(own_redis.url) as client:
            with redis.Redis.from_url(own_redis.url) as connection:
                connection.replicaof("127.0.0.1", 1)
                with pytest.raises(Unavailable, match="it is a replica"):
                    await client.submit("embed", "storm")
                connection.replicaof("NO", "ONE")
            assert await (await client.submit("embed", "storm")).status() == "queued"

    asyncio.run(use())


def test_a_full_redis_refuses(own_redis: RedisServer) -> None:
    async def use() -> None:
        async with AsyncClient(own_redis.url) as client:
            with redis.Redis.from_url(own_redis.url) as connection:
                connection.config_set("maxmemory", 1)
            with pytest.raises(Overloaded, match="no memory left"):
                await client.embed("storm")

    asyncio.run(use())
