"""Long jobs over HTTP: submitted, seen by their clients, cancelled, retried; builds and versions of indexes."""

import re
from dataclasses import fields as fields_of
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from api_stub import MakeApp, error_of
from conftest import RedisServer
from flask.testing import FlaskClient
from long_job_callers import Guarded, Rq, submit, submitted
from page import read, table
from werkzeug.test import TestResponse

from shoal.bulk.embed_file import BulkRequest
from shoal.long_jobs.serializer import MsgpackSerializer
from shoal.long_jobs.status import LongJobStatus
from shoal.long_jobs.submission import KINDS
from shoal.settings import Settings, variable
from shoal_api.long_jobs.long_job import wait
from shoal_api.routes import indexes
from shoal_api.schema.indexes import BuildBody
from shoal_workers.index.long_jobs import BuildIndex, ManageIndex

pytest_plugins = ["api_fixtures", "long_job_fixtures"]
pytestmark = pytest.mark.usefixtures("rq")


#: The methods and paths below the place of a job.
OF_A_JOB = (
    *(("GET", path) for path in ("", "/result", "/files/manifest.json")),
    *(("POST", path) for path in ("/cancel", "/retry")),
    ("DELETE", ""),
)


@pytest.mark.usefixtures("files")
class TestBulk:
    def test_it_is_submitted_and_says_that_no_runner_is_alive(self, api: FlaskClient) -> None:
        place = submit(api, text_column="text", format="npy", dimensions=2, normalize=False)
        job = api.get(place).get_json()
        assert (job["kind"], job["status"]) == ("embed_file", "queued")
        assert job["note"] == "no runner is alive: start one with `shoal jobs`"
        out = job["arguments"].pop("out")
        assert (out[:5], out[-8:]) == ("jobs/", "/vectors")
        asked = {"source": "news.csv", "text_column": "text", "id_column": None, "format": "npy"}
        assert job["arguments"] == asked | {"options": {"dimensions": 2, "normalize": False}}

    def test_an_impossible_job_is_refused(self, api: FlaskClient, files: Path) -> None:
        (files / "link").symlink_to("/etc")
        refused: list[tuple[dict[str, Any], int, str, str]] = [
            ({"source": "../news.csv"}, 403, "path_not_allowed", "below none of the folders"),
            ({"source": "link/passwd"}, 403, "path_not_allowed", "below none of the folders"),
            ({"source": "s3://bucket/news.csv"}, 422, "invalid_request", "is a URL: name a file or folder"),
            ({"source": ""}, 422, "invalid_request", "it takes a string that is not empty"),
            ({}, 422, "invalid_request", "source is missing: name a file, or send one as the body"),
            ({"source": "a", "format": "pickle"}, 422, "invalid_request", "it takes 'safetensors', 'npy'"),
            ({"source": "a", "output": "tokens"}, 422, "invalid_request", 'unknown field "output"'),
            ({"source": "a", "chunk_overlap": 3}, 422, "invalid_request", "chunk_overlap"),
        ]
        for fields, status, code, words in refused:
            found, message = error_of(api.post("/v1/bulk", json=fields), status)
            assert (found, words in message) == (code, True), message
        message = error_of(api.post("/v1/bulk?format=npy", json={"source": "news.csv"}), 422)[1]
        assert message.startswith("format is in the query: put it into the body")
        assert api.get("/v1/jobs").get_json() == {"jobs": []}

    def test_a_client_may_have_a_limited_number_of_unfinished_jobs(self, make_app: MakeApp) -> None:
        api = make_app(max_long_jobs_per_client=2).test_client()
        first, _ = submit(api), submit(api)
        for refused in (
            api.post("/v1/bulk", json={"source": "news.csv"}),
            api.post("/v1/bulk?name=a.csv", data=b"text\na\n"),
            api.post("/v1/indexes/news/builds", json={"source": "news.csv"}),
        ):
            assert "this client has 2 long jobs" in error_of(refused, 429)[1]
        api.post(f"{first}/cancel")
        again = submit(api)
        assert error_of(api.post(f"{first}/retry"), 429)[0] == "overloaded"
        assert api.post(f"{again}/cancel").status_code == 200
        other = api.post("/v1/bulk", json={"source": "news.csv"}, environ_overrides={"REMOTE_ADDR": "127.0.0.2"})
        submitted(other)


