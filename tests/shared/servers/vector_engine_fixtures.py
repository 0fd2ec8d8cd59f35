"""The vector engines that tests share."""

from collections.abc import Iterator

import pytest
from vector_engines import ENGINES, Engine


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Return each of the engines that are installed."""
    with ENGINES[request.param]() as engine:
        yield engine
