"""Redis is away, silent, or back without its data: clients and workers notice at once, and go on when it is back."""

import asyncio
from typing import Any

import numpy as np
import pytest
import redis
from awaiting import answering, async_client, in_loop, num_interactive, outcomes, url_of, wait_for
from conftest import PATIENCE_S, RedisServer
from hiredis import pack_command
from queues import Queue
from tcp_proxy import Proxy

from shoal.broker import async_broker, circuit_breaker
from shoal.broker.async_broker import AsyncBroker, ConnectionMaker
from shoal.broker.broker import Broker
from shoal.broker.connections import LARGE_BYTES, SMALL_BYTES
from shoal.contract.jobs import LANES
from shoal.errors import Unavailable
from shoal.operations import Embed


def test_tasks_that_wait_learn_that_redis_went_and_later_calls_go_on(own_redis: RedisServer, own_queue: Queue) -> None:
    async def use() -> None:
        async with async_client(own_queue, own_redis.url) as client:
            handle = await client.submit("embed", "storm", lane="bulk")
            tasks = [asyncio.create_task(client.embed("storm")) for _ in range(20)]
            tasks.append(asyncio.create_task(client.embed(["storm"] * 40)))
            await wait_for(lambda: num_interactive(own_queue) == 22)
            waiting = asyncio.create_task(handle.result())
            await wait_for(lambda: own_queue.redis.hexists(own_queue.keys.record(handle.id), "watchers"))
            own_redis.stop()
            for error in await outcomes([*tasks, waiting]):
                assert isinstance(error, Unavailable)
            with pytest.raises(Unavailable, match="check that it runs"):
                await client.embed("storm")
            own_redis.start()
            with answering(own_queue):
                assert np.array_equal(await client.embed("storm"), [5])
                assert (await handle.result()).tokens == [5]

    asyncio.run(use())


@in_loop
async def test_connections_that_redis_has_closed_or_confused_are_replaced(own_redis: RedisServer) -> None:
    broker = AsyncBroker(ConnectionMaker(own_redis.url))
    with redis.Redis.from_url(own_redis.url) as admin:
        for block_s in (0.0, 1.0):  # over the shared connection, and over a task's own
            assert await broker.execute("PING", block_s=block_s) == b"PONG"
            admin.client_kill_filter(_type="normal", skipme=True)
            assert await broker.execute("PING", block_s=block_s) == b"PONG"
    assert await broker.execute("SUBSCRIBE", "a", "b") == [b"subscribe", b"a", 1]  # Redis sends two answers at once
    assert await broker.execute("PING") == b"PONG"
    await broker.close()


