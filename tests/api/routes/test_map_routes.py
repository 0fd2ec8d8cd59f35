"""The routes of the map, with a real worker: what they answer, and how they refuse what they cannot."""

import base64
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from api_stub import StubWorker, error_of
from flask.testing import FlaskClient
from numpy.typing import NDArray

from shoal.contract.replies import Reply
from shoal.operations.map_options import MAX_POINTS

if TYPE_CHECKING:
    from shoal_workers.loop.worker import Worker

pytest_plugins = ["api_fixtures"]


def numbers(packed: dict[str, Any]) -> NDArray[Any]:
    """Return an array of an answer, read as docs/http.md says."""
    dtype = np.dtype(packed["dtype"]).newbyteorder("<")
    return np.frombuffer(base64.b64decode(packed["data"]), dtype).reshape(packed["shape"])


@pytest.mark.usefixtures("serving")
class TestMap:
    def test_points_hits_and_documents_have_the_same_places(self, api: FlaskClient) -> None:
        found = api.get("/v1/map").get_json()
        rows, places = numbers(found["rows"]), numbers(found["places"]) / found["places_per_unit"]
        assert rows.tolist() == list(range(len(places)))
        assert found["field"] is None
        body = {"index_version": found["index_version"], "map_rows": [1, 0]}
        answer = api.post("/v1/map/documents", json=body).get_json()
        assert [document["map_row"] for document in answer["documents"]] == [1, 0]
        text = answer["documents"][0]["text"]
        searched = api.post("/search", json={"queries": text, "k": 1, "map_place": True}).get_json()
        assert searched["results"][0][0]["id"] == answer["documents"][0]["id"]
        np.testing.assert_allclose(searched["results"][0][0]["map_place"], places[1], atol=1e-5)
        assert [len(place) for place in searched["map_places"]] == [2]

    @pytest.mark.parametrize(
        ("query", "status", "code", "named"),
        [
            ("?index=none", 404, "unknown_index", "none"),
            ("?field=colour", 422, "invalid_request", "colour"),
            ("?max_points=0", 422, "invalid_request", "max_points"),
            ("?max_points=20001", 422, "invalid_request", "max_points"),
            ("?max_points=many", 422, "invalid_request", 'max_points is "many": it takes a whole number'),
            ("?feild=topic", 422, "invalid_request", "feild"),
        ],
    )
    def test_a_wrong_parameter_is_named(self, api: FlaskClient, query: str, status: int, code: str, named: str) -> None:
        found_code, message = error_of(api.get(f"/v1/map{query}"), status)
        assert found_code == code
        assert named in message

    @pytest.mark.parametrize(
        "query",
        [
            *("?index=", "?index=..%2F..%2Fetc", "?index=%00", "?index=%ff", "?index[]=a", f"?index={'x' * 9_000}"),
            *("?field=", "?field=%00", "?field=%ff", f"?field={'x' * 9_000}", "?field=topic&field=<b>"),
            *("?max_points=1e3", "?max_points=1.5", "?max_points=-1", "?max_points=nan", f"?max_points={'9' * 9_000}"),
        ],
    )
    def test_a_hostile_parameter_is_refused_in_few_words(self, api: FlaskClient, query: str) -> None:
        response = api.get(f"/v1/map{query}")
        assert response.status_code in (404, 422)
        code, message = error_of(response, response.status_code)
        assert code in ("unknown_index", "invalid_request")
        assert 0 < len(message) < 500

    @pytest.mark.parametrize(
        ("body", "named"),
        [
            ({"map_rows": [0]}, "index_version"),
            ({"index_version": "v0", "map_rows": [2**32]}, "map_rows[0] is 4294967296: it takes at most 4294967295"),
            ({"index_version": "v0", "map_rows": [0]}, "ask for the map again"),
            ({"index_version": "v0", "map_rows": []}, "map_rows"),
            ({"index_version": "v0", "map_rows": [0] * 13}, "map_rows"),
            ({"index_version": "v0", "map_rows": ["0"]}, "map_rows"),
            ({"index_version": "v0", "map_rows": [-1]}, "map_rows"),
            ({"index_version": "v0", "map_rows": [0], "rows": []}, "rows"),
        ],
    )
    def test_a_wrong_field_is_named(self, api: FlaskClient, body: dict[str, Any], named: str) -> None:
        code, message = error_of(api.post("/v1/map/documents", json=body), 422)
        assert code == "invalid_request"
        assert named in message

    def test_a_row_that_there_is_not_is_named(self, api: FlaskClient) -> None:
        version = api.get("/v1/map").get_json()["index_version"]
        body = {"index_version": version, "map_rows": [4_000_000_000]}
        assert "4,000,000,000" in error_of(api.post("/v1/map/documents", json=body), 422)[1]


