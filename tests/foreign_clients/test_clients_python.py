"""Options, lists of models, errors, patience and reranks of Python clients, which the page's programs do not show."""

import base64
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client_programs import Older, Reference, check_same, lines_of

pytest_plugins = ["client_fixtures"]

openai = pytest.importorskip("openai")
tei_client = pytest.importorskip("tei_client")
hub = pytest.importorskip("huggingface_hub")
ollama = pytest.importorskip("ollama")
cohere = pytest.importorskip("cohere")
httpx = pytest.importorskip("httpx")

pytestmark = [pytest.mark.wide, pytest.mark.filterwarnings("ignore")]  # the clients' warnings do not matter here

TEXTS = ["storm in europe", "market falls", "the rain " * 40]


@pytest.fixture
def transport() -> Any:
    """A connection for Cohere's clients."""
    with httpx.Client(timeout=60) as transport:
        yield transport


@pytest.mark.client("openai")
def test_openai(url: str, model: str, reference: Reference) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answer = client.embeddings.create(model=model, input=TEXTS, dimensions=8, encoding_format="float", user="u")
        check_same([item.embedding for item in answer.data], reference(TEXTS)[:, :8])
        assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS)
        (found,) = client.models.list().data
        assert (found.id, found.object, found.owned_by) == (model, "model", "shoal")
        assert client.models.retrieve(model) == found
        with pytest.raises(openai.NotFoundError, match="is not served here") as failure:
            client.embeddings.create(model="text-embedding-3-small", input="a")
        assert (failure.value.code, failure.value.type) == ("model_not_found", "not_found_error")
        asked: dict[str, Any] = {"input": "a", "dimensions": 33}
        with pytest.raises(openai.BadRequestError, match=r"dimensions is 33: the vectors of .* have 32"):
            client.embeddings.create(model=model, **asked)


@pytest.mark.client("openai")
def test_openais_client_waits_past_the_rate_of_its_key(
    limited: tuple[str, str], model: str, reference: Reference
) -> None:
    url, key = limited
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=5) as client:
        for text in TEXTS:
            check_same([client.embeddings.create(model=model, input=text).data[0].embedding], reference([text]))
    with openai.OpenAI(base_url=f"{url}/v1", api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.embeddings.create(model=model, input="a")


@pytest.mark.client("huggingface_hub")
def test_hugging_face(url: str, model: str, reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)  # the test suite's setting forbids the network
    with hub.InferenceClient(model=url, provider="hf-inference") as client:
        check_same(client.feature_extraction(TEXTS[0], dimensions=8), reference(TEXTS[:1])[:, :8])
        check_same(client.feature_extraction("rain", prompt_name="query"), reference(["storm rain"]))
        loose = client.feature_extraction(TEXTS[0], normalize=False)
        assert np.linalg.norm(loose) != pytest.approx(1.0, abs=1e-3)
        check_same(loose, reference(TEXTS[:1]))
        left, right = (
            client.feature_extraction(TEXTS[2] + "storm", truncate=True, truncation_direction=side)
            for side in ("left", "right")
        )
        assert not np.allclose(left, right)
        check_same(right, reference([TEXTS[2] + "storm"]))
        with pytest.raises(hub.errors.HfHubHTTPError, match="more than the 48 tokens"):
            client.feature_extraction(TEXTS[2], truncate=False)
        first, *others = reference(TEXTS)
        found = client.sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:])
        assert found == pytest.approx([first @ other for other in others], abs=1e-3)
        assert client.health_check()
        assert client.get_endpoint_info()["model_id"] == model
    hub.close_session()


@pytest.mark.client("tei-client")
def test_text_embeddings_inference(url: str, model: str, reference: Reference) -> None:
    client = tei_client.HttpClient(url, timeout=60)
    check_same(client.embed("rain", prompt_name="query"), reference(["storm rain"]))
    means = [np.mean(tokens, axis=0) for tokens in client.embed_all(TEXTS[:2])]
    check_same(means, reference(TEXTS[:2]))
    (found,) = client.tokenize("storm in europe")
    assert [token.text for token in found.tokens] == ["[CLS]", "storm", "in", "europe", "[SEP]"]
    assert [token.start for token in found.tokens] == [None, 0, 6, 9, None]
    assert client.decode(found.get_ids()) == ["storm in europe"]
    assert client.decode([found.get_ids()], skip_special_tokens=False) == ["[CLS] storm in europe [SEP]"]
    assert client.prompt_names() == ["document", "query"]
    assert client.health()
    info = client.info()
    assert (info.server_model_id, info.server_model_metadata.pooling) == (model, "mean")
    client.client.close()


