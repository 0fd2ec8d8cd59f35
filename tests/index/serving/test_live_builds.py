"""A worker and a runner, each a process: what was added and deleted is found before, during and after builds."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blocking import ChangeLog
from conftest import WORDS, wait_until
from process import Process

from shoal import Client
from shoal.changes.change import Change
from shoal.records.document import Document

pytest_plugins = ["long_job_fixtures"]
pytestmark = pytest.mark.usefixtures("rq")


class News:
    """An index that a worker serves, and that a runner builds."""

    def __init__(self, client: Client, source: Path):
        self.log = ChangeLog(client.broker, client.keys)
        self._client = client
        self._source = source

    def build(self, **options: Any) -> dict[str, Any]:
        """Build a version, and wait until it is searched."""
        result: dict[str, Any] = self._client.index("news").build(self._source, **options).wait()
        self.wait_for("version", result["version"])
        return result

    def change(self, texts: dict[str, str], deleted: list[str], made_at: float) -> str:
        """Add and delete documents, and wait until that is searched."""
        (about,) = self._client.pool.ready().values()
        vectors = np.zeros((0, 1), np.float32)
        if texts:
            vectors = np.asarray(self._client.embed(list(texts.values()), prompt_name="document"), np.float32)
        documents = tuple(Document(one, text, {}) for one, text in texts.items())
        position = self.log.append("news", Change(documents, vectors, tuple(deleted), about["digest"], made_at))
        self.wait_for("changes_through", position)
        return position

    def wait_for(self, name: str, value: object) -> None:
        """Wait until the worker's heartbeat says so of the index."""

        def told() -> list[Any]:
            return [about["indexes"].get("news", {}).get(name) for about in self._client.pool.ready().values()]

        wait_until(lambda: told() == [value])

    def hits(self) -> list[dict[str, Any]]:
        """Return all documents, as searches return them."""
        hits: list[dict[str, Any]] = self._client.search(["storm over europe"], k=1_000, index="news")[0]
        return hits

    def ids(self) -> set[str]:
        """Return the ids of all documents that are found."""
        return {hit["id"] for hit in self.hits()}


@pytest.fixture
def news(client: Client, redis_url: str, home: Path, tiny_source: Path, tmp_path: Path) -> Iterator[News]:
    """Return an index of a document for each word."""
    source = tmp_path / "source.jsonl"
    source.write_text("".join(json.dumps({"id": word, "text": f"{word} news"}) + "\n" for word in WORDS))
    keys = client.keys
    settings: dict[str, Any] = {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool}
    settings |= {"home": home, "index_home": tmp_path / "indexes", "roots": tmp_path, "kept_versions": 2}
    with ExitStack() as stack:
        worker = Process(tmp_path / "worker.log", "worker", model=tiny_source, precision="f32", threads=1, **settings)
        stack.enter_context(worker)
        stack.enter_context(Process(tmp_path / "runner.log", "jobs", **settings))
        wait_until(client.pool.ready)
        news = News(client, source)
        news.build()
        yield news


@pytest.mark.wide
def test_builds_fold_in_what_was_added_and_deleted(news: News, client: Client) -> None:
    news.change({"new": "climate rises", WORDS[0]: "rain falls"}, [WORDS[1]], 100.0)
    last = news.change({"newer": "europe market"}, [], 200.0)
    # Scores differ in their last bits with the texts that share a pass.
    before = [hit | {"score": pytest.approx(hit["score"], abs=1e-4)} for hit in news.hits()]
    assert news.ids() == {*WORDS, "new", "newer"} - {WORDS[1]}
    result = news.build()
    assert (result["num_changed"], result["count"]) == (4, len(WORDS) + 1)
    assert news.hits() == before
    again = news.build()
    assert (again["is_unchanged"], again["version"]) == (True, result["version"])
    assert news.build(full=True)["num_documents"] == len(WORDS) + 1
    assert news.hits() == before
    assert [(tail := news.log.since("news", last)).has_position, *tail.entries] == [True]
    news.change({}, ["newer"], 300.0)
    assert news.ids() == {*WORDS, "new"} - {WORDS[1]}
    index = client.index("news")
    assert next(version["count"] for version in index.rollback() if version["is_current"]) == len(WORDS) + 1
    wait_until(lambda: news.ids() == {*WORDS, "new"} - {WORDS[1]})
    news.build(drop_changes_before=150.0)
    assert news.ids() == set(WORDS)
    news.build()
    assert news.ids() == set(WORDS)
