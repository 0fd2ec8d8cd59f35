"""/embed, /search and /score: their answers, and every kind of refusal."""

import gzip
import io
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgpack
import numpy as np
import pytest
from api_stub import OWN, MakeApp, StubWorker, error_of, raw_score_of, vector_of
from conftest import RedisServer, wait_until
from flask.testing import FlaskClient
from fuzzing import CLAIMS, nested, packed
from queues import Queue
from werkzeug.test import TestResponse

from shoal_api.request import MSGPACK_TYPES, json_request

pytest_plugins = ["api_fixtures"]

#: A good body for each route that waits for an answer.
WAITING: list[tuple[str, dict[str, Any]]] = [
    ("/embed", {"inputs": "a"}),
    ("/search", {"queries": "a"}),
    ("/score", {"query": "b", "inputs": "a"}),
]


def post(api: FlaskClient, path: str, **body: Any) -> TestResponse:
    return api.post(path, json=body)


@pytest.mark.usefixtures("stub")
def test_any_text_is_embedded_and_hits_have_the_documents_fields(api: FlaskClient) -> None:
    row = post(api, "/embed", inputs="a storm").get_data(as_text=True).strip("[]\n").split(",")
    assert row == [str(number) for number in vector_of("a storm")]  # numbers have only the digits that float32 needs
    headers = post(api, "/embed", inputs=["a b", "a b c d e f g h"]).headers
    steps = enumerate(("queue", "tokenize", "encode", "search"), 1)
    assert headers["Server-Timing"] == ", ".join(f"{step};dur={n}.000" for n, step in steps)
    assert (headers["X-Tokens"], headers["X-Truncated"]) == ("12", "1")
    for text in ("", "a\x00b", "naïve 海 🌊", " "):
        response = api.post("/embed", data=json.dumps({"inputs": text}))  # this request has no content type
        assert np.array_equal(np.array(response.get_json(), np.float32), [vector_of(text)])
    options = {"wait_for_model": True}  # Hugging Face's clients send these
    assert post(api, "/embed", inputs="a", options=options).status_code == 200
    error = post(api, "/embed", inputs=5, options=options).get_json()
    assert (error["error_type"], error["error"][:11]) == ("Validation", "inputs is 5")
    assert "X-Total-Time" not in headers
    results = post(api, "/search", queries=["sea", "land"], k=2).get_json()["results"]
    assert [len(hits) for hits in results] == [2, 2]
    assert results[0][0] == {"id": "0", "score": 1.0, "text": "document 0", "topic": "sea"}
    assert len(post(api, "/search", queries="sea", k=1000).get_json()["results"][0]) == 3  # all documents of the index


@pytest.mark.usefixtures("stub")
def test_scores_come_in_the_order_of_the_texts(make_app: MakeApp) -> None:
    texts = ["rain in the sea", "a storm"] * 50  # the texts make several jobs
    raw = [float(raw_score_of("storm", text)) for text in texts]
    for api in (make_app().test_client(), make_app(protocols="").test_client()):
        response = post(api, "/score", query="storm", inputs=texts, raw_scores=True)
        assert response.get_json() == {"scores": pytest.approx(raw, rel=1e-5)}
        assert int(response.headers["X-Tokens"]) > 0
        (score,) = post(api, "/score", query="storm", inputs="a storm", lane="bulk").get_json()["scores"]
        assert score == pytest.approx(1 / (1 + np.exp(-raw[1])), rel=1e-5)


