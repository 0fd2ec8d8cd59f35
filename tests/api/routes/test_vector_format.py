"""Formats of vectors over HTTP: media types, types of numbers, and the readers that the page shows."""

import json
import re
import subprocess
from collections.abc import Callable
from itertools import product
from typing import Any

import msgpack
import numpy as np
import pytest
from api_stub import MakeApp, StubWorker, error_of, multivector_of, sparse_of, vector_of
from flask.testing import FlaskClient
from http_servers import Listen
from javascript import NODE, needs_node
from numpy.typing import NDArray
from page import read, table
from werkzeug.test import TestResponse

from shoal_api.answers.vector_format import FORMATS, JSON, NUMBER_TYPES, OFFERED, RAW, convert

pytest_plugins = ["api_fixtures", "http_fixtures"]
pytestmark = pytest.mark.usefixtures("stub")

PAGE = "docs/http.md"
TEXTS = ["a storm", "rain in the sea", ""]
VECTORS = np.array([vector_of(text) for text in TEXTS])
TOKENS = [4, 6, 2]
MSGPACK = {"Accept": "application/msgpack"}


def section(heading: str) -> str:
    """Return the section with this heading of the page on formats."""
    return read(PAGE).split(f"\n### {heading}\n")[1].partition("\n##")[0]


def read_msgpack(response: TestResponse) -> dict[str, NDArray[Any]]:
    found = {k: a for k, a in msgpack.unpackb(response.get_data()).items() if isinstance(a, dict) and "data" in a}
    return {k: np.frombuffer(a["data"], a["dtype"]).reshape(a["shape"]) for k, a in found.items()}


def read_raw(response: TestResponse) -> dict[str, NDArray[Any]]:
    data, dtype = response.get_data(), np.dtype(response.headers["X-Dtype"])
    shape = tuple(map(int, response.headers["X-Shape"].split(",")))
    rows = np.frombuffer(data, dtype, int(np.prod(shape))).reshape(shape)
    rest, found = data[rows.nbytes :], {"embeddings": rows}
    if dtype == np.int8 and len(rest) >= 4 * len(rows):
        found["scales"], rest = np.frombuffer(rest, "<f4", len(rows)), rest[4 * len(rows) :]
    numbers = np.frombuffer(rest, "<i8")
    if len(numbers) == 4 + 3 * len(rows):
        found["chunks"], numbers = numbers[4:].reshape(-1, 3), numbers[:4]
    return found | ({"offsets": numbers} if len(numbers) else {})


READERS: dict[str, Callable[[TestResponse], dict[str, NDArray[Any]]]] = {
    **dict.fromkeys((name for name in FORMATS if "msgpack" in name), read_msgpack),
    RAW: read_raw,
}


#: Fields of a body beside the texts, the number of vectors of each text, and the arrays that say where the vectors are.
OUTPUTS: dict[str, tuple[dict[str, Any], list[int], dict[str, Any]]] = {
    "vector": ({}, [1, 1, 1], {}),
    "tokens": ({"output": "tokens"}, TOKENS, {"offsets": [0, 4, 10, 12]}),
    "chunks": (
        {"output": "chunks", "chunk_tokens": 9},
        [2, 4, 1],
        {
            "offsets": [0, 2, 6, 7],
            "chunks": [[0, 1, 3], [2, 7, 3], [0, 4, 3], [5, 7, 3], [8, 11, 3], [12, 15, 3], [0, 0, 3]],
        },
    ),
}


def same(found: dict[str, NDArray[Any]], expected: dict[str, NDArray[Any]]) -> None:
    """Fail the test unless the arrays are the same, in every bit and in their types."""
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


