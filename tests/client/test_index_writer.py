"""Adding documents to a served index and deleting them: the changes in the log, and refusals."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from api_stub import MakeApp, error_of
from blocking import ChangeLog, Pool
from client_adapters import MakeClient
from conftest import PATIENCE_S, running
from fuzzing import packed
from http_servers import Listen
from long_job_callers import Guarded
from werkzeug.test import TestResponse

from shoal import AsyncClient, Client, HttpClient
from shoal.changes.change import MAX_CHANGE_BYTES, MAX_CHANGE_IDS, MAX_CHANGES, Change
from shoal.changes.change_log import START
from shoal.client.http.long_jobs import MAX_REQUEST_BYTES, MAX_REQUEST_DOCUMENTS
from shoal.client.redis.index_writer import DOCUMENTS_PER_CHANGE, MAX_BYTES, IndexModel, Written, _size
from shoal.contract.jobs import Job
from shoal.contract.keys import Keys
from shoal.contract.options import Options
from shoal.contract.replies import Reply
from shoal.contract.vectors import SparseVector
from shoal.errors import BadDocument, InvalidRequest, NotReady, TooLarge, TooManyChanges, UnknownIndex
from shoal.queue.lane import LaneLimits
from shoal.records.document import Document
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.loop.worker import Worker
from shoal_workers.service.service import about, announced

pytest_plugins = ["any_client_fixtures", "api_fixtures", "http_fixtures", "long_job_fixtures"]

DOCUMENT = {"id": "7", "text": "storm in europe", "topic": "sea"}


def documents(number: int, text: str = "storm") -> list[dict[str, Any]]:
    """Return that many documents."""
    return [{"id": str(n), "text": f"{text} {n}"} for n in range(number)]


@pytest.fixture
def served(worker: Worker) -> Iterator[Worker]:
    """An announced worker that runs in a thread."""
    with announced(worker, LaneLimits()), running(worker):
        yield worker


class Log(ChangeLog):
    """The log of the index `default`."""

    def changes(self) -> list[Change]:
        """Return all changes that can be read."""
        return [one for entry in self.since("default", START).entries if isinstance(one := entry.change, Change)]

    def sizes(self) -> list[int]:
        """Return the number of ids of each change."""
        return [change.num_ids for change in self.changes()]


@pytest.fixture
def log(client: Client, keys: Keys) -> Log:
    """Return the log of the index `default` in the test's own pool."""
    return Log(client.broker, keys)


@pytest.fixture
def announce(client: Client, worker: Worker) -> Callable[..., None]:
    """Return a function that announces a second worker, which does not run, with other values of its index."""
    pool, known = Pool(client.broker, client.keys, alive_s=3_600), about(worker)

    def announce(name: str = "default", of_worker: Mapping[str, Any] | None = None, **values: Any) -> None:
        indexes = {name: known["indexes"]["default"] | values}
        pool.announce("other", known | {"indexes": indexes} | dict(of_worker or {}))

    return announce


