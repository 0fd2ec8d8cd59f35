"""Files as the bodies of requests, and the files of results, over HTTP."""

import fcntl
import io
import os
import resource
import shutil
import signal
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from api_process import ApiProcess, StartApi, is_closed
from api_stub import MakeApp, error_of
from conftest import wait_until
from flask.testing import FlaskClient
from long_job_callers import Rq, submit, submitted
from werkzeug.test import EnvironBuilder

from shoal.errors import JobNotEnded, NotReady, Overloaded, Unavailable, UnknownJob
from shoal.job_folders import file_size
from shoal.long_jobs.long_jobs import LongJobs
from shoal.long_jobs.status import LongJobStatus
from shoal.settings import Settings
from shoal_api.access.access_control import MAX_TRANSFERS
from shoal_api.long_jobs.upload_store import UploadStore
from shoal_api.request import JsonRequest
from shoal_api.server.async_flask import AsyncFlask

pytest_plugins = ["api_fixtures", "long_job_fixtures"]
pytestmark = pytest.mark.usefixtures("rq")

CONTENT = b"text\none\ntwo\n"

MB = 2**20

#: The path of an upload.
UPLOAD = "/v1/bulk?name=a.txt"

#: Ids of two jobs.
A, B = 24 * "a", 24 * "b"


class States(dict[str, LongJobStatus]):
    """The states of jobs by their ids. Any other job is unknown."""

    def __missing__(self, job_id: str) -> LongJobStatus:
        raise UnknownJob(job_id)


@pytest.fixture
def jobs(settings: Settings) -> Path:
    """Return the folder that contains the folders of jobs."""
    return UploadStore(settings, States().__getitem__).folder


def upload(api: FlaskClient, name: str = "news.csv", data: bytes = CONTENT, key: str = "", **options: Any) -> Any:
    """Upload a file to embed, with an idempotency key if one is given."""
    headers = {"Idempotency-Key": key} if key else {}
    return api.post("/v1/bulk", query_string={"name": name}, data=data, headers=headers, **options)


class TestUpload:
    def test_it_becomes_the_source_of_a_job(self, api: FlaskClient, settings: Settings) -> None:
        for name in ("my news (1).CSV", "données.jsonl.gz", "a" * 196 + ".txt"):
            arguments = api.get(submitted(upload(api, name))).get_json()["arguments"]
            assert Path(arguments["source"]).name == name
            assert Path(arguments["source"]).parent == Path(arguments["out"]).parent
            assert (settings.files_folder / arguments["source"]).read_bytes() == CONTENT

    def test_its_name_and_its_fields_in_the_query_are_checked(self, api: FlaskClient, jobs: Path) -> None:
        for name in ("", "..", "../a.csv", "a\\b.csv", ".job", "a\n", "é" * 101):
            code, message = error_of(upload(api, name), 422)
            assert code == "invalid_request"
            assert "takes the name of a file without folders" in message
        assert list(jobs.iterdir()) == []
        query = {"name": "a.csv", "format": "npy", "normalize": "false", "dimensions": "2", "text_column": "text"}
        place = submitted(api.post("/v1/bulk", query_string=query, data=CONTENT))
        arguments = api.get(place).get_json()["arguments"]
        assert arguments["options"] == {"normalize": False, "dimensions": 2}
        assert (arguments["format"], arguments["text_column"]) == ("npy", "text")
        for field in ("fromat=npy", "format=pickle", "source=b.csv"):
            assert error_of(api.post(f"/v1/bulk?name=a.csv&{field}", data=CONTENT), 422)[0] == "invalid_request"

    def test_an_upload_of_no_length_is_refused(self, api: FlaskClient, jobs: Path) -> None:
        for environ, words in (
            ({"CONTENT_LENGTH": ""}, "with a Content-Length"),
            ({"CONTENT_LENGTH": "0"}, "with a Content-Length"),
            ({"HTTP_TRANSFER_ENCODING": "chunked"}, "with a Content-Length"),
            ({"CONTENT_TYPE": "multipart/form-data; boundary=x"}, "the body is a form: send the file by itself"),
            ({"CONTENT_LENGTH": "99"}, "the body has 13 bytes, but Content-Length says 99"),
        ):
            assert words in error_of(upload(api, environ_overrides=environ), 422)[1]
        assert list(jobs.iterdir()) == []
        assert api.get("/v1/jobs").get_json() == {"jobs": []}

    def test_a_repetition_leaves_the_upload_and_puts_a_lost_job(self, api: FlaskClient, jobs: Path, rq: Rq) -> None:
        first = submitted(upload(api, key="a"))
        assert "was used for another long job" in error_of(upload(api, data=b"other", key="a"), 422)[1]
        assert error_of(upload(api, name="..", key="a"), 422)
        (place,) = jobs.glob("*/news.csv")
        assert place.read_bytes() == CONTENT
        rq.clear()
        assert submitted(upload(api, key="a")) == first
        assert api.get(first).get_json()["status"] == "queued"

    @pytest.mark.parametrize("is_put", [True, False])
    def test_an_upload_is_kept_if_redis_may_have_its_job_and_removed_if_not(
        self, make_app: MakeApp, jobs: Path, monkeypatch: pytest.MonkeyPatch, is_put: bool
    ) -> None:
        app = make_app()
        long_jobs = app.own.long_jobs

        def submit_without_answer(*args: Any, **options: Any) -> str:
            if is_put:
                LongJobs.submit(long_jobs, *args, **options)
            raise Unavailable("redis did not answer")

        with monkeypatch.context() as patch:
            patch.setattr(long_jobs, "submit", Mock(side_effect=Overloaded("redis is full")))
            assert error_of(upload(app.test_client(), key="a"), 429)[0] == "overloaded"
            assert list(jobs.iterdir()) == []
            patch.setattr(long_jobs, "submit", submit_without_answer)
            assert error_of(upload(app.test_client(), key="a"), 503)[0] == "unavailable"
        (place,) = jobs.glob("*/news.csv")
        before = place.stat().st_ino
        again = submitted(upload(app.test_client(), key="a"))
        assert place.read_bytes() == CONTENT
        assert (place.stat().st_ino == before) == is_put
        assert [f"/v1/jobs/{job.id}" for job in long_jobs.list()] == [again]


