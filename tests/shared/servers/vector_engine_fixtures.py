"""The vector engines that tests share."""

from collections.abc import Iterator

import pytest
from vector_engines import Engine, PostgreSQL, own_postgresql


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A server of PostgreSQL with pgvector."""
    with own_postgresql() as server:
        yield server


@pytest.fixture(scope="module")
def engine(postgresql: PostgreSQL) -> Engine:
    """Return the engine of the server."""
    return Engine("pgvector", postgresql.url)