class TestFormats:
    @pytest.mark.parametrize("media_type", FORMATS)
    def test_each_format_has_each_type_of_numbers(self, api: FlaskClient, media_type: str) -> None:
        for number_type, output in [*product(["float32", "int8"], OUTPUTS), *product(NUMBER_TYPES, ["vector"])]:
            options, counts, places = OUTPUTS[output]
            body = {"inputs": TEXTS, "output_dtype": number_type, **options}
            response = api.post("/embed", json=body, headers={"Accept": media_type})
            assert (response.status_code, response.content_type) == (200, media_type)
            expected = convert(np.repeat(VECTORS, counts, axis=0), number_type)
            rows = expected["embeddings"]
            same(READERS[media_type](response), expected | {name: np.array(place) for name, place in places.items()})
            assert response.headers["X-Dtype"] == rows.dtype.name
            assert response.headers["X-Shape"] == f"{len(rows)},{rows.shape[1]}"
            assert (response.headers["X-Tokens"], response.headers["Vary"]) == (str(sum(TOKENS)), "Accept")

    @pytest.mark.parametrize("output", OUTPUTS)
    def test_json_has_them_by_text_or_as_the_result_of_a_job(self, api: FlaskClient, output: str) -> None:
        options, counts, places = OUTPUTS[output]
        for number_type in NUMBER_TYPES:
            found = api.post("/embed", json={"inputs": TEXTS, "output_dtype": number_type, **options}).get_json()
            expected = convert(np.repeat(VECTORS, counts, axis=0), number_type)
            if isinstance(found, list):
                found = {"embeddings": found}
            assert found.keys() == expected.keys() | places.keys() - {"offsets"}
            for name, array in expected.items():
                parts = found[name] if places else [[row] for row in found[name]]
                assert list(map(len, parts)) == counts
                assert np.array_equal(np.array([row for part in parts for row in part], array.dtype), array)
        if output == "chunks":
            assert found["chunks"][0] == [{"start": 0, "stop": 1, "tokens": 3}, {"start": 2, "stop": 7, "tokens": 3}]
        asked = {"inputs": [*TEXTS, "a b c d e f g"], **options}
        found = api.post("/embed", json=asked | {"answer": "result"}).get_json()
        assert (found["tokens"], found["truncated"]) == ([*TOKENS, 8], [False, False, False, True])
        assert found["characters"] == [7, 15, 0, 11]
        place = api.post("/v1/jobs", json=asked | {"op": "embed"}).headers["Location"]
        result = api.get(f"{place}/result?wait=60").get_json()
        assert found | {"id": result["id"]} == result
        as_bytes = api.post("/embed", json=asked | {"answer": "result"}, headers=MSGPACK)
        assert msgpack.unpackb(as_bytes.get_data())["characters"] == found["characters"]

    def test_the_page_describes_all_formats_and_their_routes(self, api: FlaskClient) -> None:
        described = {
            f"{method.upper()} {path}"
            for path, methods in api.get("/openapi.json").get_json()["paths"].items()
            for method, about in methods.items()
            if about["responses"].get("200", {}).get("content", {}).keys() == {JSON, *FORMATS}
        }
        assert set(re.findall(r"`((?:GET|POST) /[^`?]*)`", section("Media types"))) == described
        assert set(re.findall(r"`(.+?)`", "".join(table(PAGE, "`Accept`")))) == {JSON, *FORMATS}
        assert {name.strip("`") for name in table(PAGE, "`output_dtype`")} == set(NUMBER_TYPES)

    def test_an_error_varies_with_the_header_if_that_was_read(self, make_app: MakeApp) -> None:
        api = make_app(cors_origins="https://a.example").test_client()
        asked = {"Accept": RAW, "Origin": "https://a.example"}
        for path, name in (("/embed", "inputs"), ("/v1/embeddings", "input")):
            assert api.post(path, json={name: []}, headers=asked).headers["Vary"] == "Origin, Accept"
            assert api.post(path, json={name: 5}, headers=asked).headers["Vary"] == "Origin"


def test_a_result_has_the_format_and_the_numbers_that_its_request_accepts(api: FlaskClient) -> None:
    place = api.post("/v1/jobs", json={"op": "embed", "inputs": TEXTS}).headers["Location"]
    asked, scaled = f"{place}/result?wait=60&output_dtype=int8", convert(VECTORS, "int8")
    same(read_raw(api.get(asked, headers={"Accept": RAW})), scaled)
    in_json = api.get(asked).get_json()
    assert in_json["embeddings"] == scaled["embeddings"].tolist()
    assert np.array_equal(np.array(in_json["scales"], np.float32), scaled["scales"])
    assert "scales" not in api.get(f"{place}/result").get_json()
    in_msgpack = msgpack.unpackb(api.get(asked, headers=MSGPACK).get_data())
    arrays = dict.fromkeys(("embeddings", "scales"))
    assert in_msgpack | arrays == in_json | arrays
    assert error_of(api.get("/v1/jobs/a/result?output_dtype=int4"), 422)[0] == "invalid_request"
    for job, status in (({"op": "search", "queries": "sea"}, 200), ({"op": "embed", "inputs": "fail"}, 500)):
        place = api.post("/v1/jobs", json=job).headers["Location"]
        response = api.get(f"{place}/result?wait=60", headers={"Accept": RAW})
        assert (response.status_code, response.content_type) == (status, JSON)  # searches and errors


