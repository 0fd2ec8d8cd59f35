"""The command line in a test's own pool."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.contract.keys import Keys
from shoal.settings import variable


@pytest.fixture
def pool_settings(redis_url: str, keys: Keys) -> dict[str, str]:
    """The settings that name the test's own pool."""
    return {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool}


@pytest.fixture
def shoal(pool_settings: dict[str, str], tmp_path: Path) -> CliRunner:
    """A runner of commands in the test's own pool, with its own folder of indexes."""
    names = pool_settings | {"index_home": str(tmp_path)}
    native = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return CliRunner(env={variable(name): value for name, value in names.items()} | native)