def test_a_sample_is_evenly_spread(api: FlaskClient, serving: "Worker") -> None:
    every = numbers(api.get("/v1/map").get_json()["rows"])
    some = numbers(api.get("/v1/map?max_points=3").get_json()["rows"])
    assert len(some) == min(3, len(every))
    assert set(some) <= set(every)


ROWS = {"dtype": "uint32", "shape": [2], "data": b"\0\0\0\0\1\0\0\0"}
PLACES = {"dtype": "int16", "shape": [2, 2], "data": b"\0\0\1\0\2\0\xff\xff"}
CODES = {"dtype": "uint8", "shape": [2], "data": b"\0\xff"}
FIELD = {"name": "year", "kind": "number", "codes": CODES, "num_without": 1, "low": 1.5, "high": 7, "new": [b"1"]}
POINTS = {"places_per_unit": 100, "rows": ROWS, "places": PLACES, "field": FIELD, "new": {"deep": [{"a": b"1"}]}}
DOCUMENT = {"id": "1", "text": "storm", "map_row": 0}


def nested(depth: int) -> Any:
    """Return lists in each other."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


class TestHostileReplies:
    def test_fields_of_later_releases_are_left_out(self, api: FlaskClient, stub: StubWorker) -> None:
        stub.map_reply = Reply("", hits=[], map=POINTS, index_version="v1")
        found = api.get("/v1/map").get_json()
        assert found.keys() == {"index_version", "places_per_unit", "rows", "places", "field"}
        assert found["field"].keys() == FIELD.keys() - {"new"}
        assert numbers(found["field"]["codes"]).tolist() == [0, 255]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"rows": None},
            {"rows": ROWS | {"shape": [3]}},
            {"rows": ROWS | {"shape": [2**62]}},
            {"rows": ROWS | {"shape": nested(300)}},
            {"rows": ROWS | {"data": "AAAAAAEAAAA="}, "places": PLACES | {"data": "no base64"}},
            {"rows": ROWS | {"data": b""}},
            {"places": PLACES | {"dtype": "float64"}},
            {"places": PLACES | {"shape": [4]}},
            {"places": PLACES | {"data": b"\0" * 9}},
            {"places_per_unit": 0},
            {"places_per_unit": float("nan")},
            {"places_per_unit": True},
            {"field": []},
            {"field": FIELD | {"codes": ROWS}},
            {"field": FIELD | {"low": float("nan")}},
            {"field": FIELD | {"high": nested(300)}},
            {"field": FIELD | {"num_without": "1"}},
            {"field": FIELD | {"values": 5}},
            {"field": FIELD | {"values": [{"value": ["a"], "count": 1}]}},
            {"field": FIELD | {"values": [{"value": "a", "count": "<b>"}]}},
        ],
    )
    def test_points_of_another_shape_are_refused(self, api: FlaskClient, stub: StubWorker, wrong: Any) -> None:
        stub.map_reply = Reply("", hits=[], map=POINTS | wrong, index_version="v1")
        assert "not of the documented shape" in error_of(api.get("/v1/map"), 400)[1]

    def test_more_points_than_a_map_has_are_refused(self, api: FlaskClient, stub: StubWorker) -> None:
        num = MAX_POINTS + 1
        rows = ROWS | {"shape": [num], "data": bytes(4 * num)}
        places = PLACES | {"shape": [num, 2], "data": bytes(4 * num)}
        stub.map_reply = Reply("", hits=[], map=POINTS | {"rows": rows, "places": places, "field": None})
        assert error_of(api.get("/v1/map"), 400)[0] == "malformed_job"

    def test_a_reply_without_a_map_is_refused(self, api: FlaskClient, stub: StubWorker) -> None:
        stub.map_reply = Reply("", hits=[[DOCUMENT]])
        assert "are all workers of this release?" in error_of(api.get("/v1/map"), 400)[1]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"text": None},
            {"map_row": "0"},
            {"note": b"bytes"},
            {"note": nested(300)},
        ],
    )
    def test_documents_of_another_shape_are_refused(self, api: FlaskClient, stub: StubWorker, wrong: Any) -> None:
        body = {"index_version": "v1", "map_rows": [0]}
        stub.map_reply = Reply("", hits=[[DOCUMENT | {"note": [{"a": 1.5}]}]], index_version="v1")
        assert api.post("/v1/map/documents", json=body).get_json()["documents"][0]["note"] == [{"a": 1.5}]
        stub.map_reply = Reply("", hits=[[DOCUMENT | wrong]], index_version="v1")
        assert error_of(api.post("/v1/map/documents", json=body), 400)[0] == "malformed_job"
        none: list[list[dict[str, Any]]] = []
        for hits in (none, [*none, []]):
            stub.map_reply = Reply("", hits=hits, index_version="v1")
            assert api.post("/v1/map/documents", json=body).get_json()["documents"] == []