@pytest.mark.client("ollama")
def test_ollama(url: str, model: str, reference: Reference) -> None:
    with ollama.Client(host=url) as client:
        for dimensions in (8, 4_096):
            found = client.embed(model=model, input=TEXTS[0], dimensions=dimensions).embeddings
            check_same(found, reference(TEXTS[:1])[:, :dimensions])
        check_same([client.embeddings(model=model, prompt=TEXTS[0]).embedding], reference(TEXTS[:1]))
        assert client.pull(model).status == "success"
        assert [part.status for part in client.pull("MODEL:latest", stream=True)] == ["success"]
        assert [found.model for found in client.list().models] == [model, "model"]
        assert [found.model for found in client.ps().models] == [model]
        assert client.show(model).capabilities == ["embedding"]
        for ask in (client.pull, lambda name: client.embed(model=name, input="a")):
            with pytest.raises(ollama.ResponseError, match="is not served here"):
                ask("nomic-embed-text")


@pytest.mark.client("cohere")
def test_cohere(url: str, transport: Any, model: str, reference: Reference) -> None:
    client = cohere.ClientV2(api_key="none", base_url=url, httpx_client=transport)
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
    query: dict[str, Any] = {"texts": ["rain"], "input_type": "search_query", "embedding_types": ["float"]}
    check_same(client.embed(model=model, **query).embeddings.float_, reference(["storm rain"]))
    with pytest.raises(cohere.NotFoundError, match="is not served here"):
        client.embed(model="embed-v4.0", **query)
    older = cohere.Client(api_key="none", base_url=url, httpx_client=transport)
    check_same(older.embed(texts=TEXTS, model=model).embeddings, expected)


@pytest.mark.client("litellm")
@pytest.mark.parametrize(
    ("provider", "path", "more"),
    [
        ("openai", "/v1", {"encoding_format": "float"}),
        ("hosted_vllm", "/v1", {"dimensions": 8}),
        ("infinity", "", {}),
        ("ollama", "", {}),
        *(("cohere", path, {"input_type": "search_document"}) for path in ("/v2/embed", "")),
        ("voyage", "/v1", {"dimensions": 8}),
        ("jina_ai", "/v1", {}),
        ("huggingface", "/embed", {"input_type": "embed"}),
    ],
)
def test_litellm(
    older: Older, url: str, model: str, reference: Reference, provider: str, path: str, more: dict[str, Any]
) -> None:
    place = {"model": f"{provider}/{model}", "api_base": url + path, "api_key": "none"}
    code = "import litellm; found = [item['embedding'] for item in litellm.embedding(**asked).data]"
    found = older(code, asked={"input": TEXTS, **place, **more})
    check_same(found, reference(TEXTS)[:, : more.get("dimensions")])
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(len(TEXTS)), abs=1e-5)


QUERY = "storm in europe"
RANKED = ["market falls", "the storm rises", "rain and change " * 40, "", "a change of climate"]

#: Largest difference between two equal scores, which comes from rounding.
MAX_DIFFERENCE = 1e-3

#: A function that fails the test if a ranking, as numbers and scores of texts, lacks the best texts in order.
CheckRanking = Callable[[list[tuple[int, float]]], None]


@pytest.fixture(scope="session")
def expected(reranker_source: Path, torch_reference: None) -> list[float]:
    """The scores of the texts that Sentence Transformers computes."""
    from sentence_transformers import CrossEncoder

    transformer = CrossEncoder(str(reranker_source), device="cpu", local_files_only=True)
    scores = [float(score) for score in transformer.predict([(QUERY, text) for text in RANKED])]
    assert np.diff(sorted(scores)).min() > 2 * MAX_DIFFERENCE
    return scores


@pytest.fixture
def check_ranking(expected: list[float]) -> CheckRanking:
    """A function that compares a ranking with the expected scores."""

    def check(found: list[tuple[int, float]]) -> None:
        best = [int(n) for n in np.argsort([-score for score in expected], kind="stable")]
        assert [n for n, _ in found] == best[: len(found)]
        assert [score for _, score in found] == pytest.approx([expected[n] for n, _ in found], abs=MAX_DIFFERENCE)

    return check


@pytest.fixture
def reranker(reranker_source: Path) -> str:
    """The name of the served reranker."""
    return str(reranker_source)