#: Accept headers, and the media type that is sent.
ACCEPTED = {
    "": JSON,
    "application/*": JSON,
    "application/json;charset=UTF-8": JSON,
    "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2": JSON,
    "*/*;q=x": JSON,
    ",,,": JSON,
    "*/*," + "a" * 996: JSON,
    "application/json;q=0.2, application/msgpack;q=0.9, */*;q=0.1": "application/msgpack",
    "application/json;q=0, */*": "application/msgpack",
    "APPLICATION/octet-stream;version=1": RAW,
}
NOT_ACCEPTED = ["text/html", "*/json", "application", "*/*;q=0", "a/b, application/json;q=0", "*/*," + "a" * 997]


class TestAccept:
    def test_the_best_format_is_sent_and_others_are_refused(self, api: FlaskClient, make_app: MakeApp) -> None:
        assert api.post("/embed", json={"inputs": "a"}).content_type == JSON
        for header, media_type in ACCEPTED.items():
            response = api.post("/embed", json={"inputs": "a"}, headers={"Accept": header})
            assert (header, response.status_code, response.content_type) == (header, 200, media_type)
            assert response.headers["Vary"] == "Accept"
        api = make_app(token_ids="own", request_timeout_s=0.1).test_client()  # no worker can decode them
        for header in NOT_ACCEPTED:
            response = api.post("/embed", json={"inputs": [5, 6]}, headers={"Accept": header})
            code, message = error_of(response, 406)
            assert (code, response.headers["Vary"]) == ("not_acceptable", "Accept")
            assert f"this answer comes as {', '.join(OFFERED)}" in message
        response = api.post("/v1/embeddings", json={"input": "a"}, headers={"Accept": "text/html"})
        assert (response.status_code, response.get_json()["error"]["code"]) == (406, "not_acceptable")
        assert api.post("/embed_all", json={"inputs": "a"}, headers={"Accept": "a/b"}).get_json()["error_type"]


def test_edges_of_each_type_of_numbers() -> None:
    least = np.finfo(np.float32).smallest_subnormal  # the scale is rounded
    found = convert(np.array([[0, 0, 0], [190 * least, -190 * least, 0], [254, -100, 3]], np.float32), "int8")
    assert found["embeddings"].tolist() == [[0, 0, 0], [127, -127, 0], [127, -50, 2]]
    assert found["scales"].tolist() == [0.0, least, 2.0]
    numbers = convert(np.array([[1e9, -1e9, 0.1]], np.float32), "float16")["embeddings"]
    assert numbers.tolist() == [[65504.0, -65504.0, 0.0999755859375]]
    vectors = np.array([[1, -1, 0, 0.5, -0.0, 1, 1, 1, 2]], np.float32)
    assert convert(vectors, "ubinary")["embeddings"].tolist() == [[0b10010111, 0b10000000]]
    assert convert(vectors, "binary")["embeddings"].tolist() == [[0b10010111 - 128, 0]]


@needs_node
def test_the_pages_readers_of_raw_bytes_restore_the_vectors(make_app: MakeApp, listen: Listen) -> None:
    url, expected = listen(make_app()), [vector_of("a text"), vector_of("another")]

    def shown(language: str) -> str:
        (code,) = re.findall(rf"^```{language}\n(.*?)^```", section("Readers"), re.MULTILINE | re.DOTALL)
        return str(code).replace("http://localhost:8080", url)

    for number_type, precision in (("float32", 1e-6), ("float16", 0.002), ("int8", 0.02)):
        names = dict[str, Any]()
        exec(shown("python").replace('"int8"', f'"{number_type}"'), names)
        assert np.allclose(names["vectors"], expected, rtol=0, atol=precision)
    command = [NODE, "--input-type=module", "-e"]
    script = shown("js") + "console.log(JSON.stringify(vectors.map(v => [...v])))"
    done = subprocess.run([*command, script], capture_output=True, text=True, check=True, timeout=180)
    assert np.allclose(json.loads(done.stdout), expected, rtol=0, atol=1e-6)