@in_loop
async def test_a_task_waits_for_a_connection_and_leaves_it_to_the_next(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = AsyncBroker(ConnectionMaker(f"{own_redis.url}&max_connections=1"))
    for _ in range(2):
        assert await broker.execute("SET", "large", bytes(LARGE_BYTES + 1)) == b"OK"
    monkeypatch.setattr(async_broker, "MAX_WAIT_S", 0.01)
    waiting = asyncio.create_task(broker.execute("BLPOP", "left", 0, block_s=PATIENCE_S))
    await wait_for(lambda: broker._busy)
    with pytest.raises(Unavailable, match="all connections of this process"):
        await broker.execute("PING", block_s=1.0)
    await broker.execute("RPUSH", "left", 1)
    assert await waiting == [b"left", b"1"]
    assert await broker.execute("PING", block_s=1.0) == b"PONG"
    await broker.close()


@in_loop
async def test_while_redis_is_silent_all_commands_fail_at_once(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = AsyncBroker(ConnectionMaker(url_of(proxy), PATIENCE_S))
    assert await broker.execute("PING", block_s=PATIENCE_S) == b"PONG"
    monkeypatch.setattr(circuit_breaker, "TRY_EVERY_S", PATIENCE_S)
    monkeypatch.setattr(async_broker, "LATE_S", 0.0)
    proxy.hold()
    with pytest.raises(Unavailable):
        await broker.execute("PING", block_s=-PATIENCE_S)  # its timeout ends at once
    proxy.release()
    for error in await outcomes([asyncio.create_task(broker.execute("PING")) for _ in range(20)]):
        assert isinstance(error, Unavailable)  # although Redis would answer
    await broker.close()


@in_loop
async def test_a_silence_is_noticed_at_the_opening_and_after_a_long_command_too(proxy: Proxy) -> None:
    limits = f"socket_connect_timeout={PATIENCE_S}&socket_timeout=0.05"
    broker = AsyncBroker(ConnectionMaker(f"redis://127.0.0.1:{proxy.port}/0?{limits}"))
    proxy.hold()
    async with asyncio.timeout(PATIENCE_S / 2):
        with pytest.raises(Unavailable):
            await broker.execute("PING")
    await broker.close()
    proxy.release()
    connection = await ConnectionMaker(url_of(proxy)).open()
    assert await connection.ask(pack_command(("PING",)), 1) == [b"PONG"]
    connection._answer_s = 0.05
    proxy.hold()
    with pytest.raises(redis.TimeoutError):
        async with asyncio.timeout(PATIENCE_S / 2):
            await connection.ask(pack_command(("PING",)), 1)


def test_tasks_that_wait_while_one_cannot_connect_all_get_the_error(own_redis: RedisServer) -> None:
    async def use() -> None:
        broker = AsyncBroker(ConnectionMaker(own_redis.url.replace("//", "//:wrong@")))
        for error in await outcomes([asyncio.create_task(broker.execute("PING")) for _ in range(20)]):
            assert isinstance(error, Unavailable)
        await broker.close()

    with redis.Redis.from_url(own_redis.url) as connection:
        before = connection.info("stats")["total_connections_received"]
        asyncio.run(use())
        assert connection.info("stats")["total_connections_received"] == before + 1


@in_loop
async def test_a_command_is_not_done_if_its_broker_closes_while_it_connects(proxy: Proxy) -> None:
    broker = AsyncBroker(ConnectionMaker(url_of(proxy), PATIENCE_S))
    proxy.hold()
    connecting = asyncio.create_task(broker.execute("PING"))
    await wait_for(lambda: proxy.num_open() > 0)
    await broker.close()
    proxy.release()
    assert [type(error) for error in await outcomes([connecting])] == [Unavailable]
    await wait_for(lambda: proxy.num_open() == 0)


@in_loop
async def test_a_cancelled_command_does_not_fail_the_next_one(proxy: Proxy) -> None:
    broker = AsyncBroker(ConnectionMaker(url_of(proxy), PATIENCE_S))
    assert await broker.execute("PING") == b"PONG"
    proxy.hold()
    cancelled, waiting = (asyncio.create_task(broker.execute("PING")) for _ in range(2))
    await asyncio.sleep(0)  # both are sent over the shared connection
    cancelled.cancel()
    assert [type(error) for error in await outcomes([cancelled])] == [asyncio.CancelledError]
    proxy.release()
    assert await waiting == b"PONG"
    await broker.close()


@in_loop
async def test_an_answer_that_came_while_the_loop_was_delayed_is_read(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_broker, "LATE_S", PATIENCE_S)
    connection = await ConnectionMaker(url_of(proxy), PATIENCE_S).open()
    proxy.hold()
    answers = connection.ask(pack_command(("PING",)), 1, block_s=-PATIENCE_S)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not answers.done()  # although the command's time is over
    proxy.release()
    assert await answers == [b"PONG"]
    monkeypatch.setattr(async_broker, "LATE_S", 0.0)
    with pytest.raises(redis.TimeoutError):
        await connection.ask(b"BLPOP nothing 0\r\n", 1, block_s=-PATIENCE_S)
    assert not connection.is_open()


@in_loop
async def test_a_large_command_has_the_time_of_its_bytes(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_broker, "LATE_S", 0.0)
    monkeypatch.setattr(async_broker, "MIN_BYTES_PER_S", 1)
    connection = await ConnectionMaker(url_of(proxy), PATIENCE_S).open()
    proxy.hold()
    command: Any = ("ECHO", bytes(SMALL_BYTES + 1))
    answers = connection.ask(pack_command(command), 1, block_s=-PATIENCE_S)
    for _ in range(10):
        await asyncio.sleep(0)
    proxy.release()
    assert await answers == [command[1]]
    connection.close()


def test_a_connection_that_is_left_at_a_replica_ends_no_command_at_the_primary(
    own_redis: RedisServer, redis_server: RedisServer
) -> None:
    async def use(proxy: Proxy, former: "redis.Redis", primary: "redis.Redis") -> None:
        broker, threads = AsyncBroker(ConnectionMaker(url_of(proxy))), Broker.connect(url_of(proxy))
        await asyncio.gather(*(broker.execute("PING", block_s=1.0) for _ in range(2)))  # uses two connections
        with threads.connection_pool.taken():
            threads.ping()  # over a second connection
        former.replicaof("127.0.0.1", 1)
        proxy.switch(redis_server.port)
        waiting = asyncio.create_task(broker.execute("BLPOP", "left", 0))
        await wait_for(lambda: primary.info("clients")["blocked_clients"])
        with pytest.raises(Unavailable, match="it is a replica"):
            await broker.execute("SET", "left", 1, block_s=1.0)
        assert await broker.execute("SET", "right", 1, block_s=1.0) == b"OK"
        with pytest.raises(Unavailable, match="it is a replica"):
            threads.execute("SET", "left", 1)
        assert threads.execute("SET", "right", 2) == b"OK"
        with threads.connection_pool.taken():
            assert threads.execute("SET", "right", 3) == b"OK"
        threads.close()
        primary.rpush("left", 1)
        assert await waiting == [b"left", b"1"]
        await broker.close()

    with (
        Proxy(own_redis.port) as proxy,
        redis.Redis.from_url(own_redis.url) as former,
        redis.Redis.from_url(redis_server.url) as primary,
    ):
        asyncio.run(use(proxy, former, primary))


def test_a_redis_that_came_back_empty_is_used_like_a_new_one(queue: Queue) -> None:
    queue.put("interactive", [Embed(["storm"])])
    taken = queue.take("a", LANES, 1)
    queue.redis.delete(*queue.redis.keys(f"{queue.keys.root}:*".replace("{", "[{]")))
    assert queue.consumer("a").lost(taken) == taken
    assert queue.take("a", LANES, 1) == []
    queue.put("interactive", [Embed(["storm"])])
    (delivery,) = queue.take("a", LANES, 1)
    assert delivery.deaths == 0
