"""Programs that used the protocol of a smaller service get the vectors of Sentence Transformers."""

from typing import Any

import numpy as np
import pytest
from client_reference import Reference, check_same

pytest_plugins = ["client_fixtures"]

pytestmark = pytest.mark.wide

httpx = pytest.importorskip("httpx")

TEXTS = ["storm in europe", "market falls", "the rain " * 40]


@pytest.fixture
def post(url: str) -> Any:
    """A function that posts JSON and returns the response."""
    with httpx.Client(base_url=url, timeout=60) as client:
        yield lambda path, body: client.post(path, json=body).raise_for_status()


def test_predictions_equal_the_reference(post: Any, reference: Reference) -> None:
    check_same(post("/predict", {"text": TEXTS}).json()["embeddings"], reference(TEXTS))
    means = [np.mean(rows, axis=0) for rows in post("/predict?output=tokens", {"text": TEXTS[:2]}).json()["ys"]]
    check_same(means, reference(TEXTS[:2]))


@pytest.mark.parametrize("path", ["/json_embed/", "/orjson_embed/"])
def test_vectors_in_json_equal_the_reference(post: Any, path: str, model: str, reference: Reference) -> None:
    answer = post(path, {"model_name": model, "input": TEXTS}).json()
    assert answer["model_name"] == model
    check_same(answer["embedding"], reference(TEXTS))


def test_vectors_in_bytes_equal_the_reference(post: Any, model: str, reference: Reference) -> None:
    answer = post("/raw_embed/", {"model_name": model, "input": TEXTS})
    shape = [int(size) for size in answer.headers["X-Shape"].split(",")]
    check_same(np.frombuffer(answer.content, answer.headers["X-Dtype"]).reshape(shape), reference(TEXTS))
