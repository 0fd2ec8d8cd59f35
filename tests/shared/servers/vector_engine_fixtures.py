"""The vector engines that tests share."""

import pytest
from vector_engines import run_engine

engine = pytest.fixture(scope="module")(run_engine)
own_engine = pytest.fixture(run_engine)
