"""Clients of Text Embeddings Inference get the vectors of Sentence Transformers from a running service."""

import asyncio
from typing import Any

import numpy as np
import pytest
from client_reference import Reference, check_same

pytest_plugins = ["client_fixtures"]

tei_client = pytest.importorskip("tei_client")
hub = pytest.importorskip("huggingface_hub")

pytestmark = [pytest.mark.wide, pytest.mark.filterwarnings("ignore")]  # the clients' warnings do not matter here

TEXTS = ["storm in europe", "market falls", "the rain " * 40]


@pytest.mark.client("huggingface_hub")
class TestHub:
    @pytest.fixture
    def client(self, url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
        """A client of the service, without the test suite's setting that forbids the network."""
        monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
        with hub.InferenceClient(model=url, provider="hf-inference") as client:
            yield client
        hub.close_session()

    def test_the_asynchronous_client_gets_the_same_vectors(
        self, url: str, reference: Reference, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def features() -> Any:
            async with hub.AsyncInferenceClient(model=url, provider="hf-inference") as client:
                return await client.feature_extraction(TEXTS)

        monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
        check_same(asyncio.run(features()), reference(TEXTS))

    def test_features_equal_the_reference(self, client: Any, reference: Reference) -> None:
        check_same(client.feature_extraction(TEXTS[0]), reference(TEXTS[:1]))
        check_same(client.feature_extraction(TEXTS, truncate=True, truncation_direction="right"), reference(TEXTS))

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

    def test_vectors_equal_the_reference(self, client: Any, reference: Reference) -> None:
        check_same(client.embed(TEXTS, truncate=True), reference(TEXTS))
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
