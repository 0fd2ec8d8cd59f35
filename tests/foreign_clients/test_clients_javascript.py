"""JavaScript clients work with a running service if they are set up with the lines in docs."""

import json
import os
import re
import subprocess
from typing import Any

import numpy as np
import pytest
from client_programs import PAGE, check_same
from conftest import PATIENCE_S
from javascript import NODE, needs_node
from page import ROOT, table

pytest_plugins = ["client_fixtures"]

TEXTS = ["storm in europe", "market falls", "the rain " * 40]

_DATA = "found = (await client.embeddings.create({ model: MODEL, input: texts })).data.map((item) => item.embedding);"
_LANGCHAIN = "found = await embeddings.embedDocuments(texts);"
_LLAMA_INDEX = "found = await embeddings.getTextEmbeddings(texts);"
_CHROMA = "found = await embed.generate(texts);"
_AI = (
    'const { embedMany } = await import("ai");'
    "found = (await embedMany({ model: provider.textEmbeddingModel(MODEL), values: texts })).embeddings;"
)
_OLLAMA = (
    "for await (const part of await client.pull({ model: MODEL, stream: true })) console.log(part.status);"
    "found = (await client.embed({ model: MODEL, input: texts, dimensions: 4096 })).embeddings;"
)
_COHERE = (
    'const asked = { model: MODEL, texts, inputType: "classification", embeddingTypes: ["float"] };'
    "found = (await client.embed(asked)).embeddings.float;"
)
_VOYAGE = "found = (await client.embed({ model: MODEL, input: texts })).data.map((item) => item.embedding);"
_MISTRAL = (
    "console.log((await client.models.list()).data.length);"
    "const asked = { model: MODEL, inputs: texts, encodingFormat: 'float', outputDtype: 'float' };"
    "found = (await client.embeddings.create(asked)).data.map((item) => item.embedding);"
)
_HUGGING_FACE = "found = await client.featureExtraction({ inputs: texts });"

#: For each package, its imported names, and the code after the page's lines that puts the vectors into `found`.
PROGRAMS = {
    "openai": ("default: OpenAI", _DATA),
    "@langchain/openai": ("OpenAIEmbeddings", _LANGCHAIN),
    "@ai-sdk/openai": ("createOpenAI", _AI),
    "@ai-sdk/openai-compatible": ("createOpenAICompatible", _AI),
    "@llamaindex/openai": ("OpenAIEmbedding", _LLAMA_INDEX),
    "@chroma-core/openai": ("OpenAIEmbeddingFunction", _CHROMA),
    "ollama": ("Ollama", _OLLAMA),
    "@langchain/ollama": ("OllamaEmbeddings", _LANGCHAIN),
    "@llamaindex/ollama": ("OllamaEmbedding", _LLAMA_INDEX),
    "@chroma-core/ollama": ("OllamaEmbeddingFunction", _CHROMA),
    "cohere-ai": ("CohereClientV2", _COHERE),
    "@langchain/cohere": ("CohereEmbeddings", _LANGCHAIN),
    "@ai-sdk/cohere": ("createCohere", _AI),
    "voyageai": ("VoyageAIClient", _VOYAGE),
    "@mistralai/mistralai": ("Mistral", _MISTRAL),
    "@huggingface/inference": ("InferenceClient", _HUGGING_FACE),
    "@chroma-core/huggingface-server": ("HuggingfaceServerEmbeddingFunction", _CHROMA),
}

#: The code of each program before and after its lines.
BEFORE = """let found; const { MODEL, texts } = JSON.parse(process.env.ASKED);
const { CohereClient } = await import("cohere-ai");
"""
AFTER = 'process.stdout.write("\\n" + JSON.stringify(found) + "\\n", () => process.exit(0));'


def rows() -> dict[str, tuple[str, str]]:
    """Return the version and the lines of each package from the page."""
    found = {}
    for name, (lines, *_) in table(PAGE, "package").items():
        package, version = re.fullmatch(r"`([^`]+)` (\S+)", name).groups()  # type: ignore[union-attr]
        found[package] = version, "\n".join(re.findall(r"`([^`]+)`", lines))
    return found


def run(url: str, package: str, call: str, model: str) -> Any:
    """Let node run a package's lines and the call; return the final value of `found`."""
    folder = os.environ.get("TEST_JAVASCRIPT_CLIENTS") or pytest.skip("needs the packages of scripts/test-clients")
    lines = rows()[package][1].replace("http://localhost:8080", url)
    imported = f'const {{ {PROGRAMS[package][0]} }} = await import("{package}");'
    code = "\n".join([BEFORE, imported, lines, call, AFTER])
    variables = os.environ | {"ASKED": json.dumps({"MODEL": model, "texts": TEXTS})}
    command = [NODE, "--no-warnings", "--input-type=module", "--eval", code]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.wide
@needs_node
@pytest.mark.parametrize("package", PROGRAMS)
def test_the_clients_vectors_equal_shoals(served: Any, url: str, model: str, package: str) -> None:
    prompt = "query" if package == "@ai-sdk/cohere" else None  # this client says that each text is a query
    body = {"inputs": TEXTS, "prompt_name": prompt}
    expected = np.asarray(served.ask("POST", "/embed", body).body, np.float32)
    check_same(run(url, package, PROGRAMS[package][1], model), expected)


def test_the_page_lists_the_tested_versions() -> None:
    package = json.loads((ROOT / "tests/shared/clients/package.json").read_text("utf-8"))
    versions = {name: version for name, (version, _) in rows().items()}
    assert versions.items() <= package["dependencies"].items()
    assert versions.keys() == PROGRAMS.keys()
