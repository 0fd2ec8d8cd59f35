"""Jobs over HTTP: submitted first, and fetched later."""

from typing import Any

import numpy as np
import pytest
from api_stub import MakeApp, StubWorker, error_of, raw_score_of, vector_of
from conftest import wait_until
from flask.testing import FlaskClient
from queues import Queue

from shoal.contract.jobs import LANES
from shoal.contract.options import Options
from shoal.contract.replies import Reply
from shoal.operations import Embed, Search
from shoal.queue.consumer import Answer
from shoal_api.schema.requests import JobBody

pytest_plugins = ["api_fixtures"]


def submit(api: FlaskClient, **body: Any) -> str:
    """Submit a job, and return the path of its status."""
    response = api.post("/v1/jobs", json=body)
    job = response.get_json()
    assert response.status_code == 202
    assert job == {"id": job["id"], "status": "queued"}
    assert response.headers["Location"] == f"/v1/jobs/{job['id']}"
    return response.headers["Location"]


@pytest.mark.usefixtures("stub")
def test_a_result_has_embeddings_results_scores_or_the_error(api: FlaskClient) -> None:
    place = submit(api, op="embed", inputs=["a", "b c d e f g h"])
    response = api.get(f"{place}/result?wait=20")
    result = response.get_json()
    assert response.status_code == 200
    assert api.get(f"{place}/result?wait=20").get_data() == response.get_data()
    assert np.array_equal(np.array(result["embeddings"], np.float32), [vector_of("a"), vector_of("b c d e f g h")])
    assert (result["tokens"], result["truncated"]) == ([3, 8], [False, True])
    assert result["characters"] == [1, 11]
    assert (result["status"], result["model"], place) == ("done", "stub", f"/v1/jobs/{result['id']}")
    assert set(result["timings"]) == {"queue_s", "tokenize_s", "encode_s", "search_s"}
    place = submit(api, op="search", queries="sea", k=2, index="default", lane="bulk")
    result = api.get(f"{place}/result?wait=20").get_json()
    assert [hit["text"] for hit in result["results"][0]] == ["document 0", "document 1"]
    assert "embeddings" not in result
    place = submit(api, op="rerank", inputs=["a", "b"], query="c", raw_scores=True)
    found = api.get(f"{place}/result?wait=20").get_json()
    assert found["scores"] == [pytest.approx(float(raw_score_of("c", text)), rel=1e-6) for text in "ab"]
    assert found["model"] == "stub-reranker"
    assert "results" not in found
    place = submit(api, op="embed", inputs=["a", "fail"])
    assert error_of(api.get(f"{place}/result?wait=20"), 500) == ("internal", "the stub was told to fail")
    assert api.get(place).get_json()["status"] == "failed"
    place = submit(api, op="embed", inputs="a", timeout_s=0)
    assert error_of(api.get(f"{place}/result?wait=20"), 504)[0] == "expired"


def test_token_vectors_are_a_list_for_each_text_even_with_one_token(make_app: MakeApp, queue: Queue) -> None:
    job = Embed(["a", "b"], Options(output="tokens"))
    queue.put("interactive", [job])
    reply = Reply(job.id, vectors=np.ones((2, 4), np.float32), output="tokens", tokens=[1, 1])
    queue.reply([Answer(delivery, reply) for delivery in queue.take("w", LANES, 1)])
    result = make_app().test_client().get(f"/v1/jobs/{job.id}/result").get_json()
    assert np.shape(result["embeddings"]) == (2, 1, 4)


def test_fields_and_headers_reach_the_job(api: FlaskClient, queue: Queue) -> None:
    asked = {"op": "search", "queries": "a", "negative": ["b", "c"]}
    api.post("/v1/jobs", json=asked, headers={"X-Model-Fingerprint": "other"})
    (job,) = (delivery.job() for delivery in queue.take("w", LANES, 1))
    assert isinstance(job, Search)
    assert (job.fingerprint, job.texts, job.search.num_negative) == ("other", ["a", "b", "c"], 2)