def test_a_deletion_leaves_nothing_of_its_job_whatever_happens_meanwhile(
    make_app: MakeApp, jobs: Path, rq: Rq, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(max_results_mb=2)
    api, long_jobs = app.test_client(), app.own.long_jobs

    def finished() -> tuple[str, Path]:
        """Return the place and the folder of a job that has ended. Its result takes over half of the space."""
        place = submitted(upload(api, key="a"))
        rq.set(place.rpartition("/")[2], status="finished")
        (folder,) = jobs.iterdir()
        (folder / "vectors").mkdir()
        (folder / "vectors" / "part-00000.npy").write_bytes(b"x" * (MB + 1))
        return place, folder

    def delete(job_id: str) -> None:
        LongJobs.delete(long_jobs, job_id)
        assert "one that deletes its job" in error_of(upload(api, key="a"), 429)[1]

    place, folder = finished()
    with monkeypatch.context() as patch:
        patch.setattr(long_jobs, "delete", Mock(side_effect=JobNotEnded("job is queued")))  # the job was retried
        assert error_of(api.delete(place), 409)[0] == "job_not_ended"
        assert sorted(path.name for path in folder.iterdir()) == ["news.csv", "vectors"]
        assert upload(api, key="a").headers["Location"] == place
        patch.setattr(long_jobs, "delete", delete)  # the upload is repeated
        assert api.delete(place).get_json()["status"] == "deleted"
        assert list(jobs.iterdir()) == []
    place, folder = finished()
    assert (folder / "news.csv").read_bytes() == CONTENT
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", Mock(side_effect=PermissionError(13, "Permission denied")))
        code, message = error_of(api.delete(place), 500)
    assert (code, "cannot be written" in message, str(folder) in message) == ("internal", True, False)
    assert f"{folder} cannot be written (Permission denied)" in caplog.text
    assert error_of(api.delete(place), 404)[0] == "unknown_job"
    os.utime(folder, (0, 0))
    submitted(upload(api))
    assert not folder.exists()


class TestSpace:
    def test_a_file_has_a_limit_and_so_have_all_files_of_a_client(self, make_app: MakeApp, jobs: Path) -> None:
        api = make_app(max_upload_mb=1, max_uploads_mb=4).test_client()
        other: dict[str, Any] = {"environ_overrides": {"REMOTE_ADDR": "127.0.0.2"}}
        code, message = error_of(upload(api, data=b"x" * (MB + 1)), 413)
        assert (code, "1,048,577 bytes, and an upload may have 1,048,576" in message) == ("too_large", True)
        assert list(jobs.iterdir()) == []
        for _ in range(2):
            submitted(upload(api, data=b"x" * MB))
        code, message = error_of(upload(api, data=b"x" * MB), 429)
        assert (code, "2,097,152 of them for this client" in message) == ("overloaded", True)
        submitted(upload(api, data=b"x" * MB, **other))
        assert error_of(upload(api, data=b"x" * 2, **other), 429)

    def test_results_have_a_limit_and_go_with_their_jobs(self, make_app: MakeApp, settings: Settings, rq: Rq) -> None:
        api = make_app(max_results_mb=2).test_client()
        place = f"/v1/jobs/{upload(api).get_json()['id']}"
        out = settings.files_folder / api.get(place).get_json()["arguments"]["out"]
        out.mkdir()
        (out / "part-00000.npy").write_bytes(b"x" * (MB + 1))
        code, message = error_of(upload(api), 507)
        assert code == "disk_full"
        assert "take 1,048,577 of 2,097,152 bytes (SHOAL_MAX_RESULTS_MB), 1,048,577 of them for this client" in message
        build = api.post("/v1/indexes/news/builds", query_string={"name": "a.csv"}, data=CONTENT)
        assert build.status_code == 202
        other: dict[str, Any] = {"environ_overrides": {"REMOTE_ADDR": "127.0.0.2"}}
        assert upload(api, **other).status_code == 202
        rq.set(place.rpartition("/")[2], status="finished")
        assert api.delete(place).get_json()["status"] == "deleted"
        assert not out.parent.exists()
        submitted(upload(api))

    def test_a_full_disk_or_a_folder_that_cannot_be_written_is_reported_and_nothing_is_left(
        self, api: FlaskClient, jobs: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MB, hard))  # like a quota on the disk
        try:
            code, message = error_of(upload(api, data=b"x" * 2 * MB), 507)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (code, "free some space" in message) == ("disk_full", True)
        assert list(jobs.iterdir()) == []
        jobs.rmdir()
        jobs.touch()
        code, message = error_of(upload(api), 500)
        assert (code, "the folder for uploads cannot be written" in message) == ("internal", True)
        assert str(jobs) not in message
        assert f"{jobs} cannot be written (" in caplog.text

    def test_its_bytes_do_not_count_as_bytes_in_memory(self, make_app: MakeApp) -> None:
        app = make_app(max_request_bytes=1_000, max_response_mb=1)
        app.own.access._bytes.acquire("127.0.0.1", 4 * (1_000 + 5 * 2**19))
        for path in ("/v1/bulk", "/v1/indexes/a/builds"):
            response = app.test_client().post(path, query_string={"name": "a.csv"}, data=b"x" * 900)
            assert response.status_code == 202
        assert app.own.access._transfers._held == {}
        app.own.access._transfers.acquire("127.0.0.1", MAX_TRANSFERS // 2)
        assert "uploads and downloads" in error_of(upload(app.test_client()), 429)[1]


class TestOldFolders:
    @pytest.fixture
    def states(self) -> States:
        """Return the jobs that are known."""
        return States()

    @pytest.fixture
    def files(self, settings: Settings, states: States) -> UploadStore:
        """Return the folders of the jobs that `states` has."""
        return UploadStore(settings, states.__getitem__)

    def make(self, files: UploadStore, job_id: str, age_s: float, name: str = "news.csv") -> Path:
        """Make the folder of a job with an upload and a result."""
        with files.new("ann", job_id) as folder:
            folder.is_kept = True
        path = files.folder / Path(folder.place("a.csv")).parts[2]
        (path / "vectors").mkdir(exist_ok=True)
        (path / "vectors" / "manifest.json").touch()
        (path / name).write_bytes(CONTENT)
        os.utime(path, (0, time.time() - age_s))
        return path

    def test_files_that_no_job_needs_are_removed(self, files: UploadStore, states: States) -> None:
        both = ["news.csv", "vectors"]
        for status, age_s, ended_s, name, left in (
            ("unknown", 1e5, None, "news.csv", both),
            ("unknown", 1e6, None, "news.csv", []),
            ("unknown", 0.0, None, ".upload", []),
            ("unknown", 0.0, None, "news.csv", both),
            ("running", 1e7, None, "news.csv", both),
            ("failed", 1e7, 100.0, "news.csv", both),
            ("failed", 1e7, 1e5, "news.csv", ["vectors"]),
            ("done", 0.0, 5.0, "news.csv", ["vectors"]),
        ):
            if status != "unknown":
                states[A] = LongJobStatus(A, "embed_file", status, {}, 0.0, ended_at=ended_s and time.time() - ended_s)
            path = self.make(files, A, age_s, name)
            with files.new("bob", B):
                assert sorted(entry.name for entry in path.glob("*")) == left, (status, age_s, ended_s, name)

    def test_old_folders_make_room_for_an_upload(self, files: UploadStore, states: States, settings: Settings) -> None:
        upload = self.make(files, A, 100.0) / "news.csv"
        with open(upload, "wb") as file:
            file.truncate(settings.max_uploads_mb * 2**20)
        states[A] = LongJobStatus(A, "embed_file", "running", {}, 0.0)
        with pytest.raises(Overloaded):
            files.check_space(num_bytes=1)
        assert upload.exists()
        states[A] = LongJobStatus(A, "embed_file", "done", {}, 0.0, ended_at=time.time())
        files.check_space(num_bytes=1)
        assert not upload.exists()

    def test_an_upload_counts_from_its_beginning(self, files: UploadStore, settings: Settings) -> None:
        files.max_upload_bytes = half = settings.max_uploads_mb * 2**19
        environ = EnvironBuilder(method="POST", input_stream=io.BytesIO(b"x")).get_environ()
        environ["CONTENT_LENGTH"] = str(half)

        def is_stopping() -> bool:
            with pytest.raises(Overloaded):
                files.check_space(num_bytes=half + 1)
            return True

        with pytest.raises(NotReady), files.new("ann", A) as folder:
            folder.receive(JsonRequest(environ), "a.csv", is_stopping)
        files.check_space(num_bytes=half + 1)

    def test_folders_in_use_or_of_another_pool_stay(self, files: UploadStore, settings: Settings) -> None:
        path = self.make(files, A, 1e7)
        with UploadStore(replace(settings, pool="other"), States().__getitem__).new("bob", B):
            assert path.exists()
        with files.new("ann", A) as folder:
            path = files.folder / Path(folder.place("a.csv")).parts[2]
            os.utime(path, (0, 0))
            with files.new("bob", B):
                assert path.exists()
        assert not path.exists()
        with pytest.raises(UnknownJob), files.removal("ann", A):
            raise UnknownJob(A)

    def test_a_folder_that_is_removed_before_it_is_locked_is_made_anew(
        self, files: UploadStore, states: States, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        states[A] = LongJobStatus(A, "embed_file", "running", {}, 0.0)  # so that no cleaning locks the folder
        flock, first = fcntl.flock, ExitStack()
        first.enter_context(files.new("ann", A))

        def lock(descriptor: int, operation: int) -> None:
            first.close()
            flock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", lock)
        with files.new("ann", A) as folder:
            folder.is_kept = True
        assert len(list(files.folder.iterdir())) == 1

    def test_a_file_that_is_renamed_meanwhile_hides_no_other(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / name).write_bytes(b"x" * 10)
        with os.scandir(tmp_path) as found:
            files = [entry for entry in found if entry.is_file()]
        (tmp_path / "a").rename(tmp_path / "c")
        assert sum(map(file_size, files)) == 10


def test_it_is_fetched_once_the_job_is_done(api: FlaskClient, settings: Settings, rq: Rq) -> None:
    place = submit(api)
    assert "(embed_file) is queued" in error_of(api.get(f"{place}/files/manifest.json"), 404)[1]
    rq.set(place.rpartition("/")[2], status="finished")
    out = settings.files_folder / api.get(place).get_json()["arguments"]["out"]
    assert error_of(api.get(f"{place}/files/manifest.json"), 404)[0] == "unknown_file"
    out.mkdir()
    (out / "part-00000.npy").write_bytes(b"x" * 2_000_000)
    response = api.get(f"{place}/files/part-00000.npy")
    assert (response.status_code, response.content_type) == (200, "application/octet-stream")
    lasting = cast(AsyncFlask, api.application).own.access._transfers
    assert lasting.held("127.0.0.1") == 1
    assert (response.content_length, response.get_data()) == (2_000_000, b"x" * 2_000_000)
    response.close()
    assert lasting.held("127.0.0.1") == 0
    assert api.head(f"{place}/files/part-00000.npy").content_length == 2_000_000
    (out / "bad-rows.jsonl").write_text(f'{{"row": 1, "reason": "{settings.files_folder}/a.csv, line 1: é"}}\n')
    with api.get(f"{place}/files/bad-rows.jsonl") as told:
        assert lasting.held("127.0.0.1") == 0  # a small file does not count as a download
        assert told.get_json(force=True)["reason"] == "a.csv, line 1: é"
    (out / "link").symlink_to("bad-rows.jsonl")
    (out / "folder").mkdir()
    os.mkfifo(out / "pipe")
    others = ("..%2f..%2fnews.csv", "%2e%2e", "..%2f.job", "%00", "manifest.json%00", "%2fetc%2fpasswd")
    for name in ("link", "folder", "pipe", "none", *others):
        assert error_of(api.get(f"{place}/files/{name}"), 404)[0] in ("unknown_file", "not_found")
    api.delete(place)


@pytest.fixture
def server(start_api: StartApi, settings: Settings) -> ApiProcess:
    """Return a server with a short time for each piece of an upload."""
    return start_api(home=settings.home, receive_timeout_s=3.0)


class TestServer:
    def test_files_that_are_fetched_one_after_the_other_are_one_download(
        self, server: ApiProcess, api: FlaskClient, settings: Settings, rq: Rq
    ) -> None:
        place, size = submit(api), 2_000_000
        rq.set(place.rpartition("/")[2], status="finished")
        (out := settings.files_folder / api.get(place).get_json()["arguments"]["out"]).mkdir()
        (out / "part-00000.npy").write_bytes(b"x" * size)
        with closing(server.connect()) as connection:
            for _ in range(MAX_TRANSFERS):
                connection.request("GET", f"{place}/files/part-00000.npy")
                response = connection.getresponse()
                assert (response.status, len(response.read())) == (200, size)

    def test_a_large_file_takes_no_memory_and_longer_than_a_request_may(self, server: ApiProcess, jobs: Path) -> None:
        piece, num_pieces = b"some words\n" * 95_326, 64
        before = server.server.memory_info().rss
        with closing(server.begin(len(piece) * num_pieces, UPLOAD)) as connection:
            for _ in range(num_pieces):
                connection.sendall(piece)
            assert connection.recv(65_536).startswith(b"HTTP/1.1 202 ")
        assert server.server.memory_info().rss - before < 24 * MB
        (path,) = jobs.glob("*/a.txt")
        assert path.stat().st_size == len(piece) * num_pieces

    def test_an_upload_that_stalls_or_breaks_off_leaves_nothing(self, server: ApiProcess, jobs: Path) -> None:
        piece = b"x" * 65_536
        with (
            closing(server.begin(len(piece) * 200, UPLOAD)) as slow,
            closing(server.begin(len(piece) * 200, UPLOAD)) as stalled,
        ):
            stalled.sendall(piece)
            num_sent = 0
            stalled.settimeout(0.1)
            while num_sent < 199 and not is_closed(stalled):
                slow.sendall(piece)
                num_sent += 1
            assert 5 < num_sent < 199
            slow.sendall(piece * (200 - num_sent))
            assert slow.recv(65_536).startswith(b"HTTP/1.1 202 ")
        wait_until(lambda: len(list(jobs.iterdir())) == 1)
        with closing(server.begin(1_000_000, UPLOAD)) as gone:
            gone.sendall(piece)
            wait_until(lambda: any(jobs.glob("*/.upload")))
        wait_until(lambda: len(list(jobs.iterdir())) == 1)

    def test_a_client_that_waits_to_send_a_refused_body_is_not_asked_for_it(self, server: ApiProcess) -> None:
        for path, num_bytes, answer in (
            (UPLOAD, 10, b"HTTP/1.1 100 "),
            ("/v1/bulk?name=.news.csv", 10**6, b"HTTP/1.1 422 "),
            ("/embed", 10**9, b"HTTP/1.1 413 "),
            ("/nowhere", 10, b"HTTP/1.1 404 "),
        ):
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {num_bytes}\r\n"
            with closing(server.send(head.encode() + b"Expect: 100-continue\r\n\r\n")) as connection:
                assert connection.recv(65_536).startswith(answer)

    def test_a_stop_waits_for_no_upload(self, server: ApiProcess, jobs: Path) -> None:
        with closing(server.begin(1_000_000, UPLOAD)) as connection:
            connection.sendall(b"x" * 200_000)
            wait_until(lambda: any(jobs.glob("*/.upload")))
            server.process.send(signal.SIGTERM)
            wait_until(lambda: not server.listens())
            with suppress(ConnectionError):
                for _ in range(10_000):
                    connection.sendall(b"x" * 65_536)
                pytest.fail("the server reads on")
        wait_until(lambda: not list(jobs.iterdir()))
