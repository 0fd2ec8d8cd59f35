"""Options, lists of models, errors and patience of Python clients, which the page's programs do not show."""

import base64
from typing import Any

import numpy as np
import pytest
from client_reference import Reference, check_same

pytest_plugins = ["client_fixtures"]

openai = pytest.importorskip("openai")
tei_client = pytest.importorskip("tei_client")
hub = pytest.importorskip("huggingface_hub")
ollama = pytest.importorskip("ollama")
cohere = pytest.importorskip("cohere")
httpx = pytest.importorskip("httpx")

pytestmark = [pytest.mark.wide, pytest.mark.filterwarnings("ignore")]  # the clients' warnings do not matter here

TEXTS = ["storm in europe", "market falls", "the rain " * 40]


@pytest.mark.client("openai")
class TestOpenAI:
    @pytest.fixture
    def client(self, url: str) -> Any:
        """A client of the service."""
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            yield client

    def test_vectors_as_lists_of_numbers_may_be_shorter(self, client: Any, model: str, reference: Reference) -> None:
        answer = client.embeddings.create(model=model, input=TEXTS, dimensions=8, encoding_format="float", user="u")
        check_same([item.embedding for item in answer.data], reference(TEXTS)[:, :8])
        assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS)

    def test_models_are_listed_and_found(self, client: Any, model: str) -> None:
        (found,) = client.models.list().data
        assert (found.id, found.object, found.owned_by) == (model, "model", "shoal")
        assert client.models.retrieve(model) == found

    def test_an_unknown_model_is_not_found(self, client: Any) -> None:
        with pytest.raises(openai.NotFoundError, match="is not served here") as failure:
            client.embeddings.create(model="text-embedding-3-small", input="a")
        assert (failure.value.code, failure.value.type) == ("model_not_found", "not_found_error")

    @pytest.mark.parametrize(
        ("asked", "told"),
        [
            ({"input": "a", "dimensions": 33}, r"dimensions is 33: the vectors of .* have 32"),
            ({"input": [[15_339, 1_917]]}, "check_embedding_ctx_length=False"),
        ],
    )
    def test_wrong_input_is_a_bad_request(self, client: Any, model: str, asked: dict[str, Any], told: str) -> None:
        with pytest.raises(openai.BadRequestError, match=told):
            client.embeddings.create(model=model, **asked)

    def test_the_client_waits_and_tries_again_when_its_key_is_over_the_rate(
        self, limited: tuple[str, str], model: str, reference: Reference
    ) -> None:
        url, key = limited
        with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=5) as client:
            for text in TEXTS:
                check_same([client.embeddings.create(model=model, input=text).data[0].embedding], reference([text]))
        with openai.OpenAI(base_url=f"{url}/v1", api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
            client.embeddings.create(model=model, input="a")


@pytest.mark.client("huggingface_hub")
class TestHub:
    @pytest.fixture
    def client(self, url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
        """A client of the service, without the test suite's setting that forbids the network."""
        monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
        with hub.InferenceClient(model=url, provider="hf-inference") as client:
            yield client
        hub.close_session()

    def test_every_option_has_an_effect(self, client: Any, reference: Reference) -> None:
        check_same(client.feature_extraction(TEXTS[0], dimensions=8), reference(TEXTS[:1])[:, :8])
        check_same(client.feature_extraction("rain", prompt_name="query"), reference(["storm rain"]))
        loose = client.feature_extraction(TEXTS[0], normalize=False)
        assert np.linalg.norm(loose) != pytest.approx(1.0, abs=1e-3)
        check_same(loose, reference(TEXTS[:1]))
        left = client.feature_extraction(TEXTS[2] + "storm", truncate=True, truncation_direction="left")
        right = client.feature_extraction(TEXTS[2] + "storm", truncate=True, truncation_direction="right")
        assert not np.allclose(left, right)
        check_same(right, reference([TEXTS[2] + "storm"]))

    def test_without_truncation_a_text_that_is_too_long_is_refused(self, client: Any) -> None:
        with pytest.raises(hub.errors.HfHubHTTPError, match="more than the 48 tokens"):
            client.feature_extraction(TEXTS[2], truncate=False)

    def test_similarities_equal_the_cosines_of_the_reference(self, client: Any, reference: Reference) -> None:
        first, *others = reference(TEXTS)
        found = client.sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:])
        assert found == pytest.approx([first @ other for other in others], abs=1e-3)

    def test_the_endpoint_is_healthy_and_described(self, client: Any, model: str) -> None:
        assert client.health_check()
        assert client.get_endpoint_info()["model_id"] == model


@pytest.mark.client("tei-client")
class TestTeiClient:
    @pytest.fixture
    def client(self, url: str) -> Any:
        """A client of the service."""
        client = tei_client.HttpClient(url, timeout=60)
        yield client
        client.client.close()

    def test_a_query_gets_the_prompt_of_queries(self, client: Any, reference: Reference) -> None:
        check_same(client.embed("rain", prompt_name="query"), reference(["storm rain"]))

    def test_the_mean_of_token_vectors_equals_the_reference(self, client: Any, reference: Reference) -> None:
        means = [np.mean(tokens, axis=0) for tokens in client.embed_all(TEXTS[:2])]
        check_same(means, reference(TEXTS[:2]))

    def test_tokens_can_be_decoded_to_the_text(self, client: Any) -> None:
        (found,) = client.tokenize("storm in europe")
        assert [token.text for token in found.tokens] == ["[CLS]", "storm", "in", "europe", "[SEP]"]
        assert [token.start for token in found.tokens] == [None, 0, 6, 9, None]
        assert client.decode(found.get_ids()) == ["storm in europe"]
        assert client.decode([found.get_ids()], skip_special_tokens=False) == ["[CLS] storm in europe [SEP]"]
        assert client.prompt_names() == ["document", "query"]

    def test_the_service_is_healthy_and_described(self, client: Any, model: str) -> None:
        assert client.health()
        info = client.info()
        assert (info.server_model_id, info.server_model_metadata.pooling) == (model, "mean")


@pytest.mark.client("ollama")
class TestOllama:
    @pytest.fixture
    def client(self, url: str) -> Any:
        """A client of the service."""
        with ollama.Client(host=url) as client:
            yield client

    def test_dimensions_beyond_the_models_are_all(self, client: Any, model: str, reference: Reference) -> None:
        for dimensions in (8, 4_096):
            found = client.embed(model=model, input=TEXTS[0], dimensions=dimensions).embeddings
            check_same(found, reference(TEXTS[:1])[:, :dimensions])
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
        check_same(found.embeddings.float_, reference(["storm rain"]))

    def test_the_older_protocol_works_too(self, url: str, model: str, reference: Reference) -> None:
        with httpx.Client(timeout=60) as transport:
            client = cohere.Client(api_key="none", base_url=url, httpx_client=transport)
            check_same(client.embed(texts=TEXTS, model=model).embeddings, reference(TEXTS))

    def test_an_unknown_model_is_an_error(self, client: Any) -> None:
        with pytest.raises(cohere.NotFoundError, match="is not served here"):
            client.embed(model="embed-v4.0", texts=["a"], input_type="search_query", embedding_types=["float"])
