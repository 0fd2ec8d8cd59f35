"""The vector engines that tests share."""

import os
from collections.abc import Iterator

import pytest
from vector_engines import Engine, PostgreSQL, own_postgresql


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A server of PostgreSQL with pgvector."""
    with own_postgresql() as server:
        yield server


@pytest.fixture(scope="module", params=["pgvector", pytest.param("redis", marks=pytest.mark.wide)])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Return each of the engines. No package has a server of Redis 8."""
    if request.param == "pgvector":
        return Engine("pgvector", request.getfixturevalue("postgresql").url)
    return Engine("redis", os.environ.get("TEST_REDIS8_URL") or pytest.skip("needs TEST_REDIS8_URL"))
