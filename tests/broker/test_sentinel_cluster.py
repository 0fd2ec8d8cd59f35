"""Redis with a primary that can change: one that Sentinels watch, or the node of a cluster that has the pool's keys."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from conftest import wait_until
from load import Load
from process import Process
from redis.exceptions import MovedError
from redis_groups import RunningGroup, running_group

from shoal import Client
from shoal.broker.async_broker import AsyncBroker, ConnectionMaker
from shoal.broker.broker import Broker, Script
from shoal.broker.sentinel_cluster import MAX_MOVED_TO, ClusterNodes
from shoal.contract.keys import Keys
from shoal.errors import Unavailable

KEY = f"{Keys().root}:a"
SET = Script.of("return cmsgpack.pack(redis.call('SET', KEYS[1], cmsgpack.unpack(ARGV[1]).value).ok)")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    with running_group("cluster", tmp_path_factory.mktemp("cluster")) as group:
        yield group


@pytest.fixture(scope="module")
def sentinels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    with running_group("sentinels", tmp_path_factory.mktemp("sentinels")) as group:
        yield group


#: Runs a test once for each kind of group.
KINDS = pytest.mark.parametrize("kind", ["cluster", pytest.param("sentinels", marks=pytest.mark.wide)])


def succeeds(broker: Broker, *command: object) -> bool:
    try:
        broker.execute(*command)
    except Unavailable:
        return False
    return True


def test_a_thread_is_led_to_the_node_that_has_the_pool(cluster: RunningGroup) -> None:
    for port in cluster.ports.values():
        with closing(Broker.connect(f"redis+cluster://127.0.0.1:{port}")) as broker:
            assert broker.run(SET, [KEY], {"value": str(port)}) == b"OK"
            assert broker.pipeline(["GET", KEY], ["PING"]) == [str(port).encode(), b"PONG"]
        with closing(Broker.connect(f"redis+cluster://127.0.0.1:{port}")) as broker:
            with suppress(Unavailable), broker.translated():  # the library gets one error from the wrong node
                broker.library_client().get(KEY)
            assert broker.library_client().get(KEY) == str(port).encode()


def test_tasks_of_an_event_loop_are_led_there_too(cluster: RunningGroup) -> None:
    async def run(port: int) -> list[object]:
        broker = AsyncBroker(ConnectionMaker(f"redis+cluster://127.0.0.1:{port}"))
        try:
            many = await asyncio.gather(*(broker.execute("SET", f"{KEY}{n}", n) for n in range(20)))
            large = await broker.execute("SET", KEY, b"x" * 2_000_000)
            blocked = await broker.execute("BLPOP", f"{KEY}:none", 0.01, block_s=0.01)
            return [*many, large, blocked, await broker.run_many(SET, [KEY], [{"value": "1"}])]
        finally:
            await broker.close()

    for port in cluster.ports.values():
        assert asyncio.run(run(port)) == [b"OK"] * 21 + [None, [b"OK"]]


@pytest.mark.wide
def test_while_a_slot_is_moved_key_by_key_the_pool_is_away_and_nothing_is_written(cluster: RunningGroup) -> None:
    refused: list[object] = []

    def write() -> None:
        with Client(cluster.url) as client:
            for act in (lambda: broker.execute("SET", f"{KEY}:new", 1), lambda: client.submit("embed", "storm")):
                with pytest.raises(Unavailable, match="the pool's slot moves to another node"):
                    act()
                refused.append(act)

    with closing(Broker.connect(cluster.url)) as broker:
        broker.pipeline(*(["SET", f"{KEY}{n}", "kept"] for n in range(100)))
        before, jobs = cluster.primary(), num_jobs(cluster)
        cluster.move(key_by_key=True, meanwhile=write)
        wait_until(lambda: cluster.primary() != before)  # the nodes tell each other about the move
        assert broker.execute("GET", f"{KEY}7") == b"kept"
        assert (len(refused), num_jobs(cluster)) == (2, jobs)


def num_jobs(cluster: RunningGroup) -> int:
    with cluster.connect(10) as connection:
        return sum(b":job:" in key for key in connection.scan_iter(f"{Keys().root}:*"))


@KINDS
def test_after_a_failover_the_new_primary_is_asked(kind: str, request: pytest.FixtureRequest) -> None:
    group: RunningGroup = request.getfixturevalue(kind)

    async def get() -> object:
        another = AsyncBroker(ConnectionMaker(group.url))
        try:
            return await another.execute("GET", KEY)
        finally:
            await another.close()

    with closing(Broker.connect(group.url)) as broker:
        broker.execute("SET", KEY, 1)
        with group.in_step() as former:
            group.kill(former)
        wait_until(lambda: succeeds(broker, "SET", KEY, 2))
        wait_until(lambda: group.primary() != former)
        group.start(former)  # the old primary returns as a replica
        wait_until(group.is_complete)
        assert asyncio.run(get()) == b"2"


def test_after_many_moves_the_nodes_of_the_url_are_asked_soon() -> None:
    nodes = ClusterNodes([("a", 1), ("b", 1)])
    for n in range(100):
        nodes.note_move(MovedError(f"1 old:{n}"))
    asked = []
    for _ in range(MAX_MOVED_TO + 2):
        asked.append(nodes.find())
        nodes.note_silence(asked[-1])
    assert asked == [("old", 99), ("old", 98), ("old", 97), ("a", 1), ("b", 1)]
    nodes.note_move(MovedError("1 b:1"))
    assert nodes.find() == ("b", 1)
    nodes = ClusterNodes([("a", 1), ("b", 1), ("c", 1)])
    nodes.note_silence(("a", 1))
    nodes.note_move(MovedError("1 c:1"))
    nodes.note_silence(("c", 1))
    assert nodes.find() == ("b", 1)  # a node that was silent is still asked last


def test_sentinels_that_are_away_or_do_not_know_the_service_are_reported(sentinels: RunningGroup) -> None:
    nodes = sentinels.url.rpartition("/")[0]
    for url in (f"{nodes}/another/0", "redis+sentinel://127.0.0.1:1/shoal"):
        with closing(Broker.connect(url)) as broker, pytest.raises(Unavailable, match="No master found"):
            broker.ping()


@pytest.mark.wide
@KINDS
def test_workers_and_clients_go_on_after_a_failover(
    kind: str, request: pytest.FixtureRequest, tiny_source: Path, home: Path, tmp_path: Path
) -> None:
    """Jobs that were replicated before the failover are answered, and jobs that are accepted after it."""
    group: RunningGroup = request.getfixturevalue(kind)
    settings = {"redis_url": group.url, "model": tiny_source, "home": home, "cache_mb": 0}
    with ExitStack() as stack:
        workers = [stack.enter_context(Process(tmp_path / f"{n}.log", "worker", **settings)) for n in range(2)]
        client = stack.enter_context(Client(group.url))
        wait_until(lambda: len(client.pool.ready()) == 2)
        with Load(client) as load:
            wait_until(lambda: len(load.accepted) > 200)
            known = list(load.accepted)
            with group.in_step() as former:
                group.kill(former)
            load.finish_submitting()
            num_before = len(load.accepted)
            wait_until(lambda: len(load.accepted) > num_before + 200)
        load.check(known)
        load.check(load.accepted[num_before:])
        assert {error.code for error in load.errors} <= {"unavailable"}
        group.start(former)
        wait_until(group.is_complete)
        assert [worker.terminate() for worker in workers] == [0, 0]
