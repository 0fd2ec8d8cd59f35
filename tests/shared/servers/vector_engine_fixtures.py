"""The vector engines that tests share."""

from collections.abc import Iterator

import pytest
from vector_engines import ENGINES, PASSWORD, Engine

from shoal_workers.index.engines.engine import open_table


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Return each of the engines that are installed."""
    with ENGINES[request.param]() as engine:
        table = open_table(f"{engine.url}#first", PASSWORD)
        table.create(1, {})  # LanceDB opens files for the life of this process
        table.drop()
        yield engine
