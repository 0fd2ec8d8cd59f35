"""Redis is killed and started again: jobs in its append-only log are answered, and without data all goes on."""

from collections.abc import Sized
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from signal import SIGKILL

import pytest
import redis
from api_process import Answer
from conftest import RedisServer, wait_until
from index_versions import publish_version
from load import Load
from process import Process
from queues import queue_of
from service import Service, service

from shoal import Client

pytestmark = pytest.mark.wide

NUM_KILLS = 3


def longer_than(found: Sized, num: int) -> bool:
    return len(found) > num


def test_every_accepted_job_is_answered_right(tmp_path: Path, tiny_source: Path, home: Path) -> None:
    server = RedisServer(tmp_path, appendfsync="always")
    settings = {"redis_url": server.url, "model": tiny_source, "home": home, "cache_mb": 0}
    with ExitStack() as stack, Client(server.url) as client:
        stack.callback(server.stop)
        server.start()
        workers = [stack.enter_context(Process(tmp_path / f"{n}.log", "worker", **settings)) for n in range(2)]
        with Load(client) as load:
            for _ in range(NUM_KILLS):
                num_before, num_errors = len(load.accepted), len(load.errors)
                wait_until(partial(longer_than, load.accepted, num_before + 100))
                server.stop(SIGKILL)
                wait_until(partial(longer_than, load.errors, num_errors))
                server.start()
                num_back = len(load.accepted)
                wait_until(partial(longer_than, load.accepted, num_back))
        load.check(load.accepted)
        assert {error.code for error in load.errors} == {"unavailable"}
        assert queue_of(client).backlog() == {"interactive": 0, "bulk": 0}
        assert [worker.terminate() for worker in workers] == [0, 0]


def test_after_redis_has_lost_its_data_everything_goes_on_by_itself(
    own_redis: RedisServer, tmp_path: Path, tiny_source: Path, home: Path, index_folder: Path
) -> None:
    publish_version(tmp_path / "indexes" / "news", index_folder, "v1")
    settings = {"redis_url": own_redis.url, "model": tiny_source, "home": home, "index_home": tmp_path / "indexes"}
    with service(tmp_path, **settings) as pool, redis.Redis.from_url(own_redis.url) as admin:
        for n in range(2):
            wait_until(lambda: pool.ask("GET", "/ready?index=news").status == 200)
            wait_until(partial(is_taken, pool, {"documents": [{"id": f"x{n}", "text": f"word{n}x"}]}))
            wait_until(partial(is_found, pool, f"x{n}", f"word{n}x"))
            job = pool.ask("POST", "/v1/jobs", {"op": "embed", "inputs": f"storm {n}"}).body["id"]
            assert pool.ask("GET", f"/v1/jobs/{job}/result?wait=60").status == 200
            admin.flushall()
            admin.script_flush()
        wait_until(lambda: search(pool, "storm").status == 200)


def search(pool: Service, query: str) -> Answer:
    return pool.ask("POST", "/search", {"queries": query, "k": 3, "index": "news", "mode": "lexical"})


def is_taken(pool: Service, documents: object) -> bool:
    """Return True if the documents were added. The API's knowledge of workers may be some tenths of a second old."""
    return pool.ask("POST", "/v1/indexes/news/documents", documents).status == 200


def is_found(pool: Service, document: str, query: str) -> bool:
    found = search(pool, query)
    return found.status == 200 and document in [hit["id"] for hit in found.body["results"][0]]
