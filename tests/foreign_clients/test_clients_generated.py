"""The OpenAPI document is suitable for generators of clients, and the generated clients work."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from conftest import TESTS
from flask.testing import FlaskClient
from javascript import NODE, needs_node

pytest_plugins = ["api_fixtures", "client_fixtures"]

#: Programs with the simplest calls, and the package.json that `scripts/test-clients` gives to npm.
PROGRAMS = TESTS / "shared/clients"

#: The folder into which npm installs the packages.
PACKAGES = Path(os.environ.get("TEST_JAVASCRIPT_CLIENTS", "/nowhere")) / "node_modules"

#: The generator that `scripts/test-clients` installs beside the Python that runs the tests.
GENERATOR = Path(sys.executable).with_name("openapi-python-client")


def test_each_operation_has_a_plain_id_and_no_field_a_default(api: FlaskClient) -> None:
    document = api.get("/openapi.json").get_json()
    ids = [about["operationId"] for methods in document["paths"].values() for about in methods.values()]
    assert [one for one in ids if not re.fullmatch("[a-z]+([A-Z][a-z]*|V[12])*", one)] == []
    named = {"jobStatus", "jobResult", "cancelJob", "embed", "search", "score", "submitJob", "openaiEmbeddings"}
    assert named | {"teiRerankV2"} <= set(ids)
    schemas = document["components"]["schemas"]
    fields = schemas["EmbedBody"]["properties"] | schemas["SearchBody"]["properties"]
    assert [name for name, field in fields.items() if "default" in field] == []
    assert fields["k"]["description"].endswith("Default: 5")
    bodies = ("EmbedBody", "SearchBody", "EmbeddingsBody")  # the description refuses unknown fields, like the routes
    assert [schemas[name].get("additionalProperties") for name in bodies] == [False] * 3


def generate(command: list[Any], folder: Path) -> str:
    """Run a command and return its output."""
    done = subprocess.run([f"{word}" for word in command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def saved(url: str, tmp_path: Path) -> Path:
    """A file with the OpenAPI document of a running service."""
    with urlopen(f"{url}/openapi.json") as answer:
        (tmp_path / "openapi.json").write_bytes(answer.read())
    return tmp_path / "openapi.json"


@pytest.mark.wide
@needs_node
@pytest.mark.skipif(not PACKAGES.exists(), reason="needs the packages of scripts/test-clients")
def test_a_generated_typescript_client_works(url: str, saved: Path, tmp_path: Path) -> None:
    programs = PACKAGES / ".bin"
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    shutil.copy(PROGRAMS / "package.json", tmp_path)
    shutil.copy(PROGRAMS / "call.ts", tmp_path)
    generate([programs / "openapi-typescript", saved, "-o", "shoal.d.ts"], tmp_path)
    options = "--strict --skipLibCheck --module preserve --target es2022 --types node --outDir ."
    generate([programs / "tsc", *options.split(), "call.ts"], tmp_path)
    status, num_scores, id_length = json.loads(generate([NODE, "call.js", url], tmp_path))
    assert (status, num_scores, id_length > 0) == (200, 1, True)


@pytest.mark.wide
@pytest.mark.skipif(not GENERATOR.exists(), reason="needs openapi-python-client, which scripts/test-clients installs")
def test_a_generated_python_client_works(url: str, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text("post_hooks: []\n")
    options = ["--path", saved, "--meta", "none", "--output-path", "generated", "--config", "config.yml"]
    generate([GENERATOR, "generate", *options], tmp_path)
    shutil.copy(PROGRAMS / "call.py", tmp_path)
    status, num_scores, id_length = json.loads(generate([sys.executable, "call.py", url], tmp_path))
    assert (status, num_scores, id_length > 0) == (200, 1, True)
