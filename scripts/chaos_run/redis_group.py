"""A Redis with failovers: a primary that Sentinels watch, or a cluster with the pool on one node."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from stack import free_port

from shoal.broker import embedded
from shoal.process.progress import wait_until

#: The kinds of groups, and the number of servers of each.
GROUPS = {"sentinels": 3, "cluster": 6}

SERVICE, NUM_SENTINELS, NUM_SLOTS = "shoal", 3, 16_384

#: Time without an answer after which Sentinels replace a primary; on a busy machine a primary is silent for a second.
DOWN_AFTER_MS = 3_000

#: Longest time until a group is complete, and until replicas have all data of a primary, in seconds.
COMPLETE_WITHIN_S, IN_STEP_WITHIN_S = 60.0, 20.0

#: Longest time for which a primary refuses writes before it is replaced. A kill of the primary ends this time.
PAUSE_MS = 10_000


class RedisGroup:
    """The servers of a group by name. Its methods make another server the pool's primary without loss."""

    def __init__(self, kind: str, folder: Path, key: str, new_port: Callable[[], int] = free_port):
        self._kind, self._folder, self._key = kind, folder, key
        self.ports = {f"redis {n + 1}": new_port() for n in range(GROUPS[kind])}
        self._sentinel_ports = [new_port() for _ in range(NUM_SENTINELS if kind == "sentinels" else 0)]

    @property
    def url(self) -> str:
        """The URL of the group for Shoal."""
        ports = self._sentinel_ports or self.ports.values()
        nodes = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"redis+sentinel://{nodes}/{SERVICE}" if self._sentinel_ports else f"redis+cluster://{nodes}"

    def commands(self) -> dict[str, list[str]]:
        """Return the command of each server, the Sentinels first.

        Settings are in files, which Sentinels rewrite. With options in the command, a restarted server would follow the
        first primary, and let it accept writes that are lost.
        """
        first, found = next(iter(self.ports.values())), {}
        for n, port in enumerate(self._sentinel_ports, 1):
            options = [f"port {port}", "bind 127.0.0.1", f"sentinel monitor {SERVICE} 127.0.0.1 {first} 2"]
            options += [f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}"]
            options += [f"sentinel failover-timeout {SERVICE} {4 * DOWN_AFTER_MS}"]
            found[f"sentinel {n}"] = [*self._command(f"sentinel-{n}", options), "--sentinel"]
        for name, port in self.ports.items():
            (folder := self._folder / name.replace(" ", "-")).mkdir()
            options = [f"port {port}", "bind 127.0.0.1", f"dir {folder}", 'save ""', "appendonly yes"]
            options += ["repl-diskless-sync-delay 0", "maxmemory-policy noeviction"]
            if self._kind == "cluster":
                options += ["cluster-enabled yes", "cluster-node-timeout 1500"]
            else:  # so that a replaced primary without replicas refuses writes
                options += ["min-replicas-to-write 1", "min-replicas-max-lag 1"]
                options += [f"replicaof 127.0.0.1 {first}"] if port != first else []
            found[name] = self._command(folder.name, options)
        return found

    def _command(self, name: str, options: list[str]) -> list[str]:
        (file := self._folder / f"{name}.conf").write_text("\n".join(options))
        return [embedded.find_server(), str(file)]

    def form(self) -> None:
        """Make a group from the started servers, and wait until it is complete. Raises NotReady."""
        wait_until("every Redis", self._all_answer, COMPLETE_WITHIN_S)
        if self._kind == "cluster":
            self._join()
        wait_until(f"the {self._kind}", self.is_complete, COMPLETE_WITHIN_S)

    def _all_answer(self) -> bool:
        with suppress(redis.RedisError):
            for port in (*self.ports.values(), *self._sentinel_ports):
                with _client(port) as client:
                    client.ping()
            return True
        return False

    def _join(self) -> None:
        """Make a cluster: the first half of the servers are primaries, the others their replicas."""
        clients = [_client(port) for port in self.ports.values()]
        ids, half = [client.cluster("MYID") for client in clients], len(clients) // 2
        for number, client in enumerate(clients):
            client.cluster("SET-CONFIG-EPOCH", number + 1)
        for client in clients[1:]:
            client.cluster("MEET", "127.0.0.1", next(iter(self.ports.values())))
        for number, client in enumerate(clients[:half]):
            client.cluster("ADDSLOTS", *range(NUM_SLOTS * number // half, NUM_SLOTS * (number + 1) // half))
        for client in clients:
            wait_until("the nodes", lambda: len(client.cluster("NODES")) == len(clients), COMPLETE_WITHIN_S)  # noqa: B023
        for client, primary in zip(clients[half:], ids, strict=False):
            client.cluster("REPLICATE", primary)
        for client in clients:
            client.close()

    def is_complete(self) -> bool:
        """Return True if every server runs and every primary has a replica with all its data."""
        try:
            for port in self._sentinel_ports:
                with _client(port) as client:
                    about = client.sentinel_master(SERVICE)
                    if about["num-other-sentinels"] != NUM_SENTINELS - 1 or about["num-slaves"] != len(self.ports) - 1:
                        return False
            return self._all_answer() and all(self._is_in_step(port) for port in self.ports.values())
        except redis.RedisError:
            return False

    def _is_in_step(self, port: int) -> bool:
        with _client(port) as client:
            about = client.info("replication")
            if self._kind == "cluster" and client.cluster("INFO")["cluster_state"] != "ok":
                return False
            if about["role"] == "slave":
                return bool(about["master_link_status"] == "up")
            return bool(about["connected_slaves"])

    def primary(self) -> str:
        """Return the name of the server that has the pool's keys, according to the running servers."""
        port = self._primary_port()
        return next(name for name, each in self.ports.items() if each == port)

    def _primary_port(self) -> int:
        for asked in self._sentinel_ports or self.ports.values():
            with suppress(redis.ConnectionError, redis.TimeoutError), _client(asked) as client:
                if self._sentinel_ports:
                    return int(client.sentinel_get_master_addr_by_name(SERVICE)[1])
                slot = client.cluster("KEYSLOT", self._key)
                return int(next(node[1] for first, last, node, *_ in client.cluster("SLOTS") if first <= slot <= last))
        raise redis.ConnectionError("no server of the group answers")

    def connect(self, answer_s: float) -> "redis.Redis":
        """Return a connection to the server that has the pool's keys now."""
        return redis.Redis(port=self._primary_port(), socket_timeout=answer_s, protocol=2)

    @contextmanager
    def in_step(self) -> Iterator[str]:
        """Let the primary refuse writes; yield its name once its replicas have all its data.

        Raises NotReady if they do not have it in time; the primary goes on when its pause ends.
        """
        name = self.primary()
        with _client(self.ports[name]) as client:
            client.client_pause(PAUSE_MS, all=False)
            offset = client.info("replication")["master_repl_offset"]
            wait_until("the replicas", lambda: _all_have(client, offset), IN_STEP_WITHIN_S)
            yield name

    def switch(self) -> None:
        """Let a replica take over from the primary, which goes on as a replica."""
        with self.in_step() as name:
            if self._sentinel_ports:
                with _client(self._sentinel_ports[0]) as client:
                    client.execute_command("SENTINEL", "FAILOVER", SERVICE)
            else:
                with _client(self.ports[name]) as client:
                    own, nodes = client.cluster("MYID"), client.cluster("NODES")
                replica = next(address for address, about in nodes.items() if about["master_id"] == own)
                with _client(_port(replica)) as client:
                    client.cluster("FAILOVER")

    def move(self, key_by_key: bool, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Move the pool's slot to another primary of the cluster: at once, as Valkey 9 does, or key by key.

        `meanwhile` is called when keys may be on either node.
        """
        source = self._primary_port()
        with _client(source) as old:
            slot, own, nodes = old.cluster("KEYSLOT", self._key), old.cluster("MYID"), old.cluster("NODES")
            primaries = {about["node_id"]: address for address, about in nodes.items() if about["flags"] == "master"}
            target = next(node for node in primaries if node != own)
            port = _port(primaries[target])
            if not key_by_key:
                old.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target)
                return
            with _client(port) as new:
                _set_slot(new, slot, "IMPORTING", own)
                _set_slot(old, slot, "MIGRATING", target)
                meanwhile()
                while keys := old.cluster("GETKEYSINSLOT", slot, 500):
                    old.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5_000, "KEYS", *keys)
                _set_slot(new, slot, "NODE", target)
                _set_slot(old, slot, "NODE", target)


def _client(port: int) -> Any:
    # redis-py tries again for seconds by default; the breaker would mend its other faults later.
    return redis.Redis(port=port, socket_timeout=10, decode_responses=True, retry=Retry(NoBackoff(), 0))


def _all_have(primary: Any, offset: int) -> bool:
    """Begin the primary's pause anew; return True if all replicas have the primary's data up to the offset."""
    primary.client_pause(PAUSE_MS, all=False)
    about = primary.info("replication")
    return all(about[f"slave{n}"]["offset"] >= offset for n in range(about["connected_slaves"]))


def _port(address: str) -> int:
    return int(address.rpartition(":")[2].partition("@")[0])


def _set_slot(client: Any, *words: object) -> None:
    """Set the state of a slot on a node; Valkey refuses while a replica of the node is away."""

    def is_set() -> bool:
        with suppress(redis.ResponseError):
            return bool(client.cluster("SETSLOT", *words))
        return False

    wait_until("the replicas", is_set, COMPLETE_WITHIN_S)
