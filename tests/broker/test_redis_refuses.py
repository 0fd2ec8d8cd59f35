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
from shoal_workers.loop.worker import Worker, log

Refusal = Callable[["redis.Redis", RedisServer], AbstractContextManager[None]]


def after(*commands: str, then: str) -> Refusal:
    """Return a refusal that begins with these commands of Redis and ends with `then`."""

    @contextmanager
    def refuse(admin: "redis.Redis", server: RedisServer) -> Iterator[None]:
        for command in commands:
            admin.execute_command(*command.split())  # type: ignore[no-untyped-call]
        yield
        admin.execute_command(*then.split())  # type: ignore[no-untyped-call]

    return refuse


@contextmanager
def busy(admin: "redis.Redis", server: RedisServer) -> Iterator[None]:
    def run_endlessly() -> None:
        with redis.Redis.from_url(server.url) as other, suppress(redis.ResponseError):
            other.eval("while true do end", 0)

    def is_busy() -> bool:
        try:
            return not admin.ping()
        except redis.ResponseError as error:
            return "BUSY" in str(error)

    admin.config_set("lua-time-limit", 10)
    thread = threading.Thread(target=run_endlessly)
    thread.start()
    wait_until(is_busy)
    yield
    admin.script_kill()
    thread.join()


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


REPLICA, ALONE = "REPLICAOF 127.0.0.1 1", "CONFIG SET replica-serve-stale-data no"
REPLICAS, RULES = "CONFIG SET min-replicas-to-write", "ACL SETUSER default +@all"

#: The cause of each refusal, and the remedy in the error.
REFUSALS = {
    "few replicas": (after(f"{REPLICAS} 1", then=f"{REPLICAS} 0"), "min-replicas-to-write"),
    "demoted": (after(REPLICA, then="REPLICAOF NO ONE"), "it is a replica"),
    "alone": (after(ALONE, REPLICA, then="REPLICAOF NO ONE"), "it is a replica without its primary"),
    "busy": (busy, "SCRIPT KILL"),
    "no disk": (no_disk, "make room there"),
    "narrow rules": (after(f"{RULES} -eval -evalsha -xreadgroup", then=RULES), "docs/redis-users.acl"),
}


def has_remedy(use: Callable[[str], object], remedy: str) -> bool:
    """Return True if the error has the remedy. The first error may only say that a blocked connection was closed."""
    with pytest.raises(Unavailable) as caught:
        use("rain")
    return remedy in caught.value.message


@pytest.mark.parametrize(("refusal", "remedy"), REFUSALS.values(), ids=REFUSALS)
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


def test_a_worker_logs_once_that_redis_refuses_to_write(
    own_redis: RedisServer, own_queue: Queue, encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", log.name)
    worker = Worker(own_queue.consumer(), encoder, {}, Bucketing(4_096))
    thread = threading.Thread(target=worker.run)

    def levels() -> list[str]:
        return [record.levelname for record in caplog.records if record.name == log.name]

    with redis.Redis.from_url(own_redis.url) as admin:
        admin.config_set("maxmemory-policy", "allkeys-lru")  # of which the worker warns when it takes jobs
        admin.config_set("min-replicas-to-write", 1)
        thread.start()
        try:
            wait_until(lambda: levels()[:3] == ["WARNING", "DEBUG", "DEBUG"])
            admin.config_set("min-replicas-to-write", 0)
            wait_until(lambda: levels()[-1] == "INFO")  # the worker takes jobs
        finally:
            admin.config_set("min-replicas-to-write", 0)
            worker.stop()
            thread.join()
    assert (set(levels()[1:-2]), levels()[-2]) == ({"DEBUG"}, "WARNING")


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
