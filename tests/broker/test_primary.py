"""Redis as large users run it: a primary that Sentinels watch, and a cluster of which one node has the pool."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from signal import SIGKILL

import pytest
from conftest import wait_until
from load import Load
from process import Process
from redis_groups import Cluster, Watched, ask, cluster, watched

from shoal import Client
from shoal.broker.async_broker import AsyncBroker
from shoal.broker.async_connection import ConnectionMaker
from shoal.broker.broker import Broker
from shoal.broker.connections import shown
from shoal.broker.script import Script, ScriptCall
from shoal.contract.keys import Keys
from shoal.errors import ShoalError, Unavailable

KEY = f"{Keys().root}:a"
SET = Script.of("return cmsgpack.pack(redis.call('SET', KEYS[1], cmsgpack.unpack(ARGV[1]).value).ok)")


@pytest.fixture(scope="module")
def watched_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched(tmp_path_factory.mktemp("watched")) as group:
        yield group


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as group:
        yield group


def succeeds(broker: Broker, *command: object) -> bool:
    try:
        broker.execute(*command)
    except Unavailable:
        return False
    return True


def test_commands_and_scripts_go_to_the_node_that_has_the_pool(nodes: Cluster) -> None:
    owner = nodes.owner_of(KEY)
    for node in nodes.nodes:
        with closing(Broker.connect(f"redis+cluster://127.0.0.1:{node.port}")) as broker:
            assert broker.run(SET, [KEY], {"value": str(node.port)}) == b"OK"
            assert broker.pipeline(["GET", KEY], ["PING"]) == [str(node.port).encode(), b"PONG"]
        with ask(owner) as connection:
            assert connection.get(KEY) == str(node.port)


def test_tasks_of_an_event_loop_go_there_too(nodes: Cluster) -> None:
    async def run(port: int) -> list[object]:
        broker = AsyncBroker(ConnectionMaker(f"redis+cluster://127.0.0.1:{port}"))
        try:
            many = await asyncio.gather(*(broker.execute("SET", f"{KEY}{n}", n) for n in range(20)))
            large = await broker.execute("SET", KEY, b"x" * 2_000_000)
            blocked = await broker.execute("BLPOP", f"{KEY}:none", 0.01, block_s=0.01)
            return [*many, large, blocked, await broker.run_many(SET, [ScriptCall([KEY], {"value": "1"})])]
        finally:
            await broker.close()

    for node in nodes.nodes:
        assert asyncio.run(run(node.port)) == [b"OK"] * 21 + [None, [b"OK"]]


def test_after_a_failover_of_a_cluster_the_new_primary_is_asked(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes, closing(Broker.connect(nodes.url)) as broker:
        broker.execute("SET", KEY, 1)
        former = nodes.owner_of(KEY)
        former.stop(SIGKILL)
        wait_until(lambda: succeeds(broker, "SET", KEY, 2))
        assert nodes.owner_of(KEY) is not former
        former.start()  # it is a replica now
        with closing(Broker.connect(f"redis+cluster://127.0.0.1:{former.port}")) as another:
            wait_until(lambda: succeeds(another, "GET", KEY))
            assert another.execute("GET", KEY) == b"2"


def test_while_a_slot_is_moved_key_by_key_the_pool_is_away_and_nothing_is_written(nodes: Cluster) -> None:
    source = nodes.owner_of(KEY)
    target = next(node for node in nodes.nodes[:3] if node is not source)
    with ask(source) as old, ask(target) as new, closing(Broker.connect(nodes.url)) as broker:
        slot, names = old.cluster("KEYSLOT", KEY), (old.cluster("MYID"), new.cluster("MYID"))
        broker.execute("SET", KEY, "kept")
        new.cluster("SETSLOT", slot, "IMPORTING", names[0])
        old.cluster("SETSLOT", slot, "MIGRATING", names[1])
        old.execute_command("MIGRATE", "127.0.0.1", target.port, KEY, 0, 5_000)
        with Client(nodes.url) as client:
            for act in (lambda: broker.run(SET, [KEY], {"value": "lost"}), lambda: client.submit("embed", "storm")):
                with pytest.raises(Unavailable, match="the pool's slot moves to another node"):
                    act()
        while keys := old.cluster("GETKEYSINSLOT", slot, 100):
            old.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)
        for connection in (new, old):
            connection.cluster("SETSLOT", slot, "NODE", names[1])
        assert broker.execute("GET", KEY) == b"kept"
        assert new.scan(match=f"{Keys().root}*")[1] == [KEY]


def test_a_command_that_waits_in_a_node_which_loses_the_pool_fails_and_the_next_one_goes_on(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes, closing(Broker.connect(nodes.url)) as broker:
        broker.execute("DEL", KEY)
        waiting = broker.begin("BLPOP", KEY, 20, block_s=20)
        replica = nodes.nodes[nodes.nodes.index(nodes.owner_of(KEY)) + 3]
        with ask(replica) as connection:
            connection.cluster("FAILOVER")
        wait_until(lambda: waiting.has_ended)
        with pytest.raises(Unavailable), broker.translated():
            waiting.end()
        wait_until(lambda: succeeds(broker, "RPUSH", KEY, "x"))
        assert nodes.owner_of(KEY) is replica


def test_after_a_failover_sentinels_name_the_new_primary(watched_pair: Watched) -> None:
    with closing(Broker.connect(watched_pair.url)) as broker:
        broker.execute("SET", KEY, 1)
        wait_until(lambda: broker.execute("WAIT", 1, 100) == 1)
        assert broker.execute("CONFIG", "GET", "port")[1] == str(watched_pair.primary.port).encode()
        watched_pair.primary.stop(SIGKILL)
        wait_until(lambda: succeeds(broker, "SET", KEY, 2))
        assert broker.execute("CONFIG", "GET", "port")[1] == str(watched_pair.replica.port).encode()

        async def get() -> object:
            another = AsyncBroker(ConnectionMaker(watched_pair.url))
            try:
                return await another.execute("GET", KEY)
            finally:
                await another.close()

        assert asyncio.run(get()) == b"2"


def test_sentinels_that_are_away_or_know_no_such_service_are_told(watched_pair: Watched) -> None:
    nodes = watched_pair.url.rpartition("/shoal")[0]
    for url in (f"{nodes}/another/0", "redis+sentinel://127.0.0.1:1/shoal"):
        with closing(Broker.connect(url)) as broker, pytest.raises(Unavailable, match="No master found"):
            broker.ping()


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://host:26379",
        "redis+sentinel://host:x/service",
        "redis+sentinel:///service/0",
        "redis+cluster://host:7000/1",
        "redis+cluster://host:7000?a",
        "redis+other://host",
    ],
)
def test_urls_that_cannot_be_read_are_refused_without_their_password(url: str) -> None:
    secret = url.replace("://", "://user:secret@")
    with pytest.raises(ShoalError, match=r"redis\+sentinel://host:port,host:port/service/db") as refusal:
        Broker.connect(secret)
    assert "secret" not in str(refusal.value)


def test_a_url_is_shown_without_its_password() -> None:
    shown_url = "rediss+sentinel://a:1,b:2/service/0"
    assert shown("rediss+sentinel://user:s@cret@a:1,b:2/service/0?sentinel_password=x") == shown_url
    assert shown("redis+cluster://:secret@[::1]:7000,b") == "redis+cluster://[::1]:7000,b"


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["sentinels", "cluster"])
def test_workers_and_clients_go_on_after_a_failover(kind: str, tiny_source: Path, home: Path, tmp_path: Path) -> None:
    """All that was replicated is answered, and all that is accepted afterwards."""
    with ExitStack() as stack:
        group: Watched | Cluster = stack.enter_context(
            watched(tmp_path / "redis") if kind == "sentinels" else cluster(tmp_path / "redis")
        )
        settings = {"redis_url": group.url, "model": tiny_source, "home": home, "cache_mb": 0}
        workers = [stack.enter_context(Process(tmp_path / f"{n}.log", "worker", **settings)) for n in range(2)]
        client = stack.enter_context(Client(group.url))
        wait_until(lambda: len(client.pool.ready()) == 2)
        primary = group.owner_of(KEY) if isinstance(group, Cluster) else group.primary
        with Load(client) as load:
            wait_until(lambda: len(load.accepted) > 200)
            with ask(primary) as connection:
                known = list(load.accepted)
                assert connection.wait(1, 10_000) == 1
            primary.stop(SIGKILL)
            load.finish_submitting()
            num_before = len(load.accepted)
            wait_until(lambda: len(load.accepted) > num_before + 200)
        load.check(known)
        load.check(load.accepted[num_before:])
        assert {error.code for error in load.errors} <= {"unavailable"}
        assert [worker.terminate() for worker in workers] == [0, 0]
