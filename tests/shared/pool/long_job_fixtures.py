"""Fixtures of the tests of long jobs over HTTP: RQ's keys, a folder for files, and clients with API keys."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from api_stub import MakeApp
from long_job_callers import Guarded, Rq

from shoal.contract.keys import Keys
from shoal.settings import Settings


@pytest.fixture
def rq(redis_url: str, keys: Keys) -> Iterator[Rq]:
    """Return RQ's keys, which are deleted at the end."""
    with redis.Redis.from_url(redis_url) as connection:
        rq = Rq(connection, keys)
        yield rq
        rq.clear()


@pytest.fixture
def files(settings: Settings) -> Path:
    """Return the folder for files, which has a file."""
    settings.files_folder.mkdir(parents=True)
    (settings.files_folder / "news.csv").write_text("text\none\n")
    return settings.files_folder


@pytest.fixture
def guarded(make_app: MakeApp, tmp_path: Path) -> "Guarded":
    """Return an application that needs API keys, with a client for each of three keys."""
    return Guarded(make_app, tmp_path / "keys")
