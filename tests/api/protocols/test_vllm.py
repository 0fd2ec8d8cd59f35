"""POST /pooling answers as vLLM does: a vector for each token of a text, or one for the text."""

import base64
from typing import Any

import numpy as np
import pytest
from api_stub import StubWorker, multivector_of, vector_of
from flask.testing import FlaskClient

pytest_plugins = ["api_fixtures"]

TEXTS = ["a storm", "rain in the sea"]


def pooled(api: FlaskClient, **body: Any) -> list[Any]:
    """Return the data of each text; fail the test if the answer does not have vLLM's shape."""
    found = api.post("/pooling", json={"input": TEXTS, "model": "stub", "user": "me", **body}).get_json()
    assert list(found) == ["id", "object", "created", "model", "data", "usage"]
    assert (found["object"], found["model"], found["usage"]["total_tokens"] > 0) == ("list", "stub", True)
    assert [(item["index"], item["object"]) for item in found["data"]] == [(0, "pooling"), (1, "pooling")]
    return [item["data"] for item in found["data"]]


def test_a_task_chooses_vectors_of_texts_or_of_tokens(api: FlaskClient, stub: StubWorker) -> None:
    stub.announce(outputs=["vector", "tokens"])
    assert np.array_equal(np.array(pooled(api, task="embed"), np.float32), [vector_of(text) for text in TEXTS])
    of_tokens = api.post("/embed", json={"inputs": TEXTS, "output": "tokens"}).get_json()
    for body in ({}, {"task": "token_embed", "truncate_prompt_tokens": -1, "use_activation": True}):
        assert pooled(api, **body) == of_tokens
    in_base64 = [np.frombuffer(base64.b64decode(data), "<f4") for data in pooled(api, encoding_format="base64")]
    assert [np.allclose(one, np.ravel(other)) for one, other in zip(in_base64, of_tokens, strict=True)] == [True, True]


@pytest.mark.usefixtures("stub")
def test_a_late_interaction_model_makes_its_multivectors(api: FlaskClient) -> None:
    assert np.allclose(pooled(api)[0], multivector_of(TEXTS[0]), atol=1e-6)


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize(
    "body", [{"task": "classify"}, {"input": 5}, {"dimensions": 2}, {"truncate_prompt_tokens": 9}, {"messages": []}]
)
def test_other_bodies_are_refused_and_named(api: FlaskClient, body: dict[str, Any]) -> None:
    response = api.post("/pooling", json={"input": TEXTS, **body})
    error = response.get_json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (400, "invalid_request", "invalid_request_error")
    assert next(iter(body)) in error["message"]