class TestClient:
    def test_added_documents_get_the_same_vectors_as_in_a_build(
        self, served: Worker, client: Client, log: Log, encoder: Encoder
    ) -> None:
        assert client.index("default").add([DOCUMENT]) == 1
        (change,) = log.changes()
        (document,) = change.documents
        assert (document.id, document.text, document.fields) == ("7", "storm in europe", {"topic": "sea"})
        assert (change.deleted, change.digest) == ((), encoder.model.digest)
        wanted = encoder.embed(["storm in europe"], Options(), prompt=encoder.model.prompts["document"])
        assert change.vectors == pytest.approx(wanted, abs=1e-5)
        assert abs(change.made_at - time.time()) < PATIENCE_S

    def test_256_documents_or_1_000_ids_make_one_change(self, served: Worker, client: Client, log: Log) -> None:
        news = client.index("default")
        assert news.add(documents(DOCUMENTS_PER_CHANGE)) == DOCUMENTS_PER_CHANGE
        assert news.add(iter(documents(DOCUMENTS_PER_CHANGE + 1))) == 257
        assert news.delete(["7", "no such id"]) == 2
        assert news.delete(str(n) for n in range(MAX_CHANGE_IDS + 1)) == 1_001
        assert log.sizes() == [256, 256, 1, 2, 1_000, 1]
        assert log.changes()[3].deleted == ("7", "no such id")
        assert log.changes()[5].deleted == ("1000",)

    def test_an_index_whose_workers_sleep_can_be_changed_and_a_number_is_no_id_in_one_that_numbers_its_documents(
        self, client: Client, log: Log, announce: Callable[..., None]
    ) -> None:
        announce(of_worker={"state": "asleep"})
        news = client.index("default")
        assert news.delete(["7"]) == 1
        announce(ids_are_positions=True)
        said = r'no column of ids.* "7" may be another document .*--id-column'
        changes: list[Callable[[], int]] = [lambda: news.add([DOCUMENT]), lambda: news.delete(["new", "7"])]
        for change in changes:
            with pytest.raises(InvalidRequest, match=said):
                change()
        assert news.delete(["new"]) == 1
        assert log.sizes() == [1, 1]

    def test_large_documents_and_documents_of_many_values_make_several_changes(
        self, served: Worker, client: Client, log: Log
    ) -> None:
        news, more = client.index("default"), dict[str, Any]()
        for more in ({"body": "x" * 300_000}, {"tags": [[]] * 1_000}):
            assert news.add(document | more for document in documents(8)) == 8
        with pytest.raises(TooLarge, match=r"document 1 takes 5,000,\d+ bytes and may take 1,044,480: shorten it"):
            news.add([DOCUMENT, {"id": "8", "text": "a", "body": "x" * 5_000_000}])
        with pytest.raises(TooLarge, match="id 1 takes"):
            news.delete(["7", "x" * 5_000_000])
        assert log.sizes() == [3, 3, 2, 4, 4]

    def test_the_error_of_a_full_log_says_how_much_is_written(self, served: Worker, client: Client, log: Log) -> None:
        news = client.index("default")
        news.delete(str(n) for n in range(8_500))
        with pytest.raises(TooManyChanges, match=r"build it \(the first 1,000 are written\)$"):
            news.delete(str(n) for n in range(2_000))
        news.delete(str(n) for n in range(500))
        with pytest.raises(TooManyChanges, match=r"build it$"):
            news.add([DOCUMENT])
        assert sum(log.sizes()) == MAX_CHANGES
        with pytest.raises(TooLarge, match="more than 10,000 documents"):
            news.add(documents(MAX_CHANGES + 1))
        with pytest.raises(TooLarge, match="more than 10,000"):
            news.delete(map(str, range(MAX_CHANGES + 1)))

    def test_a_just_published_index_is_waited_for(
        self, served: Worker, client: Client, announce: Callable[..., None]
    ) -> None:
        async def delete(own: AsyncClient) -> int:
            deleting = asyncio.create_task(own.index("news").delete(["7"]))
            await asyncio.sleep(0)
            announce("news")
            return await deleting

        assert client.run(delete) == 1

    def test_nothing_is_written_while_no_worker_is_ready_or_workers_differ(
        self, served: Worker, client: Client, log: Log, announce: Callable[..., None]
    ) -> None:
        for values in ({"digest": "d"}, {"dimension": 7}, {"prompt": "query"}, {"digest": 5}, {"dimension": "7"}):
            announce(**values)
            with pytest.raises(NotReady, match=r"with different models, .* so nothing is written"):
                client.index("default").add([DOCUMENT])
            with pytest.raises(NotReady, match=r"with different models, .* so nothing is written"):
                client.index("default").delete(["7"])
        announce(of_worker={"fingerprint": "f", "precision": "int8"})
        with pytest.raises(NotReady, match="with settings that give other vectors, so nothing is written"):
            client.index("default").add([DOCUMENT])
        assert log.changes() == []
        assert client.index("default").delete(["7"]) == 1
        served.pool.leave(served.id)
        announce(of_worker={"state": "stalled"})
        with pytest.raises(NotReady, match="no worker is ready"):
            client.index("default").add([DOCUMENT])


@pytest.mark.parametrize(
    "wrong", [{"fingerprint": "f"}, {"vectors": np.ones((1, 3), np.float32)}, {"vectors": None}, {}]
)
def test_nothing_is_written_if_a_worker_changes_its_model_meanwhile(
    served: Worker, client: Client, log: Log, announce: Callable[..., None], wrong: dict[str, Any]
) -> None:
    async def add(own: AsyncClient) -> Written:
        writer = own.writer("default")

        async def call(job: Job) -> Reply:
            if not wrong:
                announce(digest="d")  # only the heartbeats show the change
            assert job.fingerprint == served.encoder.fingerprint
            if "fingerprint" in wrong:  # the worker's fingerprint has changed when it takes the job
                return await writer.call(replace(job, **wrong))
            return replace(await writer.call(job), **wrong)

        return await replace(writer, call=call).add([DOCUMENT])

    with pytest.raises(NotReady, match="nothing is written"):
        client.run(add)
    assert log.changes() == []


def test_every_client_adds_and_deletes(make_client: MakeClient, served: Worker, log: Log) -> None:
    news = make_client().index("default")
    assert news.add([DOCUMENT, {"id": "8", "text": "rain"}]) == 2
    assert news.delete(iter(["7", "9"])) == 2
    assert (news.add([]), news.delete([])) == (0, 0)
    with pytest.raises(BadDocument, match="document 1"):
        news.add([DOCUMENT, DOCUMENT])
    with pytest.raises(BadDocument, match=r'document 130 \(id "x"\): the text'):
        news.add([*documents(130), {"id": "x"}])
    with pytest.raises(UnknownIndex):
        make_client().index("news").add([DOCUMENT])
    added, deleted = log.changes()
    assert [document.id for document in added.documents] == ["7", "8"]
    assert deleted.deleted == ("7", "9")