def test_a_job_goes_from_queued_to_done_or_is_cancelled(api: FlaskClient, stub: StubWorker) -> None:
    stub.pause()
    place, other = (submit(api, op="embed", inputs="a") for _ in range(2))
    job_id = place.rpartition("/")[2]
    assert api.get(place).get_json() == {"id": job_id, "status": "queued", "timings": {}}
    for query in ("", "?wait=0.05"):
        response = api.get(f"{place}/result{query}")
        assert (response.status_code, response.get_json()) == (202, {"id": job_id, "status": "queued"})
    assert api.delete(other).get_json() == {"id": other.rpartition("/")[2], "status": "cancelled"}
    assert api.get(other).get_json()["status"] == "cancelled"
    assert error_of(api.get(f"{other}/result"), 409)[0] == "cancelled"
    stub.resume()
    wait_until(lambda: api.get(place).get_json()["status"] == "done")
    assert api.get(place).get_json()["timings"]["encode_s"] == 0.003
    for path in ("/v1/jobs/none", "/v1/jobs/none/result", "/v1/jobs/none/result?wait=5"):
        assert error_of(api.get(path), 404)[0] == "unknown_job"


#: Jobs that are refused, and words that say why. The code is `invalid_request` except for the last three.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "op is missing"),
    ({"op": "train", "inputs": "a"}, "it takes 'embed', 'search' or 'rerank'"),
    ({"op": "embed"}, "inputs is missing: op embed takes"),
    ({"op": "search"}, "queries is missing: a search takes"),
    ({"op": "embed", "inputs": "a", "lane": "fast"}, "it takes 'interactive' or 'bulk'"),
    ({"op": "search", "queries": "a", "output": "tokens"}, "output does not go with op search"),
    ({"op": "search", "queries": "a", "inputs": "a"}, "inputs does not go with op search"),
    ({"op": "embed", "inputs": ["a"], "queries": ["x"], "k": 6}, "k does not go with op embed"),
    ({"op": "embed", "inputs": "a", "query": "x"}, "query does not go with op embed: leave"),
    ({"op": "rerank", "inputs": "a", "query": "a", "pooling": "max"}, "pooling does not go"),
    ({"op": "embed", "input": "a"}, 'unknown field "input": did you mean inputs?'),
    ({"op": "embed", "inputs": ["a"] * 1_025}, "and may have 1,024 (SHOAL_MAX_JOB_TEXTS)"),
    ({"op": "embed", "inputs": "x" * 2_000_000, "first_text": 7}, "text 7 has 2,000,000 characters"),
    ({"op": "search", "queries": ["a"] * 101, "k": 100}, "asks for 10,100 hits and may ask for 10,000"),
]


def test_a_bad_job_and_a_bad_wait_are_refused_in_words(api: FlaskClient) -> None:
    for body, words in REFUSED:
        status, code = (413, "too_large") if (body, words) in REFUSED[-3:] else (422, "invalid_request")
        found, message = error_of(api.post("/v1/jobs", json=body), status)
        assert (found, words in message) == (code, True), message
    for wait, words in (("x", "a number"), ("-1", "at least 0"), ("61", "at most 60")):
        code, message = error_of(api.get(f"/v1/jobs/none/result?wait={wait}"), 422)
        assert (code, f'wait is "{wait}": it takes {words}' in message) == ("invalid_request", True)


def test_fields_at_their_defaults_go_with_every_op(api: FlaskClient) -> None:
    defaults = {name: field.default for name, field in JobBody.model_fields.items() if not field.is_required()}
    for job in ({"inputs": "a"}, {"op": "search", "queries": "a"}, {"op": "rerank", "inputs": "a", "query": "b"}):
        submit(api, **defaults | {"op": "embed"} | job)


def test_a_full_lane_refuses_a_job_and_an_empty_lane_one_that_is_too_large(make_app: MakeApp) -> None:
    api = make_app(max_backlog=1, max_backlog_texts=3).test_client()
    submit(api, op="embed", inputs="a")
    assert error_of(api.post("/v1/jobs", json={"op": "embed", "inputs": "a"}), 429)[0] == "overloaded"
    submit(api, op="embed", inputs="a", lane="bulk")
    response = api.post("/v1/jobs", json={"op": "embed", "inputs": ["a"] * 4})
    message = "4 texts at a time exceed the limit of the interactive lane, 3 (SHOAL_MAX_BACKLOG_TEXTS): split the list"
    assert error_of(response, 413) == ("too_large", message)
    assert "Retry-After" not in response.headers