@pytest.mark.usefixtures("files")
class TestState:
    def test_it_is_cancelled_retried_deleted_and_waited_for(self, api: FlaskClient, rq: Rq) -> None:
        place = submit(api)
        job_id = place.rpartition("/")[2]
        assert api.post(f"{place}/cancel").get_json() == {"id": job_id, "status": "cancelled", "note": None}
        assert api.post(f"{place}/cancel").get_json()["status"] == "cancelled"
        assert api.post(f"{place}/retry").get_json()["status"] == "queued"
        assert "is queued: it cannot be retried" in error_of(api.post(f"{place}/retry"), 422)[1]
        assert error_of(api.delete(place), 409)[0] == "job_not_ended"
        api.post(f"{place}/cancel")
        assert api.delete(place).get_json() == {"id": job_id, "status": "deleted"}
        assert error_of(api.delete(place), 404)[0] == "unknown_job"
        assert api.get("/v1/jobs").get_json() == {"jobs": []}
        place = submit(api)
        job_id = place.rpartition("/")[2]
        response = api.get(f"{place}/result?wait=0.05")
        assert (response.status_code, response.get_json()["status"]) == (202, "queued")
        rq.set(job_id, status="finished")
        response = api.get(f"{place}/result")
        assert (response.status_code, response.get_json()["status"]) == (200, "done")
        rq.set(job_id, status="failed")
        assert error_of(api.get(f"{place}/result"), 500)[0] == "internal"
        rq.set(job_id, meta=MsgpackSerializer.dumps({"error": {"text": "no code"}}))
        assert "failed without a reason" in error_of(api.get(f"{place}/result"), 500)[1]
        rq.set(job_id, status="canceled")
        assert error_of(api.get(f"{place}/result"), 409) == ("cancelled", f"job {job_id} was cancelled")

    def test_a_client_with_many_requests_looks_rarely(self, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
        app, looks = make_app(), count()
        place, status = submit(app.test_client()), app.own.long_jobs.status
        monkeypatch.setattr(app.own.long_jobs, "status", lambda job_id: (next(looks), status(job_id))[1])
        app.own.access._requests.acquire("127.0.0.1", 1_000)
        assert app.test_client().get(f"{place}/result?wait=0.5").status_code == 202
        assert next(looks) <= 3  # looks at the beginning and at the end, and one more if a clock is early

    def test_it_shows_nothing_of_the_machine_and_lists_begin_with_the_newest(
        self, api: FlaskClient, rq: Rq, files: Path
    ) -> None:
        place = submit(api)
        job_id = place.rpartition("/")[2]
        error = {"code": "file_error", "message": f"another process writes into {files}/jobs/a/vectors: wait"}
        meta = {"error": error, "progress": {"first_bad": [f"{files}/news.csv, line 1: empty"]}}
        rq.set(job_id, status="failed", worker_name="host.example-1", meta=MsgpackSerializer.dumps(meta))
        job = api.get(place).get_json()
        assert job["error"]["message"] == "another process writes into jobs/a/vectors: wait"
        assert job["progress"]["first_bad"] == ["news.csv, line 1: empty"]
        assert "host.example" not in job["worker"]
        assert str(files) not in api.get(f"{place}/result").get_data(as_text=True)
        places = [place, *(submit(api) for _ in range(2))]
        jobs = api.get("/v1/jobs").get_json()["jobs"]
        assert [f"/v1/jobs/{job['id']}" for job in jobs] == places[::-1]
        assert [job["note"] for job in jobs] == [*["no runner is alive: start one with `shoal jobs`"] * 2, None]
        assert len(api.get("/v1/jobs?limit=2").get_json()["jobs"]) == 2
        assert error_of(api.get("/v1/jobs?limit=1001"), 422)
        for job_id in ("none", "0" * 24, "..%2f..", "%00"):
            for method, path in OF_A_JOB:
                code = error_of(api.open(f"/v1/jobs/{job_id}{path}", method=method), 404)[0]
                assert code in ("unknown_job", "not_found"), job_id

    def test_without_redis_long_jobs_are_unavailable(self, make_app: MakeApp, own_redis: RedisServer) -> None:
        own_redis.stop()
        api = make_app(redis_url=own_redis.url).test_client()
        for response in (
            api.get("/v1/jobs"),
            api.post("/v1/bulk", json={"source": "news.csv"}),
            api.post("/v1/bulk?name=a.csv", data=b"text\na\n"),
            api.get("/v1/indexes/news/versions"),
        ):
            assert error_of(response, 503)[0] == "unavailable"


@pytest.mark.usefixtures("files")
class TestKeys:
    def test_a_job_is_seen_by_its_own_key_and_by_admins(self, guarded: Guarded) -> None:
        place = submitted(guarded.ask("ann", "POST", "/v1/bulk", json={"source": "news.csv"}))
        for method, path in OF_A_JOB:
            assert error_of(guarded.ask("bob", method, place + path), 404)[0] == "unknown_job"
        listed = {name: guarded.ask(name, "GET", "/v1/jobs").get_json()["jobs"] for name in ("ann", "bob", "ops")}
        assert {name: len(jobs) for name, jobs in listed.items()} == {"ann": 1, "bob": 0, "ops": 1}
        assert guarded.ask("ann", "GET", place).get_json()["status"] == "queued"
        assert error_of(guarded.ask("ann", "DELETE", place), 409)[0] == "job_not_ended"
        assert guarded.ask("ops", "POST", f"{place}/cancel").get_json()["status"] == "cancelled"
        assert guarded.ask("ann", "DELETE", place).get_json()["status"] == "deleted"
        place = submitted(guarded.ask("ann", "POST", "/v1/bulk?name=a.csv", data=b"text\na\n"))
        source = guarded.ask("ann", "GET", place).get_json()["arguments"]["source"]
        for name in (source, f"./{source}"):
            refused = guarded.ask("bob", "POST", "/v1/bulk", json={"source": name})
            assert error_of(refused, 403)[0] == "path_not_allowed"
        assert guarded.ask("ops", "POST", "/v1/bulk", json={"source": source}).status_code == 202

    def test_an_idempotency_key_is_its_clients(self, guarded: Guarded) -> None:
        def put(name: str, key: str, path: str = "", **options: Any) -> TestResponse:
            once = {"HTTP_IDEMPOTENCY_KEY": key}
            return guarded.ask(name, "POST", f"/v1/bulk{path}", environ_overrides=once, **options)

        upload, source = {"path": "?name=a.csv", "data": b"text\na\n"}, {"source": "news.csv"}
        cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"json": source}, {"json": source | {"format": "npy"}}),
            (upload, upload | {"data": b"text\n"}),
        ]
        for key, (first, other) in zip("kl", cases, strict=True):
            places = [submitted(put(name, key, **first)) for name in ("ann", "ann", "bob")]
            assert (places[0] == places[1], len(set(places))) == (True, 2)
            assert "was used for another long job" in error_of(put("ann", key, **other), 422)[1]
            assert error_of(put("ann", "", **first), 422)[0] == "invalid_request"


