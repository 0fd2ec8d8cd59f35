"""Every route of the OpenAPI document, tested by schemathesis at a running service.

It makes good and bad requests from the document, and follows jobs from their submit. No answer may be a defect, and the
document must describe every answer. The test suite runs a few cases for each route, the same ones every time.
`scripts/fuzz` runs many more, with a case for every limit and type in the document.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE_S, TESTS, RedisServer, wait_until
from fuzzing import FACTOR, RAN
from service import Service, service

from shoal_api.access import api_keys

pytestmark = [
    pytest.mark.wide,
    pytest.mark.skipif(find_spec("schemathesis") is None, reason="schemathesis is not installed"),
]

#: Cases for each route and each unit of `FACTOR`. The test suite runs fewer, and always the same ones.
DRAWN_PER_ROUTE = 1 if FACTOR == 1 else 2

HERE = TESTS / "shared/cases"


@pytest.fixture(params=["with keys"] if FACTOR == 1 else ["with keys", "without keys"])
def running(
    request: pytest.FixtureRequest,
    redis_server: RedisServer,
    tiny_source: Path,
    tiny_model: Path,
    reranker_source: Path,
    home: Path,
    index_folder: Path,
    tmp_path: Path,
) -> Iterator[tuple[Service, list[str]]]:
    """Run a service that speaks all protocols; return it with the arguments for schemathesis to send its key."""
    settings: dict[str, Any] = {"redis_url": redis_server.url, "key_prefix": "described", "pool": "default"}
    settings |= {"model": tiny_source, "home": home, "precision": "f32", "threads": 1, "indexes": index_folder}
    settings |= {"reranker": reranker_source, "token_ids": "own", "request_timeout_s": PATIENCE_S}
    arguments = []
    if request.param == "with keys":
        secret = api_keys.add(tmp_path / "keys", "fuzz", "admin", "")
        settings["api_keys_file"] = tmp_path / "keys"
        arguments = ["--header", f"Authorization: Bearer {secret}"]
    with service(tmp_path, **settings) as started:
        wait_until(started.is_ready)
        yield started, arguments


def test_described_service(running: tuple[Service, list[str]], tmp_path: Path, pytestconfig: pytest.Config) -> None:
    service, arguments = running
    seed = pytestconfig.getoption("hypothesis_seed", None)
    schemathesis, config = Path(sys.executable).with_name("schemathesis"), HERE / "schemathesis.toml"
    url = f"http://127.0.0.1:{service.port}/openapi.json"
    command = [f"{schemathesis}", "--config-file", f"{config}", "run", url]
    command += [*arguments, *(["--generation-deterministic"] if seed is None else ["--seed", str(seed)])]
    command += ["--phases", "examples,fuzzing,stateful" + (",coverage" if FACTOR > 1 else "")]
    command += ["--max-examples", str(DRAWN_PER_ROUTE * FACTOR), "--request-timeout", f"{PATIENCE_S}", "--no-color"]
    environment = os.environ | {"PYTHONPATH": f"{HERE}"}  # schemathesis imports its hooks from here
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (num_cases,) = re.findall(r"(\d+) generated", done.stdout)
    RAN["described service"] += int(num_cases)
