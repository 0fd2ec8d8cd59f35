"""Clients of Ollama and Cohere get the vectors of Sentence Transformers from a running service."""

import base64
from typing import Any

import numpy as np
import pytest
from client_reference import Reference, check_same

pytest_plugins = ["client_fixtures"]

ollama = pytest.importorskip("ollama")
cohere = pytest.importorskip("cohere")
httpx = pytest.importorskip("httpx")

pytestmark = [pytest.mark.wide, pytest.mark.filterwarnings("ignore")]  # the clients' warnings do not matter here

TEXTS = ["storm in europe", "market falls", "the rain " * 40]
#: The tiny model's prompt for queries.
QUERY = "storm "


@pytest.mark.client("ollama")
class TestOllama:
    @pytest.fixture
    def client(self, url: str) -> Any:
        """A client of the service."""
        with ollama.Client(host=url) as client:
            yield client

    def test_vectors_equal_the_reference(self, client: Any, model: str, reference: Reference) -> None:
        answer = client.embed(model=model, input=TEXTS)
        check_same(answer.embeddings, reference(TEXTS))
        assert answer.prompt_eval_count > len(TEXTS)
        check_same(client.embed(model=model, input=TEXTS[0], dimensions=8).embeddings, reference(TEXTS[:1])[:, :8])
        check_same(client.embed(model=model, input=TEXTS[0], dimensions=4_096).embeddings, reference(TEXTS[:1]))
        check_same([client.embeddings(model=model, prompt=TEXTS[0]).embedding], reference(TEXTS[:1]))

    def test_the_served_model_can_be_pulled(self, client: Any, model: str) -> None:
        assert client.pull(model).status == "success"
        assert [part.status for part in client.pull("MODEL:latest", stream=True)] == ["success"]
        with pytest.raises(ollama.ResponseError, match="is not served here"):
            client.pull("llama3")

    def test_the_served_model_is_listed(self, client: Any, model: str) -> None:
        assert [found.model for found in client.list().models] == [model, "model"]
        assert [found.model for found in client.ps().models] == [model]
        assert client.show(model).capabilities == ["embedding"]

    def test_an_unknown_model_is_an_error(self, client: Any) -> None:
        with pytest.raises(ollama.ResponseError, match="is not served here"):
            client.embed(model="nomic-embed-text", input="a")


@pytest.mark.client("cohere")
class TestCohere:
    @pytest.fixture
    def client(self, url: str) -> Any:
        """A client of the service."""
        with httpx.Client(timeout=60) as transport:
            yield cohere.ClientV2(api_key="none", base_url=url, httpx_client=transport)

    def test_vectors_of_every_format_equal_the_reference(self, client: Any, model: str, reference: Reference) -> None:
        formats, expected = ["float", "int8", "uint8", "base64", "binary", "ubinary"], reference(TEXTS)
        answer = client.embed(model=model, texts=TEXTS, input_type="search_document", embedding_types=formats)
        found, rounded = answer.embeddings, np.array(answer.embeddings.int8)
        check_same(found.float_, expected)
        check_same([np.frombuffer(base64.b64decode(row), "<f4") for row in found.base64], expected)
        assert ((rounded * expected).sum(1) / np.linalg.norm(rounded, axis=1)).min() > 0.999
        assert np.array_equal(np.array(found.uint8) - 128, rounded)
        assert np.array_equal(found.ubinary, np.packbits(expected >= 0, axis=1))
        assert np.array_equal(np.array(found.binary) + 128, found.ubinary)
        assert answer.texts == TEXTS

    def test_a_query_gets_the_prompt_of_queries(self, client: Any, model: str, reference: Reference) -> None:
        found = client.embed(model=model, texts=["rain"], input_type="search_query", embedding_types=["float"])
        check_same(found.embeddings.float_, reference([QUERY + "rain"]))

    def test_the_older_protocol_works_too(self, url: str, model: str, reference: Reference) -> None:
        with httpx.Client(timeout=60) as transport:
            client = cohere.Client(api_key="none", base_url=url, httpx_client=transport)
            check_same(client.embed(texts=TEXTS, model=model).embeddings, reference(TEXTS))

    def test_an_unknown_model_is_an_error(self, client: Any) -> None:
        with pytest.raises(cohere.NotFoundError, match="is not served here"):
            client.embed(model="embed-v4.0", texts=["a"], input_type="search_query", embedding_types=["float"])