@pytest.mark.usefixtures("files")
class TestIndexes:
    def test_builds_and_versions_are_jobs(self, api: FlaskClient, files: Path) -> None:
        defaults = {name: field.default for name, field in BuildBody.model_fields.items()}
        place = submitted(api.post("/v1/indexes/news/builds", json={"source": "news.csv", "publish": False}))
        job = api.get(place).get_json()
        expected = defaults | {"name": "news", "source": "news.csv", "publish": False}
        assert (job["kind"], job["arguments"]) == ("build_index", expected)
        query = "name=a.csv&publish=false&field_kinds=a=date&field_kinds=b=keyword"
        place = submitted(api.post(f"/v1/indexes/news/builds?{query}", data=b"text\na\n"))
        arguments = api.get(place).get_json()["arguments"]
        assert (files / arguments["source"]).read_bytes() == b"text\na\n"
        assert (arguments["publish"], arguments["field_kinds"]) == (False, ["a=date", "b=keyword"])
        for name in ("..", ".hidden", "a%00", "x" * 200):
            for response in (
                api.get(f"/v1/indexes/{name}/versions"),
                api.post(f"/v1/indexes/{name}/builds", json={"source": "news.csv"}),
            ):
                assert "the index is" in error_of(response, 422)[1]

    def test_versions_are_managed_by_the_runner_as_soon_as_there_is_one(
        self, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waits_s = list[float]()

        async def noted(job_id: str, timeout_s: float) -> LongJobStatus:
            waits_s.append(timeout_s)
            return await wait(job_id, timeout_s)

        monkeypatch.setattr(indexes, "wait", noted)
        api = make_app(request_timeout_s=0.1).test_client()
        for response, action, version in (
            (api.get("/v1/indexes/news/versions"), "list", None),
            (api.post("/v1/indexes/news/publish", json={"version": "v1"}), "publish", "v1"),
            (api.post("/v1/indexes/news/rollback"), "rollback", None),
            (api.delete("/v1/indexes/news/versions/v1"), "delete", "v1"),
        ):
            job = api.get(submitted(response)).get_json()
            assert job["kind"] == "manage_index"
            assert job["arguments"] == {"name": "news", "action": action, "version": version}
        first, again, other = (
            api.post("/v1/indexes/news/rollback", headers={"Idempotency-Key": key}).get_json()["id"] for key in "aab"
        )
        assert first == again != other
        publish = partial(api.post, "/v1/indexes/news/publish", headers={"Idempotency-Key": "a"})
        assert [publish(json={"version": version}).status_code for version in ("v1", "v2")] == [202, 202]
        assert set(waits_s) == {0.0}  # no runner is alive, so the answers come without a further wait


PAGE = "docs/long-jobs.md"


def test_the_page_lists_every_argument() -> None:
    rows = {kind.strip("`"): set(re.findall(r"`(\w+)`", cells[0])) for kind, cells in table(PAGE, "kind").items()}
    assert rows.keys() == KINDS.keys()
    for kind, request in (("embed_file", BulkRequest), ("build_index", BuildIndex), ("manage_index", ManageIndex)):
        assert {item.name for item in fields_of(request)} <= rows[kind], kind
    named = set(re.findall(r"`(SHOAL_\w+)`", read(PAGE)))
    assert len(named) > 5
    assert named <= {variable(item.name) for item in fields_of(Settings)} | {"SHOAL_HOME"}
