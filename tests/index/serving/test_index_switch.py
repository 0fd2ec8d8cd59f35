"""Workers switch versions of an index under load, or some do not serve an index: no client notices."""

import sys
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from conftest import repeating, wait_until
from index_versions import add_version, maps_of, publish_version
from process import Process
from queues import Queue

from shoal import Client
from shoal.contract.jobs import LANES, TEXTS_PER_JOB
from shoal.errors import UnknownIndex
from shoal.operations import Embed, Search
from shoal_workers.index.files.manifest import VECTORS
from shoal_workers.index.versions import make_current
from shoal_workers.loop.admission import FIRST_PAUSE_S
from shoal_workers.loop.worker import Worker

#: Searches of one job, and of two jobs.
SIZES = (1, TEXTS_PER_JOB + 1)


class Searches:
    """Threads that search again and again, and note the versions in their answers."""

    def __init__(self, client: Client):
        self.answers: list[set[str]] = []
        self.failures: list[Exception] = []
        self._client = client

    def running(self) -> AbstractContextManager[None]:
        """Search while the context lasts."""
        return repeating(*(partial(self._search, size) for size in SIZES * 2))

    def wait_for_more(self, number: int = 20) -> None:
        """Return when this many more searches have been answered."""
        until = len(self.answers) + len(self.failures) + number
        wait_until(lambda: len(self.answers) + len(self.failures) >= until)

    def _search(self, size: int) -> None:
        try:
            results = self._client.search(["storm"] * size, k=3, index="news")
            self.answers.append({hit["version"] for hits in results for hit in hits})
        except Exception as error:  # the test raises it
            self.failures.append(error)


def served(client: Client) -> list[Any]:
    return [about["indexes"].get("news", {}).get("version") for about in client.pool.ready().values()]


def errors(client: Client) -> list[str]:
    return [about["index_errors"].get("news", "") for about in client.pool.ready().values()]


@pytest.mark.wide
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_workers_switch_under_load(
    home: Path, tiny_model: Path, tiny_source: Path, tmp_path: Path, client: Client, redis_url: str, index_folder: Path
) -> None:
    keys = client.keys
    settings: dict[str, Any] = {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool}
    settings |= {"home": home, "model": tiny_source, "precision": "f32", "threads": 1, "index_home": tmp_path}
    news, searches = tmp_path / "news", Searches(client)
    with ExitStack() as stack:
        workers = [stack.enter_context(Process(tmp_path / "log", "worker", **settings)) for _ in range(2)]
        wait_until(lambda: len(client.pool.ready()) == 2)
        with pytest.raises(UnknownIndex):
            client.search("storm", index="news")
        publish_version(news, index_folder, "v1")
        wait_until(lambda: served(client) == ["v1", "v1"])

        with searches.running():
            searches.wait_for_more()
            publish_version(news, index_folder, "v2")
            wait_until(lambda: served(client) == ["v2", "v2"])
            searches.wait_for_more()
            (add_version(news, index_folder, "v3") / VECTORS).write_bytes(b"")
            make_current(news, "v3")
            wait_until(lambda: all("v3/vectors.npy is not what was built" in message for message in errors(client)))
            make_current(news, "v1")
            wait_until(lambda: served(client) == ["v1", "v1"] and errors(client) == ["", ""])
            searches.wait_for_more()
        assert searches.failures == []
        assert {frozenset(answer) for answer in searches.answers} == {frozenset({"v1"}), frozenset({"v2"})}
        wait_until(lambda: not any(maps_of(worker.pid, news / "v2") for worker in workers))
        assert all(maps_of(worker.pid, news / "v1") for worker in workers)
        rmtree(news)
        wait_until(lambda: served(client) == [None, None])
        with pytest.raises(UnknownIndex):
            client.search("storm", index="news")
        assert [worker.terminate() for worker in workers] == [0, 0]


@pytest.mark.parametrize("died_of_it", [False, True])
def test_a_job_that_is_given_back_comes_to_the_next_worker_as_it_was(queue: Queue, died_of_it: bool) -> None:
    job = Search(["storm"] * 33)
    queue.put("bulk", [job], client="web")
    (taken,) = queue.take("a", LANES, 64)
    assert taken.client == "web"
    if died_of_it:
        queue.die()
        (taken,) = queue.take("b", LANES, 64)
        assert taken.deaths == 1
    queue.consumer(taken.worker).give_back([taken])
    assert queue.status(job.id)[0] == "queued"
    (again,) = queue.take("c", LANES, 64)
    assert replace(again, worker=taken.worker) == taken
    queue.consumer(taken.worker).give_back([taken])  # the worker no longer has the job
    assert queue.cancel(job.id) == "cancelled"
    assert queue.consumer("c").lost([again]) == [again]


def test_a_job_that_is_given_back_waits_behind_the_others_of_its_client(queue: Queue) -> None:
    queue.put("bulk", jobs := [Search(["storm"], index=name) for name in ("a", "b", "c")])
    queue.consumer("w").give_back(queue.take("w", ["bulk"], 1))
    assert [one.key for one in queue.take("w", ["bulk"], 9)] == [jobs[n].id for n in (1, 2, 0)]


def test_a_suspect_for_another_worker_keeps_no_job_from_this_one(queue: Queue, worker: Worker) -> None:
    queue.put("interactive", [Embed(["the first pass is slow"])])
    assert worker.step() == 1
    queue.pool.announce("other", {"indexes": {"x": {"count": 1}}})
    queue.put("interactive", [Search(["storm"], index="x")])
    queue.take("dead", LANES, 1)
    queue.die("dead")
    queue.put("interactive", [Embed(["rain"])])
    assert [worker.step(block_s=0) for _ in range(2)] == [0, 1]
    began = time.monotonic()
    assert sum(worker.step() for _ in range(20)) == 0
    assert time.monotonic() - began >= 20 * FIRST_PAUSE_S
