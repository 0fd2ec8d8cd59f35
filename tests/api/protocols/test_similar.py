"""POST /similar: items of the default index as lines."""

import re
from typing import Any

import numpy as np
import pytest
from api_stub import error_of
from flask.testing import FlaskClient

pytest_plugins = ["api_fixtures"]


@pytest.mark.usefixtures("stub")
class TestSimilar:
    @pytest.mark.parametrize("name", ["text", "keywords"])
    def test_each_item_is_a_line_with_its_text_id_and_score(self, api: FlaskClient, name: str) -> None:
        response = api.post("/similar", json={name: "self driving cars navigation", "num_results": 2})
        lines = ["Item:document 0 (index: 0 score:1.0)", "Item:document 1 (index: 1 score:0.9)"]
        assert response.get_json() == {"text": lines}
        assert response.headers["X-Tokens"] == "6"

    def test_without_a_number_there_are_as_many_as_the_index_has_up_to_five(self, api: FlaskClient) -> None:
        assert len(api.post("/similar", json={"text": "a", "unknown": None}).get_json()["text"]) == 3

    def test_of_both_names_the_text_is_read(self, api: FlaskClient) -> None:
        assert "queries[0] is empty" in error_of(api.post("/similar", json={"text": " ", "keywords": "a"}), 422)[1]

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ({}, "text is missing"),
            ({"text": ["a"]}, 'text is ["a"]: it takes a string'),
            ({"text": "a", "num_results": 0}, "num_results is 0: it takes at least 1"),
            ({"text": "a", "num_results": "3"}, 'num_results is "3": it takes a whole number'),
        ],
    )
    def test_a_wrong_field_is_named(self, api: FlaskClient, body: dict[str, Any], words: str) -> None:
        code, message = error_of(api.post("/similar", json=body), 422)
        assert (code, words in message) == ("invalid_request", True), message


@pytest.mark.usefixtures("serving")
def test_the_items_are_those_that_a_search_finds(api: FlaskClient) -> None:
    (hits,) = api.post("/search", json={"queries": "storm rain", "k": 4}).get_json()["results"]
    lines = api.post("/similar", json={"keywords": "storm rain", "num_results": 4}).get_json()["text"]
    found = [re.fullmatch(r"Item:(.+) \(index: (\d+) score:(\d\.\d+)\)", line) for line in lines]
    assert [(match[1], match[2]) for match in found if match] == [(hit["text"], hit["id"]) for hit in hits]
    assert [np.float32(match[3]) for match in found if match] == [np.float32(hit["score"]) for hit in hits]
