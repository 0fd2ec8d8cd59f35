"""Voyage's embeddings, and Jina's, which share OpenAI's path. Their reranks are in test_rerank_routes.py."""

import base64
from typing import Any

import numpy as np
import pytest
from api_stub import StubWorker, vector_of
from flask.testing import FlaskClient

pytest_plugins = ["api_fixtures"]

TEXTS = ["a storm", "rain in the sea"]
VECTORS = np.array([vector_of(text) for text in TEXTS])


def rows(api: FlaskClient, **body: Any) -> list[Any]:
    """Return the vectors that the route answers, and fail the test unless their shape is OpenAI's."""
    found = api.post("/v1/embeddings", json={"input": TEXTS, "model": "stub", **body}).get_json()
    assert (found["object"], found["model"], found["usage"]["total_tokens"] > 0) == ("list", "stub", True)
    assert [item["index"] for item in found["data"]] == [0, 1]
    return [item["embedding"] for item in found["data"]]


@pytest.mark.usefixtures("stub")
class TestVoyage:
    def test_what_its_client_sends_is_answered_with_what_it_decodes(self, api: FlaskClient) -> None:
        plain = {"input_type": None, "truncation": True, "output_dtype": None, "output_dimension": None}
        found = [base64.b64decode(row) for row in rows(api, encoding_format="base64", **plain)]
        assert np.array_equal([np.frombuffer(row, "<f4") for row in found], VECTORS)
        small = rows(api, encoding_format="base64", output_dtype="int8")
        numbers = np.array([np.frombuffer(base64.b64decode(row), np.int8) for row in small])
        assert np.array_equal(numbers, rows(api, output_dtype="int8"))
        assert np.abs(numbers).max() == 127

    def test_the_output_dimension_is_honoured(self, api: FlaskClient) -> None:
        assert np.shape(rows(api, output_dimension=2)) == (2, 2)
        assert np.shape(rows(api, output_dimension=2, output_dtype="uint8", truncation=None)) == (2, 2)

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            ({"output_dtype": "float64"}, "output_dtype is"),
            ({"output_dtype": "binary"}, "the vectors have 4 numbers"),
            ({"output_dimension": 0}, "output_dimension is 0"),
            ({"input_type": "image"}, "input_type is"),
            ({"truncation": False, "input": "a b c d e f g h i"}, "a text has 11 tokens"),
            ({"truncation": True, "dimensions": 2}, "did you mean output_dimension?"),
            ({"truncation": True, "colour": 1}, 'unknown field "colour"'),
            ({"task": "retrieval.query", "late_chunking": True}, "late_chunking is true"),
            ({"task": "walk"}, "task is"),
        ],
    )
    def test_errors_have_its_shape(self, api: FlaskClient, more: dict[str, Any], words: str) -> None:
        response = api.post("/v1/embeddings", json={"input": TEXTS, **more})
        assert response.status_code in (400, 422)
        assert list(response.get_json()) == ["detail"]
        assert words in response.get_json()["detail"]


@pytest.mark.usefixtures("stub")
class TestJina:
    def test_vectors_come_as_they_are_asked_for(self, api: FlaskClient) -> None:
        assert np.array_equal(np.array(rows(api, late_chunking=False, embedding_type="float"), np.float32), VECTORS)
        found = rows(api, embedding_type="base64", task="text-matching", normalized=True)
        assert np.array_equal([np.frombuffer(base64.b64decode(row), "<f4") for row in found], VECTORS)
        assert np.shape(rows(api, dimensions=2, late_chunking=False)) == (2, 2)


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"input_type": "query"}, "query"),
        ({"input_type": "document"}, "passage"),
        ({"task": "retrieval.query"}, "query"),
        ({"task": "retrieval.passage"}, "passage"),
        ({"task": "text-matching"}, None),
        ({"truncation": True}, None),
    ],
)
def test_the_kind_of_text_chooses_the_prompt(
    api: FlaskClient, stub: StubWorker, more: dict[str, Any], name: str | None
) -> None:
    stub.announce(prompts=["query", "passage"])
    rows(api, **more)
    assert stub.prompts_asked == [name]
