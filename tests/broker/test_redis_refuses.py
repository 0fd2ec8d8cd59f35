"""Redis answers and refuses: clients and workers get the reason in an error, and go on once Redis serves again."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial

import numpy as np
import pytest
import redis
from conftest import PATIENCE_S, RedisServer, wait_until
from queues import Queue, queue_of

from shoal import Client
from shoal.errors import Unavailable
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.loop.worker import Worker

Refusal = Callable[["redis.Redis", RedisServer], AbstractContextManager[None]]


@contextmanager
def few_replicas(admin: "redis.Redis", server: RedisServer) -> Iterator[None]:
    admin.config_set("min-replicas-to-write", 1)
    yield
    admin.config_set("min-replicas-to-write", 0)


@contextmanager
def demoted(admin: "redis.Redis", server: RedisServer) -> Iterator[None]:
    admin.replicaof("127.0.0.1", 1)
    yield
    admin.replicaof("NO", "ONE")


@contextmanager
def alone(admin: "redis.Redis", server: RedisServer) -> Iterator[None]:
    admin.config_set("replica-serve-stale-data", "no")
    with demoted(admin, server):
        yield


@contextmanager
def busy(admin: "redis.Redis", server: RedisServer) -> Iterator[None]:
    admin.config_set("lua-time-limit", 10)
    with redis.Redis.from_url(server.url) as other:
        thread = threading.Thread(target=lambda: _run_endlessly(other))
        thread.start()
        wait_until(lambda: _is_busy(admin))
        yield
        admin.script_kill()
        thread.join()


def _run_endlessly(connection: "redis.Redis") -> None:
    with suppress(redis.ResponseError):
        connection.eval("while true do end", 0)


def _is_busy(admin: "redis.Redis") -> bool:
    try:
        return not admin.ping()
    except redis.ResponseError as error:
        return "BUSY" in str(error)


@contextmanager
def no_disk(admin: "redis.Redis", server: RedisServer) -> Iterator[None]:
    obstacle = server.folder / "dump.rdb"
    obstacle.mkdir()
    admin.config_set("save", "3600 1")
    admin.bgsave()
    wait_until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err")
    yield
    admin.config_set("save", "")
    obstacle.rmdir()


@contextmanager
def narrow_rules(admin: "redis.Redis", server: RedisServer) -> Iterator[None]:
    everything = ("ACL", "SETUSER", "default", "+@all")
    admin.execute_command(*everything, "-eval", "-evalsha", "-xreadgroup")  # type: ignore[no-untyped-call]
    yield
    admin.execute_command(*everything)  # type: ignore[no-untyped-call]


REFUSALS = [
    (few_replicas, "min-replicas-to-write"),
    (demoted, "it is a replica"),
    (alone, "it is a replica without its primary"),
    (busy, "SCRIPT KILL"),
    (no_disk, "make room there"),
    (narrow_rules, "docs/redis-users.acl"),
]


def has_remedy(use: Callable[[str], object], remedy: str) -> bool:
    """Return True if the error has the remedy. The first error may only say that a blocked connection was closed."""
    with pytest.raises(Unavailable) as caught:
        use("rain")
    return remedy in caught.value.message


@pytest.mark.parametrize(("refusal", "remedy"), REFUSALS, ids=[refusal.__name__ for refusal, _ in REFUSALS])
def test_clients_and_workers_learn_why_and_go_on(
    own_redis: RedisServer, own_queue: Queue, encoder: Encoder, refusal: Refusal, remedy: str
) -> None:
    stopping = threading.Event()
    worker = Worker(own_queue.consumer(), encoder, {}, Bucketing(4_096), stopping=stopping)
    thread = threading.Thread(target=worker.run)
    with Client(own_redis.url) as client, redis.Redis.from_url(own_redis.url) as admin:
        thread.start()
        try:
            before = client.embed("storm")
            with refusal(admin, own_redis):
                for use in (client.embed, lambda text: client.submit("embed", text)):
                    wait_until(partial(has_remedy, use, remedy))
            np.testing.assert_allclose(client.embed("storm"), before, atol=1e-5)  # other texts may be in its pass
            assert client.submit("embed", "rain").result(PATIENCE_S).vectors is not None
        finally:
            stopping.set()
            thread.join()


def test_while_redis_reads_its_data_the_error_says_so(own_redis: RedisServer) -> None:
    with redis.Redis.from_url(own_redis.url) as admin:
        admin.config_set("rdbcompression", "no")
        admin.mset({f"key{n}": bytes(10_000) for n in range(2_000)})
        admin.save()
    own_redis.stop()
    own_redis.options |= {"appendonly": "no", "key_load_delay": 100_000, "loading_process_events_interval_bytes": 1_024}
    own_redis.launch()
    with Client(own_redis.url) as client, redis.Redis.from_url(own_redis.url) as admin:
        wait_until(lambda: "it was just started" in why(client))
        admin.config_set("key-load-delay", 0)
        wait_until(lambda: not why(client))
        assert client.submit("embed", "storm").status() == "queued"


def why(client: Client) -> str:
    try:
        queue_of(client).ping()
    except Unavailable as error:
        return error.message
    return ""
