"""Workers switch versions of an index under load: no request fails, and each answer comes from one version."""

import sys
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from conftest import repeating, wait_until
from index_versions import add_version, maps_of, publish_version
from process import Process

from shoal import Client
from shoal.contract.jobs import TEXTS_PER_JOB
from shoal.errors import UnknownIndex
from shoal_workers.index.files.manifest import VECTORS
from shoal_workers.index.versions import make_current

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
    """Return the version of the index in each worker's heartbeat."""
    return [about["indexes"].get("news", {}).get("version") for about in client.pool.ready().values()]


def errors(client: Client) -> list[str]:
    """Return the error in each worker's heartbeat about the current version."""
    return [about["index_errors"].get("news", "") for about in client.pool.ready().values()]


@pytest.mark.wide
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_workers_switch_under_load(
    home: Path, tiny_model: Path, tiny_source: Path, tmp_path: Path, client: Client, redis_url: str, index_folder: Path
) -> None:
    settings: dict[str, Any] = {
        "redis_url": redis_url,
        "key_prefix": client.keys.prefix,
        "pool": client.keys.pool,
    }
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