class TestLargeRequests:
    def test_a_list_is_split_into_jobs(self, api: FlaskClient, stub: StubWorker) -> None:
        texts = [f"text {n % 100}" for n in range(12_000)]
        response = api.post("/embed", json={"inputs": texts}, headers={"Accept": "application/octet-stream"})
        rows = np.frombuffer(response.get_data(), np.float32).reshape(12_000, 4)
        assert np.array_equal(rows, [vector_of(text) for text in texts[:100]] * 120)
        assert response.headers["X-Tokens"] == str(12_000 * 4)

    def test_more_vectors_than_fit_are_refused(self, make_app: MakeApp, stub: StubWorker) -> None:
        api = make_app(max_response_mb=1).test_client()
        stub.announce(dimension=65_536)
        words = "the vectors of 5 texts take 1,310,720 bytes, and a response may have 1,048,576 (SHOAL_MAX_RESPONSE_MB)"
        routes = (("/embed", "inputs"), ("/", "inputs"), ("/v1/embeddings", "input"), ("/v2/embed", "texts"))
        for path, name in routes:
            assert api.post(path, json={name: ["a"] * 4}).status_code == 200
            refused = api.post(path, json={name: ["a"] * 5})
            assert (refused.status_code, words in refused.text) == (413, True)
            assert path == "/v2/embed" or api.post(path, json={name: ["a"] * 100, "dimensions": 4}).status_code == 200
        assert api.post("/search", json={"queries": ["a"] * 100}).status_code == 200
        stub.announce(state="loading")  # the API knows the dimension of the vectors
        assert [api.post(path, json={name: ["a"] * 5}).status_code for path, name in routes] == [413] * 4

    def test_vectors_count_before_a_worker_reports_their_dimension(self, make_app: MakeApp, stub: StubWorker) -> None:
        app = make_app(max_response_mb=1, max_request_bytes=2**20)
        stub.announce(state="loading")
        app.own.access._bytes.acquire("127.0.0.1", 6 * 2**20)
        assert app.test_client().post("/embed", json={"inputs": ["a"] * 8}).status_code == 200
        assert app.test_client().post("/embed", json={"inputs": ["a"] * 256}).status_code == 429

    def test_one_client_has_few_large_responses_at_a_time(self, make_app: MakeApp, stub: StubWorker) -> None:
        app = make_app(max_response_mb=1, max_request_bytes=2**20)
        stub.announce(dimension=65_536)
        stub.pause()
        large = {"inputs": ["a"] * 4}  # each response counts for 2.5 MB of 14 MB
        with ThreadPoolExecutor(16) as pool:
            waiting = [pool.submit(post, app.test_client(), "/embed", **large) for _ in range(8)]
            wait_until(lambda: any(answer.done() for answer in waiting))
            stub.resume()
            statuses = {answer.result().status_code for answer in waiting}
        assert statuses == {200, 429}
        assert app.test_client().post("/embed", json=large).status_code == 200


def test_a_query_parameter_that_a_route_lacks_is_refused(api: FlaskClient, stub: StubWorker) -> None:
    paths = api.get("/openapi.json").get_json()["paths"]
    own = [
        (path, method) for path, methods in paths.items() for method, about in methods.items() if OWN & {*about["tags"]}
    ]
    assert len(own) > 15
    for path, method in own:
        code, message = error_of(api.open(f"{path}?a%20b=1", method=method), 422)
        assert (code, 'unknown query parameter "a b": ' in message) == ("invalid_request", True)
    assert "did you mean wait?" in error_of(api.get("/v1/jobs/a/result?wiat=1"), 422)[1]
    assert "the known ones are wait, output_dtype" in error_of(api.get("/v1/jobs/a/result?zzz"), 422)[1]
    assert api.post("/v1/embeddings?a=b", json={"input": "a"}).status_code == 200


MANY = ["x"] * 100_000