SPARSE = [
    [{"index": 1, "value": 0.1}, {"index": 5, "value": 0.5}],
    [{"index": 2, "value": 0.2}, {"index": 3, "value": 0.3}, {"index": 4, "value": 0.4}],
    [],
]
MULTIVECTOR = [multivector_of(text).astype(float).round(5).tolist() for text in TEXTS]
EVERY = ["multivector", "vector", "sparse"]


def rounded(vectors: list[Any]) -> list[Any]:
    return [rounded(item) if isinstance(item, list) else round(item, 5) for item in vectors]


def check_packed(found: dict[str, Any]) -> None:
    """Check the sparse vectors and the multivectors in an answer in msgpack."""
    sparse, multivector = found["sparse"], found["multivector"]
    assert (sparse["lengths"], multivector["lengths"]) == ([2, 3, 0], [2, 4, 0])
    expected = [np.concatenate(arrays) for arrays in zip(*map(sparse_of, TEXTS), strict=True)]
    assert np.array_equal(np.frombuffer(sparse["indices"], "<i4"), expected[0])
    assert np.array_equal(np.frombuffer(sparse["values"], "<f4"), expected[1])
    rows = np.frombuffer(multivector["data"], "<f4").reshape(multivector["shape"])
    assert np.array_equal(rows, np.concatenate(list(map(multivector_of, TEXTS))))


def test_outputs_are_a_list_or_an_object_in_json_and_in_msgpack(api: FlaskClient) -> None:
    def embedded(output: Any, **more: Any) -> Any:
        return api.post("/embed", json={"inputs": TEXTS, "output": output, **more}).get_json()

    assert embedded("sparse") == SPARSE
    assert rounded(embedded("multivector")) == rounded(MULTIVECTOR)
    found = embedded(EVERY, dimensions=2)
    assert list(found) == ["vector", "sparse", "multivector"]
    assert (np.shape(found["vector"]), found["sparse"]) == ((3, 2), SPARSE)
    assert rounded(found["multivector"]) == rounded(MULTIVECTOR)
    found = embedded(["vector"])
    assert np.array_equal(np.array(found.pop("vector"), np.float32), VECTORS)
    assert (found, embedded(["sparse"])) == ({}, {"sparse": SPARSE})
    response = api.post("/embed", json={"inputs": TEXTS, "output": EVERY}, headers=MSGPACK)
    found = msgpack.unpackb(response.get_data())
    assert (response.content_type, list(found)) == (MSGPACK["Accept"], ["vector", "sparse", "multivector"])
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
    assert error_of(api.get(f"{place}/result?wait=60", headers={"Accept": RAW}), 406)


@pytest.mark.parametrize("output", ["sparse", "multivector", ["vector"]])
def test_a_media_type_that_cannot_express_the_output_is_refused(api: FlaskClient, output: str | list[str]) -> None:
    asked = {"inputs": "a", "output": output}
    for accept in (RAW, "text/html"):
        kind, message = error_of(api.post("/embed", json=asked, headers={"Accept": accept}), 406)
        words = "this answer comes as application/json, application/msgpack"
        assert (kind, words in message) == ("not_acceptable", True)
    either = {"Accept": f"{RAW}, application/json;q=0.5"}
    assert api.post("/embed", json=asked, headers=either).headers["Content-Type"] == "application/json"
    assert error_of(api.post("/embed", json=asked | {"output_dtype": "binary"}), 422)[0] == "invalid_request"


def test_an_output_that_the_model_lacks_is_unsupported(api: FlaskClient, stub: StubWorker) -> None:
    stub.announce(outputs=["vector", "sparse"])
    assert api.get("/info").get_json()["outputs"] == ["vector", "sparse"]
    kind, message = error_of(api.post("/embed", json={"inputs": "a", "output": EVERY}), 501)
    assert (kind, message) == ("unsupported", "the model stub makes no multivector: it makes vector, sparse")
