"""The lines in docs for each Python client work with a running service."""

import os
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest
from client_programs import PAGE, lines_of, run
from client_reference import Reference, check_same
from page import table

pytest_plugins = ["client_fixtures"]

pytestmark = pytest.mark.wide

pytest.importorskip("openai")

TEXTS = ["storm in europe", "market falls"]

_EMBEDDINGS = "found = embeddings.embed_documents(texts)"
_BATCH = "found = embeddings.get_text_embedding_batch(texts)"
_DOCUMENT = """
from haystack import Document
found = [each.embedding for each in embedder.run([Document(content=text) for text in texts])["documents"]]
"""

#: For each client, the code before its lines for Shoal, and the code after them that puts the vectors into `found`.
PROGRAMS = {
    "openai": (
        "from openai import OpenAI",
        "found = [item.embedding for item in client.embeddings.create(model=MODEL, input=texts).data]",
    ),
    "langchain-openai": ("from langchain_openai import OpenAIEmbeddings", _EMBEDDINGS),
    "llama-index-embeddings-openai-like": (
        "from llama_index.embeddings.openai_like import OpenAILikeEmbedding",
        _BATCH,
    ),
    "haystack-ai": (
        "from haystack.components.embedders import OpenAIDocumentEmbedder; from haystack.utils import Secret",
        _DOCUMENT,
    ),
    "litellm": ("import litellm", "found = [item['embedding'] for item in answer.data]"),
    "huggingface_hub": (
        "from huggingface_hub import InferenceClient",
        "found = client.feature_extraction(texts)",
    ),
    "langchain-huggingface": (
        "from huggingface_hub import InferenceClient; from langchain_huggingface import HuggingFaceEndpointEmbeddings",
        _EMBEDDINGS,
    ),
    "huggingface-api-haystack": (
        "from haystack_integrations.components.embedders.huggingface_api import HuggingFaceAPIDocumentEmbedder",
        _DOCUMENT,
    ),
    "tei-client": ("from tei_client import HttpClient", "found = [list(row) for row in client.embed(texts)]"),
    "llama-index-embeddings-text-embeddings-inference": (
        "from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference",
        _BATCH,
    ),
    "infinity_client": (
        "from infinity_client import Client; from infinity_client.api.default import embeddings; "
        "from infinity_client.models import OpenAIEmbeddingInputText as Input",
        "found = [x.embedding for x in embeddings.sync(client=client, body=Input(input_=texts, model=MODEL)).data]",
    ),
    "ollama": ("from ollama import Client", "found = client.embed(model=MODEL, input=texts).embeddings"),
    "langchain-ollama": ("from langchain_ollama import OllamaEmbeddings", _EMBEDDINGS),
    "cohere": (
        "from cohere import ClientV2",
        "found = client.embed(model=MODEL, texts=texts, input_type='search_document', "
        "embedding_types=['float']).embeddings.float_",
    ),
    "langchain-cohere": ("from langchain_cohere import CohereEmbeddings", _EMBEDDINGS),
    "chromadb": (
        "from chromadb.utils.embedding_functions import HuggingFaceEmbeddingServer",
        "found = [row.tolist() for row in embed(texts)]",
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
    check_same(run(python_of(client), code, texts=TEXTS, MODEL=model), reference(TEXTS))


def test_every_client_of_the_page_has_a_program() -> None:
    reranks = "llama-index-postprocessor-tei-rerank"  # test_clients_rerank.py runs its lines
    assert PROGRAMS.keys() | {reranks} == {name.strip("`") for name in table(PAGE, "client")}
