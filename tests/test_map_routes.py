"""The routes of the map, with a real worker: what they answer, and how they refuse what they cannot."""

import base64
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from api_stub import error_of
from flask.testing import FlaskClient
from numpy.typing import NDArray

if TYPE_CHECKING:
    from shoal_workers.worker import Worker

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
        np.testing.assert_allclose([one["map_place"] for one in answer["documents"]], places[[1, 0]], atol=1e-5)
        text = answer["documents"][0]["text"]
        searched = api.post("/search", json={"queries": text, "k": 1, "map_place": True}).get_json()
        assert searched["results"][0][0]["id"] == answer["documents"][0]["id"]
        assert searched["results"][0][0]["map_place"] == answer["documents"][0]["map_place"]
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
        ("body", "named"),
        [
            ({"map_rows": [0]}, "index_version"),
            ({"index_version": "v0", "map_rows": [2**32]}, "map_rows[0] is 4294967296: it takes at most 4294967295"),
            ({"index_version": "v0", "map_rows": [0]}, "ask for the map again"),
            ({"index_version": "v0", "map_rows": []}, "map_rows"),
            ({"index_version": "v0", "map_rows": [0] * 101}, "map_rows"),
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
