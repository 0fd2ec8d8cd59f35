"""Clients that rerank get the scores of Sentence Transformers' CrossEncoder from a running service."""

import importlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from client_programs import Older, lines_of

pytest_plugins = ["client_fixtures"]

httpx = pytest.importorskip("httpx")

pytestmark = [pytest.mark.wide, pytest.mark.filterwarnings("ignore")]  # the clients' warnings do not matter here

QUERY = "storm in europe"
TEXTS = ["market falls", "the storm rises", "rain and change " * 40, "", "a change of climate"]

#: Largest difference between two equal scores, which comes from rounding.
MAX_DIFFERENCE = 1e-3

#: A function that fails the test if a ranking, of numbers and scores of texts, has not the best texts in order.
CheckRanking = Callable[[list[tuple[int, float]]], None]


@pytest.fixture(scope="session")
def expected(reranker_source: Path, torch_reference: None) -> list[float]:
    """The scores of the texts that Sentence Transformers computes."""
    from sentence_transformers import CrossEncoder

    transformer = CrossEncoder(str(reranker_source), device="cpu", local_files_only=True)
    scores = [float(score) for score in transformer.predict([(QUERY, text) for text in TEXTS])]
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
def test_cohere(url: str, reranker: str, check_ranking: CheckRanking) -> None:
    cohere, asked = pytest.importorskip("cohere"), {"model": reranker, "query": QUERY}
    with httpx.Client(timeout=60) as transport:
        client, older = (
            getattr(cohere, name)(api_key="none", base_url=url, httpx_client=transport)
            for name in ("ClientV2", "Client")
        )
        titles = {"documents": [{"title": text} for text in TEXTS], "rank_fields": ["title"]}
        texts = older.rerank(**asked, documents=TEXTS, return_documents=True).results
        for found, size in (
            (client.rerank(**asked, documents=TEXTS).results, len(TEXTS)),
            (client.rerank(**asked, documents=TEXTS, top_n=2).results, 2),
            (older.rerank(**asked, **titles, return_documents=True).results, len(TEXTS)),
            (texts, len(TEXTS)),
        ):
            check_ranking([(item.index, item.relevance_score) for item in found])
            assert len(found) == size
    assert [item.document.text for item in texts] == [TEXTS[item.index] for item in texts]


@pytest.mark.client("infinity_client")
def test_infinity(url: str, reranker: str, check_ranking: CheckRanking) -> None:
    infinity_client = pytest.importorskip("infinity_client")
    rerank = importlib.import_module("infinity_client.api.default.rerank")
    shapes = importlib.import_module("infinity_client.models")
    with infinity_client.Client(base_url=url) as client:
        body = shapes.RerankInput(query=QUERY, documents=TEXTS, model=reranker, return_documents=True)
        found = rerank.sync(client=client, body=body)
    check_ranking([(item.index, item.relevance_score) for item in found.results])
    assert [item.document for item in found.results] == [TEXTS[item.index] for item in found.results]


@pytest.mark.client("llama-index-postprocessor-tei-rerank")
def test_llama_index(url: str, check_ranking: CheckRanking) -> None:
    client = "llama-index-postprocessor-tei-rerank"
    names = vars(pytest.importorskip("llama_index.postprocessor.tei_rerank")).copy()
    exec(lines_of(client).replace("http://localhost:8080", url), names)
    schema = importlib.import_module("llama_index.core.schema")
    nodes = [schema.NodeWithScore(node=schema.TextNode(text=text, id_=str(n))) for n, text in enumerate(TEXTS)]
    found = names["ranker"].postprocess_nodes(nodes, query_str=QUERY)
    check_ranking([(int(item.node.node_id), item.score) for item in found])
    assert len(found) == 3


@pytest.mark.client("huggingface-api-haystack")
@pytest.mark.parametrize("raw_scores", [False, True])
def test_haystack(url: str, raw_scores: bool, check_ranking: CheckRanking) -> None:
    rankers = pytest.importorskip("haystack_integrations.components.rankers.huggingface_api")
    haystack = importlib.import_module("haystack")
    ranker = rankers.HuggingFaceTEIRanker(url=url, raw_scores=raw_scores, token=None)
    right = rankers.TruncationDirection.RIGHT
    documents = [haystack.Document(content=text, id=str(n)) for n, text in enumerate(TEXTS)]
    found = ranker.run(query=QUERY, documents=documents, truncation_direction=right)["documents"]
    scores = np.array([item.score for item in found])
    scores = 1 / (1 + np.exp(-scores)) if raw_scores else scores
    check_ranking([(int(item.id), score) for item, score in zip(found, scores, strict=True)])


@pytest.mark.client("langchain-cohere")
def test_langchain(older: Older, url: str, reranker: str, check_ranking: CheckRanking) -> None:
    code = """
from langchain_cohere import CohereRerank
found = CohereRerank(cohere_api_key="none", base_url=url, model=reranker, top_n=3).rerank(texts, query)
"""
    found = older(code, url=url, reranker=reranker, query=QUERY, texts=TEXTS)
    check_ranking([(item["index"], item["relevance_score"]) for item in found])
    assert len(found) == 3


@pytest.mark.client("litellm")
@pytest.mark.parametrize("provider", ["cohere", "hosted_vllm", "huggingface", "infinity", "jina_ai", "voyage"])
def test_litellm(older: Older, url: str, reranker: str, check_ranking: CheckRanking, provider: str) -> None:
    code = "import litellm; found = litellm.rerank(**asked).results"
    place = {"model": f"{provider}/{reranker}", "api_base": url, "api_key": "none"}
    asked = {"query": QUERY, "documents": TEXTS, "top_n": 3, "return_documents": provider != "hosted_vllm"}
    found = older(code, asked=asked | place)
    check_ranking([(item["index"], item["relevance_score"]) for item in found])
    assert len(found) == 3
