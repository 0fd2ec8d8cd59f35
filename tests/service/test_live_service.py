"""Worker processes find what was added to an index and not what was deleted, also across a switch and a start."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blocking import ChangeLog
from conftest import wait_until
from index_versions import publish_version
from process import Process

from shoal import Client
from shoal.changes.change import Change
from shoal.records.document import Document

pytestmark = pytest.mark.wide

NEW, DELETED = "climate rises rain", "storm europe"


class Watch:
    """Threads that search for a text all the time, and note which of two documents each answer has."""

    def __init__(self, client: Client, new_id: str, deleted_id: str):
        self.answers: list[tuple[bool, bool]] = []
        self.failures: list[Exception] = []
        self._client = client
        self._ids = (new_id, deleted_id)
        self._stopped = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Search while the context lasts."""
        threads = [threading.Thread(target=self._search_on) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join()

    def wait_for_more(self, number: int = 20) -> None:
        """Return once so many more searches are answered."""
        until = len(self.answers) + len(self.failures) + number
        wait_until(lambda: len(self.answers) + len(self.failures) >= until)

    def _search_on(self) -> None:
        while not self._stopped.is_set():
            try:
                (hits,) = self._client.search([NEW], k=1_000, index="news")
                found = {hit["id"] for hit in hits}
                self.answers.append((self._ids[0] in found, self._ids[1] in found))
            except Exception as error:  # the test shows it
                self.failures.append(error)


@pytest.fixture
def settings(client: Client, redis_url: str, home: Path, tiny_source: Path, tmp_path: Path) -> dict[str, Any]:
    """Return settings of workers of the test's own pool."""
    keys = client.keys
    pool = {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool}
    return pool | {"home": home, "model": tiny_source, "precision": "f32", "threads": 1, "index_home": tmp_path}


def told(client: Client, name: str) -> list[Any]:
    """Return a field of the index from the heartbeat of each worker."""
    return [about["indexes"].get("news", {}).get(name) for about in client.pool.ready().values()]


def change(client: Client, added: str, deleted: str) -> Change:
    """Return a change that adds a document of a text, with its text as id, and deletes another one."""
    (about,) = list(client.pool.ready().values())[:1]
    vectors = np.asarray(client.embed([added], prompt_name="document"), np.float32)
    return Change((Document(added, added, {"kind": "new"}),), vectors, (deleted,), about["digest"], 0.0)


def test_workers_follow_changes_across_a_switch_and_a_start(
    client: Client, settings: dict[str, Any], index_folder: Path, tmp_path: Path
) -> None:
    def start() -> Process:
        return stack.enter_context(Process(tmp_path / "log", "worker", **settings))

    publish_version(tmp_path / "news", index_folder, "v1")
    log = ChangeLog(client.broker, client.keys)
    with ExitStack() as stack:
        workers = [start() for _ in range(2)]
        wait_until(lambda: told(client, "version") == ["v1", "v1"])
        (deleted,) = [hit["id"] for hit in client.search([DELETED], k=1, index="news")[0]]
        position = log.append("news", change(client, NEW, deleted))
        wait_until(lambda: told(client, "changes_through") == [position] * 2)
        watch = Watch(client, NEW, deleted)
        with watch.running():
            watch.wait_for_more()
            publish_version(tmp_path / "news", index_folder, "v2")
            wait_until(lambda: told(client, "version") == ["v2", "v2"])
            watch.wait_for_more()
            workers.append(start())
            wait_until(lambda: told(client, "num_changes") == [2, 2, 2])
            assert [worker.terminate() for worker in workers[:2]] == [0, 0]
            watch.wait_for_more()
        assert watch.failures == []
        assert set(watch.answers) == {(True, False)}
        assert told(client, "count") == [64]
        assert workers[2].terminate() == 0
