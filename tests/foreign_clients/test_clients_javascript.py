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
_AI = "found = (await embedMany({ model: provider.textEmbeddingModel(MODEL), values: texts })).embeddings;"
_COHERE = 'client.embed({ model: MODEL, texts, inputType: "classification", embeddingTypes: ["float"] })'

#: For each package, the imports of a program, and the code after the page's lines that puts the vectors into `found`.
PROGRAMS = {
    "openai": ('import OpenAI from "openai";', _DATA),
    "@langchain/openai": ('import { OpenAIEmbeddings } from "@langchain/openai";', _LANGCHAIN),
    "@ai-sdk/openai": ('import { embedMany } from "ai"; import { createOpenAI } from "@ai-sdk/openai";', _AI),
    "@ai-sdk/openai-compatible": (
        'import { embedMany } from "ai"; import { createOpenAICompatible } from "@ai-sdk/openai-compatible";',
        _AI,
    ),
    "@llamaindex/openai": ('import { OpenAIEmbedding } from "@llamaindex/openai";', _LLAMA_INDEX),
    "@chroma-core/openai": ('import { OpenAIEmbeddingFunction } from "@chroma-core/openai";', _CHROMA),
    "ollama": (
        'import { Ollama } from "ollama";',
        "for await (const part of await client.pull({ model: MODEL, stream: true })) console.log(part.status);"
        "found = (await client.embed({ model: MODEL, input: texts, dimensions: 4096 })).embeddings;",
    ),
    "@langchain/ollama": ('import { OllamaEmbeddings } from "@langchain/ollama";', _LANGCHAIN),
    "@llamaindex/ollama": ('import { OllamaEmbedding } from "@llamaindex/ollama";', _LLAMA_INDEX),
    "@chroma-core/ollama": ('import { OllamaEmbeddingFunction } from "@chroma-core/ollama";', _CHROMA),
    "cohere-ai": ('import { CohereClientV2 } from "cohere-ai";', f"found = (await {_COHERE}).embeddings.float;"),
    "@langchain/cohere": (
        'import { CohereClient } from "cohere-ai"; import { CohereEmbeddings } from "@langchain/cohere";',
        _LANGCHAIN,
    ),
    "@ai-sdk/cohere": ('import { embedMany } from "ai"; import { createCohere } from "@ai-sdk/cohere";', _AI),
    "voyageai": (
        'import { VoyageAIClient } from "voyageai";',
        "found = (await client.embed({ model: MODEL, input: texts })).data.map((item) => item.embedding);",
    ),
    "@mistralai/mistralai": (
        'import { Mistral } from "@mistralai/mistralai";',
        "console.log((await client.models.list()).data.length);"
        "const asked = { model: MODEL, inputs: texts, encodingFormat: 'float', outputDtype: 'float' };"
        "found = (await client.embeddings.create(asked)).data.map((item) => item.embedding);",
    ),
    "@huggingface/inference": (
        'import { InferenceClient } from "@huggingface/inference";',
        "found = await client.featureExtraction({ inputs: texts });",
    ),
    "@chroma-core/huggingface-server": (
        'import { HuggingfaceServerEmbeddingFunction } from "@chroma-core/huggingface-server";',
        _CHROMA,
    ),
}

#: The code of each program before and after its lines.
BEFORE = "let found; const { MODEL, texts } = JSON.parse(process.env.ASKED);"
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
    code = "\n".join([PROGRAMS[package][0], BEFORE, lines, call, AFTER])
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
