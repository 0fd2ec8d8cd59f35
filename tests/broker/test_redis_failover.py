"""A primary and a replica of it: one takes over from the other, and what asynchronous replication loses."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL
from typing import NamedTuple

import numpy as np
import pytest
import redis
from conftest import PATIENCE_S, RedisServer, wait_until
from load import Load
from process import Process
from queues import connect
from tcp_proxy import Proxy

from shoal import Client
from shoal.client.questions import Handle
from shoal.contract.keys import Keys
from shoal.errors import Unavailable


class Pair(NamedTuple):
    """A primary and its replica; `entrance` leads to the primary, `link` is what the replica follows it through."""

    primary: RedisServer
    replica: RedisServer
    entrance: Proxy
    link: Proxy

    @property
    def url(self) -> str:
        """The URL of Redis that Shoal is given."""
        return f"redis://127.0.0.1:{self.entrance.port}/0"

    def fail_over(self) -> None:
        """Make a primary of the replica, and lead all clients there."""
        with redis.Redis.from_url(self.replica.url) as connection:
            connection.replicaof("NO", "ONE")
        self.entrance.switch(self.replica.port)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Both, in step with each other."""
    servers = []
    for name in ("primary", "replica"):
        (tmp_path / name).mkdir()
        servers.append(RedisServer(tmp_path / name, repl_diskless_sync_delay=0))
    primary, replica = servers
    for server in servers:
        server.start()
    with Proxy(primary.port) as entrance, Proxy(primary.port) as link:
        follow(replica, link.port)
        yield Pair(primary, replica, entrance, link)
    for server in servers:
        server.stop(SIGKILL)  # one that has just become a replica may refuse to stop while it writes its first log


def follow(replica: RedisServer, port: int) -> None:
    """Makes it the replica of the Redis at the port, and waits until it has all its data."""
    with redis.Redis.from_url(replica.url) as connection:
        connection.replicaof("127.0.0.1", port)
        wait_until(lambda: connection.info("replication")["master_link_status"] == "up")


@pytest.fixture
def workers(pair: Pair, tiny_source: Path, home: Path, tmp_path: Path) -> Iterator[list[Process]]:
    """Two workers, processes of their own."""
    settings = {"redis_url": pair.url, "model": tiny_source, "home": home, "cache_mb": 0}
    patient_url = f"{pair.url}?socket_timeout={PATIENCE_S}&socket_connect_timeout={PATIENCE_S}"
    with ExitStack() as stack, Client(patient_url) as client:
        logs = [tmp_path / f"worker{n}.log" for n in range(2)]
        workers = [stack.enter_context(Process(log, "worker", **settings)) for log in logs]
        wait_until(lambda: len(client.pool.ready()) == 2)
        yield workers
        assert [worker.terminate() for worker in workers] == [0, 0]


def has(server: RedisServer, jobs: list[Handle]) -> list[Handle]:
    """Those of the jobs that the Redis knows of."""
    with redis.Redis.from_url(server.url) as connection:
        return [job for job in jobs if connection.exists(Keys().record(job.id))]


@pytest.mark.wide
@pytest.mark.usefixtures("workers")
class TestWithWorkers:
    def test_all_that_was_accepted_and_replicated_is_answered(self, pair: Pair) -> None:
        with Client(pair.url) as client:
            with Load(client) as load:
                wait_until(lambda: len(load.accepted) > 300)
                pair.primary.stop(SIGKILL)
                known = list(load.accepted)
                replicated = has(pair.replica, known)
                pair.fail_over()
                load.finish_submitting()  # what the old primary took in before it was killed
                num_before = len(load.accepted)
                wait_until(lambda: len(load.accepted) > num_before + 100)
            load.check(replicated)
            load.check(load.accepted[num_before:])
            assert {error.code for error in load.errors} <= {"unavailable"}
            print(f"killed: {len(known)} accepted, {len(known) - len(replicated)} not replicated")

    def test_a_primary_that_was_demoted_is_left(self, pair: Pair) -> None:
        with Client(pair.url) as client:
            with Load(client) as load:
                wait_until(lambda: len(load.accepted) > 100)
                pair.fail_over()
                follow(pair.primary, pair.replica.port)  # all of Shoal's connections still lead to it
                num_before = len(load.accepted)
                wait_until(lambda: len(load.accepted) > num_before + 100)
            kept = has(pair.replica, load.accepted)
            load.check(kept)
            assert {error.code for error in load.errors} <= {"unavailable"}
            wait_until(lambda: len(client.pool.ready()) == 2)
            assert np.shape(client.embed("storm"))
            print(f"demoted: {len(load.accepted)} accepted, {len(load.accepted) - len(kept)} lost")


def test_a_connection_to_what_was_the_primary_is_used_once_more_at_most(pair: Pair) -> None:
    with connect(pair.url) as connection:
        connection.set("a", 1)
        pair.fail_over()
        follow(pair.primary, pair.replica.port)
        with pytest.raises(redis.ReadOnlyError):
            connection.set("a", 2)
        assert connection.set("a", 3)


class TestLoss:
    """The link to the replica is held up before the primary is killed, so that what is sent last is lost."""

    @pytest.mark.wide
    def test_min_replicas_bounds_it(self, pair: Pair) -> None:
        with redis.Redis.from_url(pair.primary.url) as admin, Client(pair.url) as client:
            admin.config_set("min-replicas-to-write", 1)
            admin.config_set("min-replicas-max-lag", 1)
            wait_until(lambda: admin.info("replication")["min_slaves_good_slaves"] == 1)
            with Load(client) as load:
                wait_until(lambda: load.accepted)
                pair.link.hold()
                wait_until(lambda: [error for error in load.errors if "min-replicas-to-write" in error.message])
            refused = len(load.accepted)
            with pytest.raises(Unavailable, match="min-replicas-to-write"):
                client.submit("embed", "storm")
            assert len(load.accepted) == refused

    def test_a_producer_that_waits_loses_nothing(self, pair: Pair) -> None:
        """`WAIT` on the connection of the put says whether a replica has it."""
        lane = Keys().lane("interactive")
        with redis.Redis.from_url(pair.url) as producer, ThreadPoolExecutor(1) as threads:
            entry = producer.xadd(lane, {"job": b"1"})
            assert producer.wait(1, 90_000) == 1
            pair.link.hold()
            producer.xadd(lane, {"job": b"2"})
            assert threads.submit(producer.wait, 1, 100).result() == 0
            pair.primary.stop(SIGKILL)
        with redis.Redis.from_url(pair.replica.url) as replica:
            assert [found for found, _ in replica.xrange(lane)] == [entry]
