"""A replica takes over from its primary, while connections still lead to the former primary."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from signal import SIGKILL
from typing import NamedTuple

import pytest
import redis
from conftest import PATIENCE_S, RedisServer, wait_until
from load import Load
from process import Process
from queues import connect
from tcp_proxy import Proxy

from shoal import Client
from shoal.contract.keys import Keys
from shoal.errors import Unavailable


class Pair(NamedTuple):
    """A primary and its replica. Clients reach the primary through `entrance`, and the replica through `link`."""

    primary: RedisServer
    replica: RedisServer
    entrance: Proxy
    link: Proxy

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.entrance.port}/0?socket_timeout={PATIENCE_S}"

    def fail_over(self) -> None:
        with redis.Redis.from_url(self.replica.url) as connection:
            connection.replicaof("NO", "ONE")
        self.entrance.switch(self.replica.port)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    servers = []
    for name in ("primary", "replica"):
        (tmp_path / name).mkdir()
        servers.append(RedisServer(tmp_path / name, repl_diskless_sync_delay=0))
        servers[-1].start()
    primary, replica = servers
    with Proxy(primary.port) as entrance, Proxy(primary.port) as link:
        follow(replica, link.port)
        yield Pair(primary, replica, entrance, link)
    for server in servers:
        server.stop(SIGKILL)  # a new replica may refuse to stop otherwise, while it writes its first log


def follow(replica: RedisServer, port: int) -> None:
    """Make `replica` a replica of the Redis at the port, and wait until it has all data."""
    with redis.Redis.from_url(replica.url) as connection:
        connection.replicaof("127.0.0.1", port)
        wait_until(lambda: connection.info("replication")["master_link_status"] == "up")


@pytest.mark.wide
def test_workers_and_clients_leave_a_primary_that_was_demoted(
    pair: Pair, tiny_source: Path, home: Path, tmp_path: Path
) -> None:
    settings = {"redis_url": pair.url, "model": tiny_source, "home": home, "cache_mb": 0}
    with ExitStack() as stack, Client(pair.url) as client:
        workers = [stack.enter_context(Process(tmp_path / f"{n}.log", "worker", **settings)) for n in range(2)]
        wait_until(lambda: len(client.pool.ready()) == 2)
        with Load(client) as load:
            wait_until(lambda: len(load.accepted) > 100)
            pair.fail_over()
            follow(pair.primary, pair.replica.port)  # Shoal's connections still lead to it
            num_before = len(load.accepted)
            wait_until(lambda: len(load.accepted) > num_before + 100)
        with redis.Redis.from_url(pair.replica.url) as connection:
            load.check([job for job in load.accepted if connection.exists(Keys().record(job.id))])
        assert {error.code for error in load.errors} <= {"unavailable"}
        wait_until(lambda: len(client.pool.ready()) == 2)
        assert [worker.terminate() for worker in workers] == [0, 0]


def test_a_connection_to_the_former_primary_is_used_at_most_once_more(pair: Pair) -> None:
    with connect(pair.url) as connection:
        connection.set("a", 1)
        pair.fail_over()
        follow(pair.primary, pair.replica.port)
        with pytest.raises(redis.ReadOnlyError):
            connection.set("a", 2)
        assert connection.set("a", 3)


def is_taken(client: Client) -> bool:
    with suppress(Unavailable):
        client.submit("embed", "storm")
        return True
    return False


@pytest.mark.wide
def test_min_replicas_bounds_it(pair: Pair) -> None:
    """Without the limit, jobs that are put while the replica gets no data would be lost with the primary."""
    with redis.Redis.from_url(pair.primary.url) as admin, Client(pair.url) as client:
        admin.config_set("min-replicas-to-write", 1)
        admin.config_set("min-replicas-max-lag", 1)
        wait_until(lambda: admin.info("replication")["min_slaves_good_slaves"] == 1)
        wait_until(lambda: is_taken(client))  # a busy machine may be late once more
        pair.link.hold()
        wait_until(lambda: admin.info("replication")["min_slaves_good_slaves"] == 0)
        with pytest.raises(Unavailable, match="min-replicas-to-write"):
            client.submit("embed", "storm")


def test_a_producer_that_waits_loses_nothing(pair: Pair) -> None:
    """`WAIT` on the producer's connection says whether a replica has the job."""
    lane = Keys().lane("interactive")
    with redis.Redis.from_url(pair.url) as producer, ThreadPoolExecutor(1) as threads:
        producer.rpush(lane, b"1")
        assert producer.wait(1, 90_000) == 1
        pair.link.hold()
        producer.rpush(lane, b"2")
        assert threads.submit(producer.wait, 1, 100).result() == 0
        pair.primary.stop(SIGKILL)
    with redis.Redis.from_url(pair.replica.url) as replica:
        assert replica.lrange(lane, 0, -1) == [b"1"]
