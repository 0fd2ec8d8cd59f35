"""Sparse vectors, multivectors and several outputs at once, over HTTP: as JSON, as msgpack, and as a job's result."""

from typing import Any

import msgpack
import numpy as np
import pytest
from api_stub import StubWorker, error_of, multivector_of, sparse_of, vector_of
from flask.testing import FlaskClient

pytest_plugins = ["api_fixtures"]

TEXTS = ["a storm", "rain in the sea", ""]
SPARSE = [
    [{"index": 1, "value": 0.1}, {"index": 5, "value": 0.5}],
    [{"index": 2, "value": 0.2}, {"index": 3, "value": 0.3}, {"index": 4, "value": 0.4}],
    [],
]
MULTIVECTOR = [multivector_of(text).astype(float).round(5).tolist() for text in TEXTS]
EVERY = ["multivector", "vector", "sparse"]
MSGPACK = {"Accept": "application/msgpack"}


pytestmark = pytest.mark.usefixtures("stub")


def rounded(vectors: list[Any]) -> list[Any]:
    return [rounded(item) if isinstance(item, list) else round(item, 5) for item in vectors]


def check_packed(found: dict[str, Any]) -> None:
    """Check the sparse vectors and multivectors of an answer in msgpack."""
    sparse, multivector = found["sparse"], found["multivector"]
    assert (sparse["lengths"], multivector["lengths"]) == ([2, 3, 0], [2, 4, 0])
    expected = [np.concatenate(arrays) for arrays in zip(*map(sparse_of, TEXTS), strict=True)]
    assert np.array_equal(np.frombuffer(sparse["indices"], "<i4"), expected[0])
    assert np.array_equal(np.frombuffer(sparse["values"], "<f4"), expected[1])
    rows = np.frombuffer(multivector["data"], "<f4").reshape(multivector["shape"])
    assert np.array_equal(rows, np.concatenate(list(map(multivector_of, TEXTS))))


def test_one_output_is_a_list_and_a_list_of_outputs_is_an_object(api: FlaskClient) -> None:
    assert api.post("/embed", json={"inputs": TEXTS, "output": "sparse"}).get_json() == SPARSE
    found = api.post("/embed", json={"inputs": TEXTS, "output": "multivector"}).get_json()
    assert rounded(found) == rounded(MULTIVECTOR)
    found = api.post("/embed", json={"inputs": TEXTS, "output": EVERY, "dimensions": 2}).get_json()
    assert list(found) == ["vector", "sparse", "multivector"]
    assert (np.shape(found["vector"]), found["sparse"]) == ((3, 2), SPARSE)
    assert rounded(found["multivector"]) == rounded(MULTIVECTOR)
    found = api.post("/embed", json={"inputs": TEXTS, "output": ["vector"]}).get_json()
    assert np.array_equal(np.array(found.pop("vector"), np.float32), [vector_of(text) for text in TEXTS])
    assert found == {}
    assert api.post("/embed", json={"inputs": TEXTS[0], "output": ["sparse"]}).get_json() == {"sparse": SPARSE[:1]}


def test_msgpack_has_the_bytes_of_a_reply(api: FlaskClient) -> None:
    response = api.post("/embed", json={"inputs": TEXTS, "output": EVERY}, headers=MSGPACK)
    found = msgpack.unpackb(response.get_data())
    assert (response.headers["Content-Type"], list(found)) == (MSGPACK["Accept"], ["vector", "sparse", "multivector"])
    check_packed(found)
    assert found["vector"]["shape"] == [3, 4]
    response = api.post("/embed", json={"inputs": TEXTS, "output": "sparse"}, headers=MSGPACK)
    assert msgpack.unpackb(response.get_data()) == {"sparse": found["sparse"]}


def test_a_result_has_the_outputs_beside_its_cost(api: FlaskClient) -> None:
    asked = {"inputs": TEXTS, "output": ["sparse", "multivector"]}
    found = api.post("/embed", json=asked | {"answer": "result"}).get_json()
    assert (found["sparse"], rounded(found["multivector"])) == (SPARSE, rounded(MULTIVECTOR))
    assert (found["tokens"], found["status"]) == ([4, 6, 2], "done")
    place = api.post("/v1/jobs", json=asked | {"op": "embed"}).headers["Location"]
    result = api.get(f"{place}/result?wait=60").get_json()
    assert found | {"id": result["id"]} == result
    check_packed(msgpack.unpackb(api.get(f"{place}/result?wait=60", headers=MSGPACK).get_data()))
    kind, message = error_of(api.get(f"{place}/result?wait=60&output_dtype=int8"), 422)
    assert (kind, 'output_dtype "int8" goes with output vector' in message) == ("invalid_request", True)
    assert error_of(api.get(f"{place}/result?wait=60", headers={"Accept": "application/x-npy"}), 406)


@pytest.mark.parametrize("output", ["sparse", "multivector", ["vector"]])
def test_a_format_that_cannot_say_it_is_refused(api: FlaskClient, output: str | list[str]) -> None:
    asked = {"inputs": "a", "output": output}
    for accept in ("application/x-npy", "text/html"):
        kind, message = error_of(api.post("/embed", json=asked, headers={"Accept": accept}), 406)
        words = "this answer comes as application/json, application/msgpack"
        assert (kind, words in message) == ("not_acceptable", True)
    either = {"Accept": "application/x-npy, application/json;q=0.5"}
    assert api.post("/embed", json=asked, headers=either).headers["Content-Type"] == "application/json"
    assert error_of(api.post("/embed", json=asked | {"output_dtype": "binary"}), 422)[0] == "invalid_request"


def test_an_output_that_the_model_lacks_is_unsupported(api: FlaskClient, stub: StubWorker) -> None:
    stub.announce(outputs=["vector", "sparse"])
    assert api.get("/info").get_json()["outputs"] == ["vector", "sparse"]
    kind, message = error_of(api.post("/embed", json={"inputs": "a", "output": EVERY}), 501)
    assert (kind, message) == ("unsupported", "the model stub makes no multivector: it makes vector, sparse")