def test_over_http_a_full_request_fits_into_a_change_and_an_error_says_how_much_is_written(
    listen: Listen, make_app: MakeApp, served: Worker, client: Client, log: Log
) -> None:
    assert MAX_REQUEST_DOCUMENTS * 4 * 4_096 + MAX_REQUEST_BYTES <= MAX_BYTES
    with HttpClient(listen(make_app()), timeout_s=PATIENCE_S) as http:
        assert http.index("default").add(document | {"tags": [[]] * 1_000} for document in documents(7)) == 7
        assert log.sizes() == [2, 2, 2, 1]
        client.index("default").delete(str(n) for n in range(7, 9_950))
        with pytest.raises(TooManyChanges, match=r"\(the first 32 are written\)"):
            http.index("default").add({"id": f"new {n}", "text": "storm"} for n in range(64))
    assert sum(log.sizes()) == 9_982


@pytest.mark.usefixtures("served")
class TestApi:
    PLACE = "/v1/indexes/default/documents"

    def test_a_request_makes_one_change(self, make_app: MakeApp, log: Log) -> None:
        api = make_app().test_client()
        answer = api.post(self.PLACE, json={"documents": documents(MAX_CHANGE_IDS)}).get_json()
        assert answer == {"index": "default", "num": 1_000, "position": answer["position"]}
        assert api.delete(self.PLACE, json={"ids": ["7"]}).get_json()["num"] == 1
        assert log.sizes() == [1_000, 1]
        body = packed({"documents": [DOCUMENT]})
        assert api.post(self.PLACE, data=body, content_type="application/msgpack").status_code == 200
        assert log.changes()[-1].documents[0].fields == {"topic": "sea"}

    def test_a_request_with_a_wrong_part_is_refused_as_a_whole(self, make_app: MakeApp, log: Log) -> None:
        long = [document | {"a": "x" * 300_000} for document in documents(5)]
        wrong: list[tuple[str, Any, int, str]] = [
            ("POST", b"", 400, "the body is not JSON"),
            ("POST", {}, 422, "documents is missing"),
            ("POST", {"documents": [DOCUMENT], "ids": ["7"]}, 422, 'unknown field "ids"'),
            ("POST", {"documents": ["storm"]}, 422, 'document 0 is "storm"'),
            ("POST", {"documents": [DOCUMENT | {"a": [0] * 30_000}]}, 413, "the documents have over 20,971"),
            ("POST", {"documents": long}, 413, "the documents take 1,500,"),
            ("DELETE", {"ids": []}, 422, "ids is []"),
            ("DELETE", {"ids": ["7", 7]}, 422, "id 1 is 7: it takes a string"),
            ("DELETE", {"ids": ["7", "7"]}, 422, 'id 1 is "7", which was sent before'),
            ("DELETE", {"ids": [str(n) for n in range(1_001)]}, 413, "more than 1,000 ids"),
        ]
        api = make_app().test_client()
        for method, body, status, words in wrong:
            given = {"data": body} if isinstance(body, bytes) else {"json": body}
            assert words in error_of(api.open(self.PLACE, method=method, **given), status)[1]
        for value in (float("nan"), b"a", {b"a": 1}):  # values of msgpack that JSON does not have
            body = packed({"documents": [DOCUMENT | {"a": value}]})
            refused = api.post(self.PLACE, data=body, content_type="application/msgpack")
            assert 'document 0 (id "7"): "a" has a' in error_of(refused, 422)[1]
        named = api.post("/v1/indexes/a%20b/documents", json={"documents": [DOCUMENT]})
        assert "the index is" in error_of(named, 422)[1]
        refused = make_app(max_text_chars=10).test_client().post(self.PLACE, json={"documents": [DOCUMENT]})
        assert "the text has 15 characters and may have 10" in error_of(refused, 422)[1]
        assert log.changes() == []

    def test_an_admins_key_is_needed(self, guarded: Guarded) -> None:
        def ask(name: str, method: str, body: dict[str, Any]) -> TestResponse:
            return guarded.ask(name, method, self.PLACE, json=body)

        for method, body in (("POST", {"documents": [DOCUMENT]}), ("DELETE", {"ids": ["7"]})):
            assert error_of(ask("ann", method, body), 403)[0] == "forbidden"
            assert ask("ops", method, body).status_code == 200


def test_no_document_takes_more_bytes_in_a_change_than_its_size_says() -> None:
    model, weights = IndexModel("m", "d", 1, "", "", True), SparseVector(np.arange(500, dtype="i4"), np.ones(500, "f4"))
    added = tuple(Document(f"{n}", "storm", {}) for n in range(100))
    change = Change(added, np.ones((100, 1), np.float32), (), "d", 0.0, (weights,) * 100)
    sizes = [_size(document, model, len(weights.indices)) for document in added]
    assert len(change.pack()) <= sum(sizes) + MAX_CHANGE_BYTES - MAX_BYTES