@pytest.mark.client("cohere")
def test_cohere_reranks(url: str, reranker: str, check_ranking: CheckRanking) -> None:
    cohere, asked = pytest.importorskip("cohere"), {"model": reranker, "query": QUERY}
    with httpx.Client(timeout=60) as transport:
        client, older = (
            getattr(cohere, name)(api_key="none", base_url=url, httpx_client=transport)
            for name in ("ClientV2", "Client")
        )
        titles = {"documents": [{"title": text} for text in RANKED], "rank_fields": ["title"]}
        texts = older.rerank(**asked, documents=RANKED, return_documents=True).results
        for found, size in (
            (client.rerank(**asked, documents=RANKED).results, len(RANKED)),
            (client.rerank(**asked, documents=RANKED, top_n=2).results, 2),
            (older.rerank(**asked, **titles, return_documents=True).results, len(RANKED)),
            (texts, len(RANKED)),
        ):
            check_ranking([(item.index, item.relevance_score) for item in found])
            assert len(found) == size
    assert [item.document.text for item in texts] == [RANKED[item.index] for item in texts]


@pytest.mark.client("infinity_client")
def test_infinity_reranks(url: str, reranker: str, check_ranking: CheckRanking) -> None:
    infinity_client = pytest.importorskip("infinity_client")
    rerank = importlib.import_module("infinity_client.api.default.rerank")
    shapes = importlib.import_module("infinity_client.models")
    with infinity_client.Client(base_url=url) as client:
        body = shapes.RerankInput(query=QUERY, documents=RANKED, model=reranker, return_documents=True)
        found = rerank.sync(client=client, body=body)
    check_ranking([(item.index, item.relevance_score) for item in found.results])
    assert [item.document for item in found.results] == [RANKED[item.index] for item in found.results]


@pytest.mark.client("llama-index-postprocessor-tei-rerank")
def test_llama_index_reranks(url: str, check_ranking: CheckRanking) -> None:
    client = "llama-index-postprocessor-tei-rerank"
    names = vars(pytest.importorskip("llama_index.postprocessor.tei_rerank")).copy()
    exec(lines_of(client).replace("http://localhost:8080", url), names)
    schema = importlib.import_module("llama_index.core.schema")
    nodes = [schema.NodeWithScore(node=schema.TextNode(text=text, id_=str(n))) for n, text in enumerate(RANKED)]
    found = names["ranker"].postprocess_nodes(nodes, query_str=QUERY)
    check_ranking([(int(item.node.node_id), item.score) for item in found])
    assert len(found) == 3


@pytest.mark.client("huggingface-api-haystack")
@pytest.mark.parametrize("raw_scores", [False, True])
def test_haystack_reranks(url: str, raw_scores: bool, check_ranking: CheckRanking) -> None:
    rankers = pytest.importorskip("haystack_integrations.components.rankers.huggingface_api")
    haystack = importlib.import_module("haystack")
    ranker = rankers.HuggingFaceTEIRanker(url=url, raw_scores=raw_scores, token=None)
    right = rankers.TruncationDirection.RIGHT
    documents = [haystack.Document(content=text, id=str(n)) for n, text in enumerate(RANKED)]
    found = ranker.run(query=QUERY, documents=documents, truncation_direction=right)["documents"]
    scores = np.array([item.score for item in found])
    scores = 1 / (1 + np.exp(-scores)) if raw_scores else scores
    check_ranking([(int(item.id), score) for item, score in zip(found, scores, strict=True)])


@pytest.mark.client("langchain-cohere")
def test_langchain_reranks(older: Older, url: str, reranker: str, check_ranking: CheckRanking) -> None:
    code = """
from langchain_cohere import CohereRerank
found = CohereRerank(cohere_api_key="none", base_url=url, model=reranker, top_n=3).rerank(texts, query)
"""
    found = older(code, url=url, reranker=reranker, query=QUERY, texts=RANKED)
    check_ranking([(item["index"], item["relevance_score"]) for item in found])
    assert len(found) == 3


@pytest.mark.client("litellm")
@pytest.mark.parametrize("provider", ["cohere", "hosted_vllm", "huggingface", "infinity", "jina_ai", "voyage"])
def test_litellm_reranks(older: Older, url: str, reranker: str, check_ranking: CheckRanking, provider: str) -> None:
    code = "import litellm; found = litellm.rerank(**asked).results"
    place = {"model": f"{provider}/{reranker}", "api_base": url, "api_key": "none"}
    asked = {"query": QUERY, "documents": RANKED, "top_n": 3, "return_documents": provider != "hosted_vllm"}
    found = older(code, asked=asked | place)
    check_ranking([(item["index"], item["relevance_score"]) for item in found])
    assert len(found) == 3
