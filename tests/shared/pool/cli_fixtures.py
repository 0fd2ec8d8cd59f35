"""The command line in a test's own pool."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.contract.keys import Keys
from shoal.settings import variable


@pytest.fixture
def shoal(redis_url: str, keys: Keys, tmp_path: Path) -> CliRunner:
    """Return a runner of commands in the test's own pool, with a folder of indexes of its own."""
    names = {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool, "index_home": str(tmp_path)}
    native = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return CliRunner(env={variable(name): value for name, value in names.items()} | native)