#: Bodies that are refused, and the words that say why, by the status and the code.
REFUSED: dict[tuple[int, str], list[tuple[str, Any, str]]] = {
    (400, "invalid_json"): [
        ("/embed", b"", "line 1 column 1"),
        ("/embed", b'{"inputs": "a"', "line 1 column 15"),
        ("/embed", b'{"inputs": NaN}', "column 12"),
        ("/embed", b'{"inputs": "\xff"}', "UTF-8"),
        ("/embed", b"[" * 5_000, "depth"),
        ("/embed", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "depth"),
        ("/search", b'{"queries": "a", "filter": ' + b'{"not":' * 5_000 + b"1" + b"}" * 5_001, "depth"),
        ("/embed", b'{"inputs": "a", "dimensions": ' + b"9" * 5_000 + b"}", "infinity"),
        ("/embed", '{"inputs": "a"}'.encode("utf-16"), "the body is not UTF-8"),
        ("/embed", '{"inputs": "a"}'.encode("utf-32-le"), "not JSON"),
        ("/embed", b'\xef\xbb\xbf{"inputs": "a"}', "byte order mark"),
    ],
    (413, "too_large"): [
        ("/embed", b'{"inputs": "a"' + b', "a"\n :1' * 131_072 + b"}", "over 131,072 names of fields"),
        ("/embed", {"inputs": MANY}, "interactive lane, 87,500 (SHOAL_MAX_BACKLOG_TEXTS): split"),
        ("/embed", {"inputs": [*MANY, "x"]}, "may have 100,000 (SHOAL_MAX_BACKLOG_TEXTS): split"),
        ("/embed", {"inputs": ["a", "x" * 10_000_000]}, "text 1 has 10,000,000 characters"),
        ("/search", {"queries": ["a"] * 101, "k": 1000}, "101,000 hits and may ask for 100,000: split the list, or lo"),
    ],
    (422, "invalid_text"): [
        ("/embed", b'{"inputs": "a", "\\ud800": 1}', "half of a surrogate pair"),
        ("/embed", b'{"inputs": ["a", "\\udc00"]}', "half of a surrogate pair at line 1"),
    ],
    (422, "text_too_long"): [("/embed", {"inputs": "a b c d e f g", "truncate": False}, "9 tokens")],
    (404, "unknown_index"): [("/search", {"queries": "sea", "index": "other"}, "other")],
    (500, "internal"): [("/embed", {"inputs": "fail"}, "told to fail")],
    (501, "unsupported"): [("/score", {"query": "a", "inputs": ["unscored"]}, "no reranker")],
    (422, "invalid_request"): [
        ("/embed", b'"a"', "a JSON string"),
        ("/embed", b"[1]", "a JSON array"),
        ("/embed", b"null", "a JSON null"),
        ("/embed", b"5", "a JSON number"),
        ("/embed", b'{"inputs": "a", "inputs": 5}', "inputs is 5"),
        ("/embed", b'{"inputs": "a", "dimensions": 18446744073709551616}', "1.8446744073709552e+19"),
        ("/embed", b'{"inputs": "a", "\\u0000\\n": 1}', 'unknown field "\\u0000\\n"'),
        ("/embed", {}, "inputs is missing"),
        ("/embed", {"inputs": None}, "inputs is null: it takes a string, a list of strings"),
        ("/embed", {"inputs": ["a", 5]}, "inputs[1] is 5: it takes a string"),
        ("/search", {"queries": [["a"]]}, 'queries[0] is ["a"]: it takes a string'),
        ("/embed", {"inputs": []}, "the list of texts is empty"),
        ("/embed", {"normalise": 5, "inputs": 5}, '"normalise": did you mean normalize?'),
        ("/embed", {"inputs": "a", "Output_Type": "int8"}, "did you mean output_dtype?"),
        ("/embed", {"inputs": "a", "zzz": 1}, 'field "zzz": the known ones are truncate, '),
        ("/embed", {"inputs": "a", "n" * 100_000: 1}, "the known ones are"),
        ("/embed?normalize=true", {"inputs": "a"}, 'parameter "normalize": there are none here'),
        ("/embed", {"inputs": "a", "normalize": 1}, "normalize is 1: it takes true or false"),
        ("/embed", {"inputs": "a", "pooling": "sum"}, "it takes 'mean', 'max' or 'cls'"),
        ("/embed", {"inputs": "a", "output": "x"}, "'chunks', 'sparse' or 'multivector' or a list"),
        ("/embed", {"inputs": "a", "output": ["vector", "chunks"]}, "output[1] is \"chunks\": it takes 'vector', 'spa"),
        ("/embed", {"inputs": "a", "output": ["sparse", "sparse"]}, "a list takes one or more of vector"),
        ("/embed", {"inputs": "a", "output": []}, "output is []: a list takes one or more of vector"),
        ("/embed", {"inputs": "a", "output_dtype": "int4"}, 'output_dtype is "int4": i'),
        ("/embed", {"inputs": "a", "truncation_side": "up"}, "it takes 'right' or 'left'"),
        ("/embed", {"inputs": "a", "dimensions": 0}, "dimensions is 0: it takes at least 1"),
        ("/embed", {"inputs": "a", "dimensions": 2.5}, "dimensions is 2.5: it takes a whole number"),
        ("/embed", {"inputs": "a", "dimensions": 2, "output": "tokens"}, "drop one of the two"),
        ("/embed", {"inputs": "a", "prompt_name": 3}, "prompt_name is 3: it takes a string"),
        ("/search", b'{"queries": "a", "filter": ' + b'{"not":' * 900 + b"1" + b"}" * 901, "over 32 conditions"),
        ("/search", {"queries": "a", "filter": {"x": {"in": [1, None]}}}, "filter.x.in[1] is null"),
        ("/search", {"queries": "a", "sort": ["x"]}, "sort[0]"),
        ("/search", {"query": "a"}, 'unknown field "query": did you mean queries?'),
        ("/search", {}, "queries is missing"),
        ("/search", {"queries": ["a", " "]}, "queries[1] is empty"),
        ("/search", {"queries": "a", "negative": ["b", " "]}, "negative[1] is empty"),
        ("/search", {"queries": "a", "min_score": "b"}, 'min_score is "b": it takes a number'),
        ("/search", {"queries": "a", "k": 0}, "k is 0: it takes at least 1"),
        ("/search", {"queries": "a", "k": 1_001}, "k is 1001: it takes at most 1000"),
        ("/search", {"queries": "a", "k": True}, "k is true: it takes a whole number"),
        ("/search", {"queries": "a", "index": 1}, "index is 1: it takes a string"),
        ("/score", {"query": "a"}, "inputs is missing"),
        ("/score", {"inputs": "a"}, "query is missing"),
        ("/score", {"query": " ", "inputs": "a"}, "query is empty"),
        ("/score", {"query": "a", "inputs": "a", "pooling": "cls"}, 'unknown field "pooling"'),
    ],
}


