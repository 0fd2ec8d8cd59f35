"""Groups of Redis servers: a primary that Sentinels watch, and a cluster."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

import redis
from conftest import RedisServer, redis_program, wait_until

#: Name of the service that the Sentinels watch.
SERVICE = "shoal-primary"

NUM_SLOTS = 16_384


class SentinelServer(RedisServer):
    """A Sentinel, which keeps what it knows in a file of its own."""

    def __init__(self, folder: Path, primary_port: int):
        super().__init__(folder)
        self._config = folder / "sentinel.conf"
        self._config.write_text(
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary_port} 2\n"
            f"sentinel down-after-milliseconds {SERVICE} 1000\n"
            f"sentinel failover-timeout {SERVICE} 3000\n"
        )

    def launch(self) -> None:
        """Start the Sentinel."""
        flags = ["--sentinel", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        self._process = subprocess.Popen([redis_program(), str(self._config), *flags], stdout=subprocess.DEVNULL)


@dataclass(frozen=True)
class Watched:
    """A primary, its replica, and the Sentinels that watch them."""

    primary: RedisServer
    replica: RedisServer
    sentinels: Sequence[SentinelServer]

    @property
    def url(self) -> str:
        """The URL that Shoal is given."""
        nodes = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{nodes}/{SERVICE}/0"

    def primary_port(self) -> int:
        """Return the port of the primary as the first Sentinel names it."""
        with ask(self.sentinels[0]) as sentinel:
            return int(sentinel.sentinel_get_master_addr_by_name(SERVICE)[1])


@contextmanager
def watched(folder: Path) -> Iterator[Watched]:
    """Run a primary with a replica and three Sentinels, which know all of each other."""
    servers = [RedisServer(_new(folder / name), repl_diskless_sync_delay=0) for name in ("primary", "replica")]
    with _running(servers), ask(servers[1]) as replica:
        replica.replicaof("127.0.0.1", servers[0].port)
        wait_until(lambda: replica.info("replication")["master_link_status"] == "up")
        sentinels = [SentinelServer(_new(folder / f"sentinel{n}"), servers[0].port) for n in range(3)]
        with _running(sentinels):
            for server in sentinels:
                with ask(server) as sentinel:
                    wait_until(lambda: _knows_all(sentinel.sentinel_master(SERVICE)))
            yield Watched(*servers, sentinels)


def _knows_all(about: Any) -> bool:
    return about["num-other-sentinels"] == 2 and about["num-slaves"] == 1


@dataclass(frozen=True)
class Cluster:
    """Nodes of a cluster; the first half are the primaries at first, the others a replica of each."""

    nodes: Sequence[RedisServer]

    @property
    def url(self) -> str:
        """The URL that Shoal is given."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def owner_of(self, key: str) -> RedisServer:
        """Return the primary that has a key, as a node that answers says."""
        for node in self.nodes:
            with ask(node) as connection:
                try:
                    slot = connection.cluster("KEYSLOT", key)
                    ranges = connection.cluster("SLOTS")
                except redis.ConnectionError:
                    continue
            (port,) = (primary[1] for first, last, primary, *_ in ranges if first <= slot <= last)
            return next(each for each in self.nodes if each.port == port)
        raise AssertionError("no node answers")


@contextmanager
def cluster(folder: Path, num_primaries: int = 3) -> Iterator[Cluster]:
    """Run a cluster of primaries with a replica each."""
    options = {"cluster_enabled": "yes", "cluster_node_timeout": 1_500, "repl_diskless_sync_delay": 0}
    nodes = [RedisServer(_new(folder / f"node{n}"), **options) for n in range(2 * num_primaries)]
    with _running(nodes), ExitStack() as stack:
        connections = [stack.enter_context(ask(node)) for node in nodes]
        ids = [connection.cluster("MYID") for connection in connections]
        for number, connection in enumerate(connections):
            connection.cluster("SET-CONFIG-EPOCH", number + 1)
        for connection in connections[1:]:
            connection.cluster("MEET", "127.0.0.1", nodes[0].port)
        bounds = [NUM_SLOTS * number // num_primaries for number in range(num_primaries + 1)]
        for connection, first, end in zip(connections, bounds, bounds[1:], strict=False):
            connection.cluster("ADDSLOTS", *range(first, end))
        for connection in connections:
            wait_until(lambda: len(connection.cluster("NODES")) == len(nodes))  # noqa: B023
        for connection, primary in zip(connections[num_primaries:], ids, strict=False):
            connection.cluster("REPLICATE", primary)
        for connection in connections:
            wait_until(lambda: connection.cluster("INFO")["cluster_state"] == "ok")  # noqa: B023
        for connection in connections[num_primaries:]:
            wait_until(lambda: connection.info("replication")["master_link_status"] == "up")  # noqa: B023
        yield Cluster(nodes)


def ask(server: RedisServer) -> "redis.Redis":
    """Return a client of one server."""
    return redis.Redis.from_url(server.url, decode_responses=True)


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


@contextmanager
def _running(servers: Sequence[RedisServer]) -> Iterator[None]:
    """Run the servers while the context lasts."""
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop, SIGKILL)
            server.start()
        yield
