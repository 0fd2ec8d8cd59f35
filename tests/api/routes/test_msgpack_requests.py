"""Bodies in msgpack: every route accepts them like JSON, and refuses them with the same errors."""

import gzip

import msgpack
import numpy as np
import pytest
from api_stub import MakeApp, StubWorker, error_of, vector_of
from flask.testing import FlaskClient
from fuzzing import CLAIMS, nested, packed
from werkzeug.test import TestResponse

from shoal_api.request import MSGPACK_TYPES

pytest_plugins = ["api_fixtures"]

TEXTS = ["a storm", "é\0🌊"]
IGNORED = {"a": [1.5, b"x"], "b": msgpack.Timestamp(5)}
GOOD = {"inputs": TEXTS, "normalize": True, "dimensions": None, "options": IGNORED}


def post(api: FlaskClient, body: bytes, path: str = "/embed", kind: str = MSGPACK_TYPES[0]) -> TestResponse:
    """Send the bytes as msgpack."""
    return api.post(path, data=body, content_type=kind)


@pytest.mark.usefixtures("stub")
class TestTaken:
    def test_a_map_is_accepted_as_json_would_be(self, api: FlaskClient) -> None:
        for kind in (*MSGPACK_TYPES, "Application/MsgPack; version=5"):
            response = post(api, msgpack.packb(GOOD), kind=kind)
            assert np.array_equal(np.array(response.get_json(), np.float32), [vector_of(text) for text in TEXTS])
        assert error_of(post(api, msgpack.packb(GOOD), kind="application/json"), 400)[0] == "invalid_json"

    def test_of_two_fields_of_one_name_the_last_counts(self, api: FlaskClient) -> None:
        body = b"\x82" + packed("inputs") + packed(5) + packed("inputs") + packed("a")
        assert len(post(api, body).get_json()) == 1

    def test_the_description_has_msgpack(self, api: FlaskClient) -> None:
        content = api.get("/openapi.json").get_json()["paths"]["/embed"]["post"]["requestBody"]["content"]
        assert content[MSGPACK_TYPES[0]] == content["application/json"]


NAN = float("nan")


#: Bodies, the status and the code of the error, and words of the error's message.
REFUSED = [
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


class TestRefused:
    def test_with_the_errors_of_json(self, api: FlaskClient) -> None:
        for body, status, code, words in REFUSED:
            found, message = error_of(post(api, body), status)
            assert (found, words in message) == (code, True), message
        for claim in CLAIMS:  # lengths beyond the body
            assert post(api, b"\x81" + packed("inputs") + claim).status_code in (400, 413, 422)

    def test_compressed_bodies_are_not_read(self, api: FlaskClient) -> None:
        for encoding in ("gzip", "br, gzip"):
            body = gzip.compress(b'{"inputs": "a"}')
            response = api.post("/embed", data=body, headers={"Content-Encoding": encoding})
            message = f'the body has Content-Encoding "{encoding}": send it without, as plain JSON'
            assert error_of(response, 400) == ("invalid_json", message)

    def test_bodies_larger_than_the_limit_are_refused(self, make_app: MakeApp, stub: StubWorker) -> None:
        api = make_app(max_request_bytes=100).test_client()
        assert error_of(post(api, packed({"inputs": "x" * 100})), 413)[0] == "too_large"
        assert len(post(api, packed({"inputs": "x" * 50})).get_json()) == 1
