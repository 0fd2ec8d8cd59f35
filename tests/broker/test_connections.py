"""Connections to Redis are kept, limited, and replaced when they break; and scripts are sent over them."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from itertools import product

import pytest
import redis
from conftest import PATIENCE_S, RedisServer, wait_until
from tcp_proxy import Proxy

from shoal.broker import circuit_breaker, connections
from shoal.broker.async_broker import ConnectionMaker
from shoal.broker.broker import Broker, Script
from shoal.errors import Unavailable

#: Options of a URL with values that they cannot have.
IMPOSSIBLE = [("max_connections", number) for number in ("0", "-1", "2147483648")]
IMPOSSIBLE += [(f"socket_{name}timeout", number) for name in ("", "connect_") for number in ("inf", "nan", "0", "1e9")]


@pytest.fixture
def broker(own_redis: RedisServer) -> Iterator[Broker]:
    with closing(Broker.connect(own_redis.url)) as broker:
        yield broker


class TestCommands:
    def test_the_first_error_is_raised_and_the_other_commands_are_done(self, broker: Broker) -> None:
        assert broker.pipeline(("SET", "a", b"\x00\xff"), ("GET", "a"), ("INCR", "n")) == [b"OK", b"\x00\xff", 1]
        with pytest.raises(Unavailable, match="not an integer"):
            broker.pipeline(("SET", "a", "x"), ("INCR", "a"), ("SET", "b", "y"))
        assert broker.execute("GET", "b") == b"y"
        with pytest.raises(Unavailable, match="not an integer"):
            broker.run(Script.of("return cmsgpack.pack(redis.call('INCR', 'a'))"), [], {})

    def test_an_error_of_the_server_is_translated_whatever_its_case(
        self, broker: Broker, own_redis: RedisServer
    ) -> None:
        broker.pipeline(("SET", "text", "x"), ("XADD", "full", f"{2**64 - 1}-{2**64 - 1}", "a", "b"))
        for command in (("LPUSH", "text", "y"), ("XADD", "full", "*", "a", "b")):
            with pytest.raises(Unavailable, match="another program wrote a key of Shoal's: delete it"):
                broker.execute(*command)
        broker.execute("CONFIG", "SET", "maxclients", 1)
        with closing(Broker.connect(own_redis.url)) as other, pytest.raises(Unavailable, match="raise its maxclients"):
            other.ping()
        broker.pipeline(("CONFIG", "SET", "maxclients", 100), ("CONFIG", "SET", "replica-serve-stale-data", "no"))
        broker.execute("REPLICAOF", "127.0.0.1", 1)
        with pytest.raises(Unavailable, match="promote it, or bring the primary back"):
            broker.execute("GET", "a")


class TestBreaking:
    def test_an_answer_that_does_not_come_is_not_taken_for_the_next_one(self, own_redis: RedisServer) -> None:
        impatient = Broker.connect(own_redis.plain_url, answer_s=0.5)
        with pytest.raises(Unavailable):
            impatient.execute("BLPOP", "nothing", 1)
        answers: list[object] = []

        def ask() -> bool:
            with suppress(Unavailable):
                answers.append(impatient.execute("PING"))
            return bool(answers)

        wait_until(ask)
        assert answers == [b"PONG"]
        impatient.close()

    def test_while_redis_is_silent_the_commands_of_threads_fail_at_once(
        self, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(circuit_breaker, "TRY_EVERY_S", PATIENCE_S)
        impatient = Broker.connect(own_redis.plain_url, answer_s=0.5)
        for command in (("BLPOP", "nothing", 1), ("PING",)):  # Redis would answer this command
            with pytest.raises(Unavailable):
                impatient.execute(*command)
        impatient.close()

    def test_a_process_sends_one_large_command_at_a_time_beside_small_ones(self, own_redis: RedisServer) -> None:
        """On a slow link a large command takes seconds, and small commands are answered meanwhile."""
        sent: list[int] = []
        link, admin = Proxy(own_redis.port, bytes_per_s=2_000_000), redis.Redis.from_url(own_redis.url)
        with link, admin, ThreadPoolExecutor(4) as threads:
            slow = Broker.connect(f"redis://127.0.0.1:{link.port}/0", answer_s=PATIENCE_S)
            large = [threads.submit(slow.execute, "SET", f"large{n}", bytes(2_000_000)) for n in range(4)]
            while not all(one.done() for one in large):
                slow.ping()
                sent.append(num_in_hand(admin))
            assert [one.result() for one in large] == [b"OK"] * 4
            slow.close()
        assert max(sent) == 1

    def test_silence_while_a_large_command_is_under_way_is_no_outage(self, own_redis: RedisServer) -> None:
        """While Redis delays all writes, a large command has time for its bytes, and small commands may be tried."""
        with redis.Redis.from_url(own_redis.url) as admin, ThreadPoolExecutor(1) as threads:
            impatient = Broker.connect(own_redis.plain_url, answer_s=0.5)
            admin.client_pause(600_000, all=False)  # only writes are paused
            large = threads.submit(impatient.execute, "SET", "large", bytes(30_000_000))
            wait_until(lambda: num_in_hand(admin) == 1)
            with pytest.raises(Unavailable):
                impatient.execute("SET", "small", 1)
            impatient.connection_pool.connection_kwargs["breaker"].check()
            admin.client_unpause()
            assert large.result() == b"OK"
            impatient.close()

    def test_closing_ends_the_wait_of_a_thread(self, own_redis: RedisServer, broker: Broker) -> None:
        closed = Broker.connect(own_redis.url)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(closed.execute, "BLPOP", "list", 0, block_s=PATIENCE_S)
            wait_until(partial(is_blocked, broker, 1))
            closed.close()
            with pytest.raises(Unavailable):
                waiting.result(PATIENCE_S / 2)


def ask_over_another(broker: Broker, number: int) -> None:
    assert broker.execute("CLIENT", "ID") != number


def test_a_child_process_leaves_the_connections_of_its_parent_alone(own_redis: RedisServer, broker: Broker) -> None:
    parent = Broker.connect(own_redis.url)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(parent.execute, "BLPOP", "list", 0, block_s=PATIENCE_S)
        wait_until(partial(is_blocked, broker, 1))
        number = parent.execute("CLIENT", "ID")  # the id of a connection that is idle now
        for use, *args in ((parent.close,), (ask_over_another, parent, number)):
            child = multiprocessing.get_context("fork").Process(target=use, args=args)
            child.start()
            child.join()
            assert child.exitcode == 0
        broker.execute("RPUSH", "list", "x")
        assert waiting.result() == [b"list", b"x"]
    parent.close()


class TestBound:
    @pytest.fixture
    def two(self, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
        monkeypatch.setattr(connections, "MAX_WAIT_S", PATIENCE_S)
        with closing(Broker.connect(f"{own_redis.url}&max_connections=2")) as broker:
            yield broker

    def test_threads_wait_for_a_connection(self, broker: Broker, two: Broker) -> None:
        with ThreadPoolExecutor(20) as threads:
            results = [threads.submit(two.execute, "BLPOP", "list", 0, block_s=PATIENCE_S) for _ in range(20)]
            for num_left in range(20, 0, -1):
                wait_until(partial(is_blocked, broker, min(2, num_left)))
                broker.execute("RPUSH", "list", "x")
            assert [result.result() for result in results] == [[b"list", b"x"]] * 20

    def test_a_thread_that_waits_too_long_gets_an_error(
        self, own_redis: RedisServer, broker: Broker, two: Broker
    ) -> None:
        with ThreadPoolExecutor(2) as threads:
            results = [threads.submit(two.execute, "BLPOP", "list", 0, block_s=PATIENCE_S) for _ in range(2)]
            wait_until(partial(is_blocked, broker, 2))
            two.connection_pool.timeout = 0.01
            with pytest.raises(Unavailable, match="all connections of this process to Redis were in use"):
                two.ping()
            with pytest.raises(Unavailable, match="all connections"):
                two.library_client().ping()
            broker.execute("RPUSH", "list", "x", "x")
            assert [result.result() for result in results] == [[b"list", b"x"]] * 2
        two.ping()
        own_redis.stop()
        for _ in range(5):  # a broken connection is free again
            with pytest.raises(Unavailable, match="does not answer"):
                two.ping()

    def test_an_impossible_option_of_the_url_is_refused(self) -> None:
        for (name, number), connect in product(IMPOSSIBLE, (Broker.connect, ConnectionMaker)):
            with pytest.raises(Unavailable, match=f"{name} in the Redis URL is .*: write a number from .* to"):
                connect(f"redis://localhost?{name}={number}")


def num_in_hand(admin: "redis.Redis") -> int:
    """Return the number of connections with a large command that Redis has received in part and has not run."""
    return sum(int(client["qbuf"]) + int(client["argv-mem"]) > 500_000 for client in admin.client_list())


def is_blocked(broker: Broker, num_connections: int) -> bool:
    return f"blocked_clients:{num_connections}\r" in broker.execute("INFO", "clients").decode()


def test_options_of_the_url_do_not_change_how_answers_are_read(own_redis: RedisServer) -> None:
    with closing(Broker.connect(f"{own_redis.url}&protocol=3&decode_responses=True")) as broker:
        broker.execute("HSET", "a", "b", "c")
        assert broker.execute("HGETALL", "a") == [b"b", b"c"]