@pytest.mark.usefixtures("stub")
def test_bad_input_is_refused_in_words(api: FlaskClient) -> None:
    for (status, code), refused in REFUSED.items():
        for path, body, words in refused:
            response = api.post(path, data=body) if isinstance(body, bytes) else api.post(path, json=body)
            found, message = error_of(response, status)
            assert (found, words in message) == (code, True), (path, message)
            assert len(message) < 500


def test_a_body_over_the_limit_is_refused_and_no_other_is_kept_beside_its_values(make_app: MakeApp) -> None:
    app = make_app(max_request_bytes=1_000)
    app.add_url_rule(
        "/kept", methods=["POST"], view_func=lambda: f"{json_request().get_json()} {json_request()._data!r}"
    )
    api = app.test_client()
    assert api.post("/kept", json={"a": 1}).text == "{'a': 1} b''"
    code, message = error_of(post(api, "/embed", inputs="x" * 1_000), 413)
    assert (code, "1,000 bytes" in message) == ("too_large", True)
    response = api.post("/embed", data=b"{}", environ_overrides={"CONTENT_LENGTH": "9" * 5_000})
    assert error_of(response, 413)[0] == "too_large"
    body = io.BytesIO(b"x" * 2_000)  # a WSGI server may have asked for the body already
    refused = api.post("/embed", input_stream=body, content_length=2_000, headers={"Expect": "100-continue"})
    assert (refused.status_code, body.tell()) == (413, 2_000)


class TestNoAnswer:
    def test_the_wait_ends_with_the_reason(self, make_app: MakeApp, stub: StubWorker) -> None:
        stub.pause()
        api = make_app(request_timeout_s=0.05).test_client()
        assert "busy" in error_of(post(api, "/search", queries="a"), 504)[1]
        stub.pool.leave("stub")
        code, message = error_of(post(api, "/embed", inputs="a"), 504)
        assert (code, "no worker is alive" in message) == ("timeout", True)

    def test_a_request_waits_in_its_lane_unless_it_is_full(self, make_app: MakeApp) -> None:
        api, hasty = make_app(max_backlog=1).test_client(), make_app(request_timeout_s=0.05).test_client()
        assert api.post("/v1/jobs", json={"op": "embed", "inputs": "a", "lane": "bulk"}).status_code == 202
        for path, body in WAITING:
            response = post(api, path, **body, lane="bulk")
            code, message = error_of(response, 429)
            assert (code, "bulk" in message) == ("overloaded", True)
            assert response.headers["Retry-After"] == "60"  # there is no worker to empty the lane
            assert error_of(post(hasty, path, **body), 504)[0] == "timeout"


def test_when_redis_is_away_clients_get_an_error_until_it_is_back(
    make_app: MakeApp, own_redis: RedisServer, settings: Any
) -> None:
    api, queue = make_app(redis_url=own_redis.url).test_client(), Queue.connect(own_redis.url, settings.keys)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: post(api, "/embed", inputs="a"))
        wait_until(lambda: queue.backlog()["interactive"])
        own_redis.stop()
        assert error_of(waiting.result(), 503)[0] == "unavailable"
    queue.close()
    response = post(api, "/embed", inputs="a")
    assert (error_of(response, 503)[0], response.headers["Retry-After"]) == ("unavailable", "1")
    own_redis.start()
    wait_until(lambda: error_of(api.get("/ready"), 503)[0] == "not_ready")  # Redis answers, and no worker is there
    stub = StubWorker(own_redis.url, settings.keys)
    stub.start()
    wait_until(lambda: post(api, "/embed", inputs="a").status_code == 200)
    stub.stop()


