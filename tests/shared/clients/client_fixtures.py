"""Fixtures of the tests with other projects' clients: a running service, and the expected vectors."""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from api_process import running_api
from client_programs import Older, Reference, run
from conftest import RedisServer, wait_until
from numpy.typing import NDArray
from service import Service, service

from shoal_api.access import api_keys

#: The skipped tests of other projects' clients.
_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that was skipped because its client is not installed."""
    if report.skipped and "client" in report.keywords:
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run of scripts/test-clients if a test was skipped."""
    if os.environ.get("TEST_OLDER_CLIENTS") and _skipped:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def served_settings(redis_server: RedisServer, tiny_source: Path, reranker_source: Path, home: Path) -> dict[str, Any]:
    """The settings of the service that clients talk to."""
    pool = {"redis_url": redis_server.url, "key_prefix": "clients", "pool": "tiny"}
    return pool | {"model": tiny_source, "reranker": reranker_source, "home": home, "precision": "f32", "threads": 1}


@pytest.fixture(scope="session")
def served(served_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service, once it is ready."""
    with service(tmp_path_factory.mktemp("served"), **served_settings) as started:
        wait_until(started.is_ready)
        yield started


@pytest.fixture(scope="session")
def url(served: Service) -> str:
    """The URL of the service."""
    return f"http://127.0.0.1:{served.port}"


@pytest.fixture(scope="session")
def model(tiny_source: Path) -> str:
    """The name of the model that is served."""
    return str(tiny_source)


@pytest.fixture
def limited(served: Service, served_settings: dict[str, Any], tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The URL of a second API of the service, and a key of that API with a rate of one request a second."""
    key = api_keys.add(tmp_path / "keys", "slow", "user", "1/second")
    with running_api(tmp_path / "log", **served_settings, api_keys_file=tmp_path / "keys") as api:
        yield f"http://127.0.0.1:{api.port}", key
        assert api.process.terminate() == 0, api.process.output


@pytest.fixture(scope="session")
def reference(tiny_source: Path, torch_reference: None) -> Reference:
    """Sentence Transformers on the same model."""
    from sentence_transformers import SentenceTransformer

    transformer = SentenceTransformer(str(tiny_source), device="cpu")

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        return np.asarray(transformer.encode(list(texts), normalize_embeddings=True), np.float32)

    return encode


@pytest.fixture(scope="session")
def older() -> Older:
    """Return a function that runs older clients. Skip the test if `TEST_OLDER_CLIENTS` names no Python with them."""
    python = os.environ.get("TEST_OLDER_CLIENTS")
    if not python:
        pytest.skip("needs the environment of scripts/test-clients")
    return partial(run, python)
