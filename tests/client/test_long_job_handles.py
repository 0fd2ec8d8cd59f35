"""The handles of long jobs and of indexes: waits, uploads and downloads."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from api_stub import MakeApp
from conftest import PATIENCE_S
from http_servers import Canned, CannedServer, Listen

from shoal import Client, HttpClient, ServerFile
from shoal.client.long_job_handles import LongHandle
from shoal.contract import wire
from shoal.errors import (
    BadDocument,
    Cancelled,
    FileError,
    InvalidRequest,
    InvalidText,
    MalformedJob,
    NotReady,
    PathNotAllowed,
    Timeout,
    Unavailable,
    UnknownJob,
)
from shoal.long_jobs.status import LongJobStatus
from shoal.task_progress import TaskProgress

pytest_plugins = ["api_fixtures", "http_fixtures"]

ID = "0123456789abcdef01234567"
JSON = {"Content-Type": "application/json"}


def status(word: str, **values: Any) -> LongJobStatus:
    """Return a state of a job."""
    return LongJobStatus(ID, "embed_file", word, {"source": "/news.csv"}, 1.0, **values)


def handle(*states: LongJobStatus | Exception) -> LongHandle:
    """Return the handle of a job with these successive states, or errors; the last state is repeated."""
    left = chain(states, repeat(states[-1]))

    def next_state(job_id: str) -> LongJobStatus:
        if isinstance(state := next(left), Exception):
            raise state
        return state

    jobs: Any = SimpleNamespace(status=next_state)
    return LongHandle(jobs, ID)


class TestLongHandle:
    def test_a_wait_lasts_until_the_job_has_ended(self) -> None:
        progress = TaskProgress(rows=7, fraction=0.5)
        job = handle(status("queued"), status("running", progress=progress), status("done", result={"rows": 14}))
        seen: list[str] = []
        assert job.wait(PATIENCE_S, lambda state: seen.append(state.status)) == {"rows": 14}
        assert seen == ["queued", "running", "done"]
        with pytest.raises(BadDocument, match="line 3"):
            handle(status("failed", error={"code": "bad_document", "message": "line 3: no text"})).wait()
        with pytest.raises(Cancelled):
            handle(status("cancelled")).wait()

    def test_a_wait_goes_on_while_redis_is_away(self) -> None:
        job = handle(status("running"), Unavailable("away"), Unavailable("away"), status("done"))
        assert job.wait(PATIENCE_S) == {}
        with pytest.raises(Unavailable):
            handle(Unavailable("Redis has not answered yet"), status("done")).wait()

    def test_the_pauses_of_a_wait_double(self) -> None:
        seen: list[LongJobStatus] = []
        with pytest.raises(Timeout, match="not done after"):
            handle(status("running")).wait(0.5, seen.append)
        assert len(seen) <= 5  # looks after 0, 0.05, 0.15, 0.35 and 0.5 s


def test_a_long_job_over_redis_needs_a_file(client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    wrong: Any = [{"id": "1", "text": "storm"}]
    unknown: Any = {"colour": "blue"}
    for submit in (client.index("news").build, partial(client.bulk, out=tmp_path)):
        with pytest.raises(InvalidRequest, match="the source is no path: write texts into a file"):
            submit(wrong)
        with pytest.raises(InvalidRequest, match='option "colour"'):
            submit("news.csv", **unknown)
        with pytest.raises(InvalidRequest, match=r'"s3://…" is a URL: .* download it'):
            submit("s3://bucket/news.csv")
    with pytest.raises(NotReady, match="no runner of long jobs is alive"):
        client.index("news").versions()
    job = client.bulk("news.csv", tmp_path / "vectors", dimensions=8)
    arguments = client.long_jobs.status(job.id).arguments
    assert (arguments["out"], arguments["options"]) == (str(tmp_path / "vectors"), {"dimensions": 8})
    assert arguments["source"] == str(tmp_path / "news.csv")  # a relative path is below the working folder
    job.cancel()


def answer(**values: Any) -> Canned:
    """Return an answer with these values."""
    return Canned(200, json.dumps(values).encode(), JSON)


@pytest.fixture
def http(canned: CannedServer) -> Iterator[HttpClient]:
    """A client of the server with made-up answers."""
    with HttpClient(canned.url, timeout_s=PATIENCE_S) as client:
        yield client


def result(*parts: dict[str, bytes]) -> bytes:
    """Return the manifest of a result whose parts have these files."""
    about = [
        {
            "checksums": {name: sha256(data).hexdigest() for name, data in part.items()},
            "sizes": {name: len(data) for name, data in part.items()},
        }
        for part in parts
    ]
    return json.dumps({"parts": about}).encode()


def files(*contents: bytes) -> Sequence[Canned]:
    """Return the answers to downloads with these contents."""
    return [Canned(200, data, {"Content-Type": "application/octet-stream"}) for data in contents]


def asked(canned: CannedServer) -> list[tuple[str, str]]:
    """Return the method and the path of each past request."""
    return [(method, path) for (method, _), (path, _) in zip(canned.bodies, canned.requests, strict=True)]


DONE = answer(**status("done").to_map())


class TestOverHttp:
    def test_each_attempt_uploads_a_file_from_its_beginning(
        self, http: HttpClient, canned: CannedServer, tmp_path: Path
    ) -> None:
        data = b"headline\n" + b"storm\n" * 50_000
        name = "news & more é.csv"
        (tmp_path / name).write_bytes(data)
        canned.answers = [Canned(0), Canned(503), answer(id=ID, status="queued")]
        job = http.bulk(tmp_path / name, text_column="headline", normalize=False)
        assert job.id == ID
        assert canned.bodies == [("POST", data)] * 3
        (place, headers), *_ = canned.requests
        assert urlsplit(place).path == "/v1/bulk"
        assert parse_qs(urlsplit(place).query) == {
            "name": ["news & more é.csv"],
            "text_column": ["headline"],
            "format": ["safetensors"],
            "normalize": ["false"],
        }
        assert headers["Content-Length"] == str(len(data))
        assert "Transfer-Encoding" not in headers
        assert len({sent["Idempotency-Key"] for _, sent in canned.requests}) == 1

    def test_a_file_of_the_server_is_named(self, http: HttpClient, canned: CannedServer) -> None:
        canned.answers = [answer(id=ID, status="queued")]
        http.index("news").build(ServerFile("news.jsonl"), idempotency_key="once")
        assert wire.unpack(canned.bodies[0][1]) == {"source": "news.jsonl"}
        (path, headers), *_ = canned.requests
        assert (path, headers["Idempotency-Key"]) == ("/v1/indexes/news/builds", "once")

    def test_names_and_keys_that_cannot_be_sent_are_refused(self, http: HttpClient, tmp_path: Path) -> None:
        for key in ("schlüssel", " a", "a ", "a\nb", "", "x" * 256):
            for submit in (partial(http.bulk, ServerFile("news.csv")), partial(http.submit, "embed", "storm")):
                with pytest.raises(InvalidRequest, match="the idempotency key is"):
                    submit(idempotency_key=key)
        for name in ("", ".", "..", "a/b", "\ud800"):
            with pytest.raises(InvalidRequest, match=r"the index is .*: it takes 1 to 128 letters"):
                http.index(name).versions()
        with pytest.raises(InvalidRequest, match="there is no file"):
            http.bulk(tmp_path / "none.csv")
        with pytest.raises(InvalidRequest, match="not UTF-8: rename it"):
            http.bulk(tmp_path / "\udcff.csv")
        with pytest.raises(InvalidText, match="lone surrogate"):
            http.bulk("news.csv", text_column="\ud800")
        for job_id in ("..", "", "../info", "a b", "x" * 129):
            for handle in (http.job(job_id), http.long_job(job_id)):
                with pytest.raises(UnknownJob, match="no job"):
                    handle.status()

    def test_a_deletion_whose_first_answer_was_lost_succeeds(self, http: HttpClient, canned: CannedServer) -> None:
        gone = Canned(404, json.dumps({"error": {"code": "unknown_job", "message": "no job"}}).encode(), JSON)
        canned.answers = [answer(**status("done").to_map()), Canned(0), gone]
        http.long_job(ID).delete()
        assert [method for method, _ in asked(canned)] == ["GET", "DELETE", "DELETE"]
        with pytest.raises(UnknownJob):
            http.long_job(ID).delete()

    def test_a_state_is_read_and_the_state_of_another_kind_of_job_is_refused(
        self, http: HttpClient, canned: CannedServer
    ) -> None:
        running = status("running", progress=TaskProgress(rows=7, rows_per_s=3.5), worker="w1", started_at=2.0)
        canned.answers = [answer(**running.to_map())]
        assert http.long_job(ID).jobs.status(ID) == running
        wrong: list[tuple[dict[str, Any], type[Exception]]] = [
            ({"id": ID, "status": "done"}, UnknownJob),
            (status("asleep").to_map(), MalformedJob),
            ({"status": "done", "kind": "embed_file"}, MalformedJob),
        ]
        for values, error in wrong:
            canned.answers = [answer(**values)]
            with pytest.raises(error):
                http.long_job(ID).status()

    def test_the_versions_of_an_index_are_changed(self, http: HttpClient, canned: CannedServer) -> None:
        versions = [{"version": "2026-1", "is_current": True}]
        canned.answers = [answer(name="news", current="2026-1", versions=versions)]
        news = http.index("news")
        changed = [news.versions(), news.publish("2026-1"), news.rollback(), news.delete_version("2026-0")]
        assert changed == [versions] * 4
        assert asked(canned) == [
            ("GET", "/v1/indexes/news/versions"),
            ("POST", "/v1/indexes/news/publish"),
            ("POST", "/v1/indexes/news/rollback"),
            ("DELETE", "/v1/indexes/news/versions/2026-0"),
        ]
        assert wire.unpack(canned.bodies[1][1]) == {"version": "2026-1"}
        done = status("done", result={"name": "news", "versions": versions})  # the API did not wait for the end
        accepted = Canned(202, *answer(id=ID, status="running", note=None)[1:])
        canned.answers = [Canned(0), accepted, answer(**status("running").to_map()), answer(**done.to_map())]
        canned.requests.clear()
        assert news.rollback() == versions
        first, again = (headers["Idempotency-Key"] for path, headers in canned.requests if path.endswith("rollback"))
        assert first == again  # both requests have one key, so the index goes back once

    def test_without_a_runner_a_change_of_versions_is_cancelled(self, http: HttpClient, canned: CannedServer) -> None:
        waits = answer(id=ID, status="queued", note="no runner is alive")
        canned.answers = [Canned(202, *waits[1:]), answer(id=ID, status="cancelled")]
        with pytest.raises(NotReady, match="no runner is alive"):
            http.index("news").publish("2026-1")
        assert asked(canned)[1] == ("POST", f"/v1/jobs/{ID}/cancel")

    def test_a_result_is_downloaded_and_an_interrupted_download_is_continued(
        self, http: HttpClient, canned: CannedServer, tmp_path: Path
    ) -> None:
        parts = {"part-00000.npy": b"vectors" * 50_000, "part-00000.ids.jsonl": b'"1"\n'}
        broken = Canned(200, b"the first 30 bytes of something", {"Content-Length": "31000000"})
        first, second = files(*parts.values())
        canned.answers = [*files(result(parts)), first, broken, second, DONE]
        folder = http.long_job(ID).save(tmp_path / "vectors")
        wanted = parts | {"manifest.json": result(parts)}
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == wanted
        (folder / "part-00000.ids.jsonl").write_bytes(b"damaged")
        canned.requests.clear()
        bad = answer(**status("done", progress=TaskProgress(num_bad=1)).to_map())
        canned.answers = [*files(result(parts)), second, bad, *files(b"{}\n")]
        http.long_job(ID).save(folder)
        names = ["manifest.json", "part-00000.ids.jsonl", ID, "bad-rows.jsonl"]
        assert [path.rpartition("/")[2] for path, _ in canned.requests] == names
        wanted["bad-rows.jsonl"] = b"{}\n"
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == wanted

    def test_a_file_or_a_manifest_that_is_wrong_is_not_kept(
        self, http: HttpClient, canned: CannedServer, tmp_path: Path
    ) -> None:
        canned.answers = [*files(result({"part-00000.npy": b"first"}), b"other")]
        with pytest.raises(FileError, match=r"part-00000\.npy of job .* another checksum"):
            http.long_job(ID).save(tmp_path)
        for manifest in (b"{}", b"nothing", result({"../outside": b""}), result({".hidden": b""})):
            canned.answers = [*files(manifest)]
            with pytest.raises(MalformedJob, match="manifest"):
                http.long_job(ID).save(tmp_path)
        assert not [path for path in tmp_path.iterdir() if not path.name.startswith(".")]


def test_long_jobs_over_a_running_api(listen: Listen, make_app: MakeApp, client: Client, tmp_path: Path) -> None:
    (tmp_path / "news.csv").write_text("headline\nstorm\n")
    with HttpClient(listen(make_app(roots=str(tmp_path))), timeout_s=PATIENCE_S) as http:
        job = http.bulk(tmp_path / "news.csv", text_column="headline", dimensions=8, normalize=False)
        assert [job.status(), job.cancel(), job.retry(), job.cancel()] == ["queued", "cancelled", "queued", "cancelled"]
        assert client.long_jobs.status(job.id).arguments["options"] == {"dimensions": 8, "normalize": False}
        with pytest.raises(Cancelled):
            job.wait(PATIENCE_S)
        with pytest.raises(PathNotAllowed):
            http.bulk(ServerFile("../news.csv"))
        kinds = ["year=number", "topic=keyword"]
        build = http.index("news").build(tmp_path / "news.csv", publish=False, field_kinds=kinds)
        arguments = client.long_jobs.status(build.id).arguments
        assert [arguments[name] for name in ("name", "publish", "field_kinds")] == ["news", False, kinds]
        handle = http.job(build.id)
        assert [handle.cancel(), handle.cancel(), build.status()] == ["cancelled"] * 3  # the job is not deleted
        with pytest.raises(UnknownJob):
            http.long_job(ID).status()