TEXTS = ["a storm", "é\0🌊"]
IGNORED = {"a": [1.5, b"x"], "b": msgpack.Timestamp(5)}
GOOD = {"inputs": TEXTS, "normalize": True, "dimensions": None, "options": IGNORED}


def send(api: FlaskClient, body: bytes, path: str = "/embed", kind: str = MSGPACK_TYPES[0]) -> TestResponse:
    """Send the bytes as msgpack."""
    return api.post(path, data=body, content_type=kind)


@pytest.mark.usefixtures("stub")
def test_a_map_is_accepted_as_json_would_be(api: FlaskClient) -> None:
    for kind in (*MSGPACK_TYPES, "Application/MsgPack; version=5"):
        response = send(api, msgpack.packb(GOOD), kind=kind)
        assert np.array_equal(np.array(response.get_json(), np.float32), [vector_of(text) for text in TEXTS])
    assert error_of(send(api, msgpack.packb(GOOD), kind="application/json"), 400)[0] == "invalid_json"
    body = b"\x82" + packed("inputs") + packed(5) + packed("inputs") + packed("a")
    assert len(send(api, body).get_json()) == 1
    content = api.get("/openapi.json").get_json()["paths"]["/embed"]["post"]["requestBody"]["content"]
    assert content[MSGPACK_TYPES[0]] == content["application/json"]


NAN = float("nan")


#: Bodies, the status and the code of the error, and words of the error's message.
REFUSED_MSGPACK = [
    (b"", 400, "invalid_json", "they end within a value"),
    (b'{"inputs": "a"}', 400, "invalid_json", "more bytes follow the first value"),
    (b"\xc1", 400, "invalid_json", "one of them cannot begin a value"),
    (packed(["a"]), 400, "invalid_json", "the msgpack value is an array"),
    (packed({"inputs": nested(5_000)}), 400, "invalid_json", "nested too deeply"),
    (packed({"inputs": nested(900)}), 422, "invalid_request", "inputs[0] is [[["),
    (b"\x81\x05" + packed("a"), 400, "invalid_json", "a key of a map is not a string"),
    (b"\x81\xc4\x06inputs" + packed("a"), 422, "invalid_request", "unknown field bytes 696e70757473"),
    (packed({"inputs": msgpack.ExtType(5, b"a")}), 400, "invalid_json", "extension type 5"),
    (packed({"inputs": msgpack.Timestamp(5)}), 422, "invalid_request", "inputs is "),
    (packed({"inputs": ["a", b"a"]}), 422, "invalid_request", "inputs[1] is bytes 61: it takes a string"),
    (packed({"inputs": "a", "dimensions": NAN}), 422, "invalid_request", "dimensions is "),
    (packed({"inputs": "a", "dimensions": 2**64 - 1}), 422, "invalid_request", "dimensions is 18446744"),
    (b"\x81" + packed("inputs") + b"\xa3\xed\xa0\x80", 422, "invalid_text", "not UTF-8"),
    (b"\x81\xa3\xed\xa0\x80" + packed("a"), 422, "invalid_text", "not UTF-8"),
    (packed({"inputs": "a", "at": msgpack.Timestamp(5)}), 422, "invalid_request", 'unknown field "at"'),
    (packed({"x": [[]] * 2**18, "inputs": "a"}), 413, "too_large", "over 1,048,576 values"),
    (packed({"inputs": "x" * 1_048_577}), 413, "too_large", "may have 1,048,576"),
]


def test_bad_bodies_are_refused_with_the_errors_of_json(api: FlaskClient, make_app: MakeApp, stub: StubWorker) -> None:
    for body, status, code, words in REFUSED_MSGPACK:
        found, message = error_of(send(api, body), status)
        assert (found, words in message) == (code, True), message
    for claim in CLAIMS:  # lengths that exceed the body
        assert send(api, b"\x81" + packed("inputs") + claim).status_code in (400, 413, 422)
    for encoding in ("gzip", "br, gzip"):
        body = gzip.compress(b'{"inputs": "a"}')
        response = api.post("/embed", data=body, headers={"Content-Encoding": encoding})
        message = f'the body has Content-Encoding "{encoding}": send it without, as plain JSON'
        assert error_of(response, 400) == ("invalid_json", message)
    api = make_app(max_request_bytes=100).test_client()
    assert error_of(send(api, packed({"inputs": "x" * 100})), 413)[0] == "too_large"
    assert len(send(api, packed({"inputs": "x" * 50})).get_json()) == 1
