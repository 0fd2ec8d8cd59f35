"""Messages for bodies that have the wrong shape."""

from typing import Any

import pytest
from flask.testing import FlaskClient
from pydantic import BaseModel, ValidationError

from shoal_api.protocols.cohere import CohereBody
from shoal_api.protocols.openai import EmbeddingsBody
from shoal_api.protocols.tei import DecodeBody, TeiEmbedBody, TeiTokensBody
from shoal_api.schema.indexes import BuildBody
from shoal_api.schema.requests import EmbedBody, SearchBody

pytest_plugins = ["api_fixtures"]

MANY = 100_000

#: Routes, the models of their bodies, and bodies with many wrong elements.
BODIES: list[tuple[str, type[BaseModel], dict[str, Any]]] = [
    ("/v2/embed", CohereBody, {"texts": ["a"], "embedding_types": ["wrong"] * MANY}),
    ("/embed", EmbedBody, {"inputs": [[1, *["a"] * MANY]]}),
    ("/", TeiEmbedBody, {"inputs": [[1, *["a"] * MANY]]}),
    ("/embed_all", TeiTokensBody, {"inputs": [[1, *["a"] * MANY]]}),
    ("/v1/embeddings", EmbeddingsBody, {"input": [[1, *["a"] * MANY]]}),
    ("/decode", DecodeBody, {"ids": [["a"] * MANY]}),
    ("/decode", DecodeBody, {"ids": ["a"] * MANY}),
    *(("/search", SearchBody, {"queries": "a", name: [5] * MANY}) for name in ("like", "fields", "facets", "negative")),
    *(("/search", SearchBody, {"queries": "a", name: ["a"] * MANY}) for name in ("sort", "boost", "vectors")),
    ("/search", SearchBody, {"queries": "a", "vectors": [["a"] * MANY]}),
    ("/v1/indexes/news/builds", BuildBody, {"source": "a", "field_kinds": [5] * 200}),
]


def test_a_list_of_wrong_elements_gives_a_short_message(api: FlaskClient) -> None:
    for path, shape, body in BODIES:
        with pytest.raises(ValidationError) as caught:
            shape.model_validate(body)
        assert caught.value.error_count() <= 2
        response = api.post(path, json=body)
        assert response.status_code in (400, 422)
        assert len(response.get_data()) < 400


def test_an_order_of_many_wrong_names_gives_a_short_message(api: FlaskClient) -> None:
    body = {"queries": "a", "sort": [{str(n): n for n in range(MANY)}]}
    assert SearchBody.model_validate(body).sort == body["sort"]  # pydantic has not made an error for each
    response = api.post("/search", json=body)
    assert response.status_code == 422
    assert response.get_json()["error"]["message"] == 'sort[0] has "0": it takes field, order'


def test_a_message_names_one_of_several_wrong_fields(api: FlaskClient) -> None:
    response = api.post("/search", json={"queries": "a", "k": "many", "alpha": "none"})
    assert response.get_json()["error"]["message"] == 'alpha is "none": it takes a number'
