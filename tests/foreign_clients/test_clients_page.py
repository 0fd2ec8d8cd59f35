"""The lines in docs for each Python client work with a running service."""

import os
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest
from client_programs import PAGE, Reference, check_same, lines_of, run
from page import table

pytest_plugins = ["client_fixtures"]

pytestmark = pytest.mark.wide

pytest.importorskip("openai")

TEXTS = ["storm in europe", "market falls"]

_PAIRS = "found = [*zip(texts, {documents}), (texts[0], {query})]"
_LANGCHAIN = _PAIRS.format(documents="embeddings.embed_documents(texts)", query="embeddings.embed_query(texts[0])")
_LLAMA_INDEX = _PAIRS.format(
    documents="embeddings.get_text_embedding_batch(texts)", query="embeddings.get_query_embedding(texts[0])"
)
_HAYSTACK = "from haystack import Document\n" + _PAIRS.format(
    documents="[each.embedding for each in embedder.run([Document(content=text) for text in texts])['documents']]",
    query="{embedder}.run(texts[0])['embedding']",
)

#: For each client, the code before its lines for Shoal, and the code after them: `found` has pairs of text and vector.
PROGRAMS = {
    "openai": (
        "from openai import OpenAI",
        "found = zip(texts, [item.embedding for item in client.embeddings.create(model=MODEL, input=texts).data])",
    ),
    "langchain-openai": ("from langchain_openai import OpenAIEmbeddings", _LANGCHAIN),
    "llama-index-embeddings-openai-like": (
        "from llama_index.embeddings.openai_like import OpenAILikeEmbedding",
        _LLAMA_INDEX,
    ),
    "haystack-ai": (
        "from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder\n"
        "from haystack.utils import Secret",
        _HAYSTACK.format(
            embedder="OpenAITextEmbedder(api_base_url=URL + '/v1', api_key=Secret.from_token('none'), model=MODEL)"
        ),
    ),
    "litellm": ("import litellm", "found = zip(texts, [item['embedding'] for item in answer.data])"),
    "huggingface_hub": (
        "from huggingface_hub import InferenceClient",
        "found = zip(texts, client.feature_extraction(texts))",
    ),
    "langchain-huggingface": (
        "import asyncio; from huggingface_hub import AsyncInferenceClient, InferenceClient\n"
        "from langchain_huggingface import HuggingFaceEndpointEmbeddings",
        _LANGCHAIN + "\nembeddings.async_client = AsyncInferenceClient(model=URL, provider='hf-inference')\n"
        "found += zip(texts, asyncio.run(embeddings.aembed_documents(texts)))",
    ),
    "huggingface-api-haystack": (
        "from haystack_integrations.components.embedders.huggingface_api import *",
        _HAYSTACK.format(
            embedder="HuggingFaceAPITextEmbedder(api_type='text_embeddings_inference', api_params={'url': URL})"
        ),
    ),
    "tei-client": ("from tei_client import HttpClient", "found = [(text, [*client.embed(text)[0]]) for text in texts]"),
    "llama-index-embeddings-text-embeddings-inference": (
        "from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference",
        _LLAMA_INDEX,
    ),
    "infinity_client": (
        "from infinity_client import Client; from infinity_client.api.default import embeddings, models\n"
        "from infinity_client.models import OpenAIEmbeddingInputText as Input",
        "body = Input(input_=texts, model=MODEL)\n"
        "found = zip(texts, [item.embedding for item in embeddings.sync(client=client, body=body).data])\n"
        "served = models.sync(client=client).data[0]\n"
        "assert (served.id, served.stats['queue_absolute']) == (MODEL, 0)",
    ),
    "ollama": ("from ollama import Client", "found = zip(texts, client.embed(model=MODEL, input=texts).embeddings)"),
    "langchain-ollama": ("from langchain_ollama import OllamaEmbeddings", _LANGCHAIN),
    "cohere": (
        "from cohere import ClientV2",
        "answer = client.embed(model=MODEL, texts=texts, input_type='search_document', embedding_types=['float'])\n"
        "found = zip(texts, answer.embeddings.float_)",
    ),
    "langchain-cohere": (
        "from langchain_cohere import CohereEmbeddings",
        _LANGCHAIN.replace("(texts[0], ", "('storm ' + texts[0], "),  # the tiny model's prompt for queries
    ),
    "chromadb": (
        "import cohere; from chromadb.utils.embedding_functions import *",
        "of_cohere = CohereEmbeddingFunction(api_key='none', model_name=MODEL)\n"
        "of_cohere.client = cohere.Client(api_key='none', base_url=URL)\n"
        "of_openai = OpenAIEmbeddingFunction(api_key='none', api_base=URL + '/v1', model_name=MODEL)\n"
        "functions = [embed, of_openai, of_cohere, OllamaEmbeddingFunction(url=URL, model_name=MODEL)]\n"
        "found = [pair for each in functions for pair in zip(texts, each(texts))]",
    ),
}


def python_of(client: str) -> str:
    """Return the Python in which the client is installed; skip the test if there is none."""
    try:
        version(client)
    except PackageNotFoundError:
        return os.environ.get("TEST_OLDER_CLIENTS") or pytest.skip("needs the environment of scripts/test-clients")
    return sys.executable


@pytest.mark.parametrize("client", [pytest.param(client, marks=pytest.mark.client(client)) for client in PROGRAMS])
def test_the_lines_of_the_page_work(url: str, model: str, reference: Reference, client: str) -> None:
    before, after = PROGRAMS[client]
    code = "\n".join([before, lines_of(client).replace("http://localhost:8080", url), after])
    found = run(python_of(client), code + "\nfound = [*found]", texts=TEXTS, MODEL=model, URL=url)
    check_same([vector for _, vector in found], reference([text for text, _ in found]))
    assert len(found) >= len(TEXTS)


def test_every_client_of_the_page_has_a_program() -> None:
    reranks = "llama-index-postprocessor-tei-rerank"  # test_clients_python.py runs its lines
    assert PROGRAMS.keys() | {reranks} == {name.strip("`") for name in table(PAGE, "client")}
