"""Fixtures for the tests of the HTTP front end: applications on a real Redis, and a stub worker."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from api_process import ApiProcess, StartApi, running_api, serving_api
from api_stub import MakeApp, StubWorker, close_app
from conftest import PATIENCE_S, RedisServer
from flask.testing import FlaskClient
from keys_file import KeysFile
from process import Process
from queues import Queue, set_limits

from shoal.contract.keys import Keys
from shoal.queue.lane import LaneLimits
from shoal.settings import Settings
from shoal_api.app import create_app
from shoal_api.server.async_flask import AsyncFlask

#: The settings of a lane's limits.
LANE_SETTINGS = {"max_backlog", "max_backlog_texts", "max_backlog_mb", "max_result_mb"}


@pytest.fixture
def settings(redis_url: str, keys: Keys, tmp_path: Path) -> Settings:
    """Return an application's settings for the test's own pool."""
    home = str(tmp_path / "home")
    return Settings(redis_url, keys.prefix, keys.pool, request_timeout_s=PATIENCE_S, home=home)


@pytest.fixture
def make_app(settings: Settings, queue: Queue) -> Iterator[MakeApp]:
    """Return a function that makes applications. Its arguments replace settings."""
    made: list[AsyncFlask] = []

    def make(**changes: Any) -> AsyncFlask:
        changed = replace(settings, **changes)
        if LANE_SETTINGS & changes.keys():  # the limits that workers with these settings would announce
            set_limits(queue, LaneLimits.from_settings(changed))
        made.append(create_app(changed))
        made[-1].own.pool.max_age_s = 0.0  # so that tests see each change at once
        return made[-1]

    yield make
    for app in reversed(made):
        close_app(app)


@pytest.fixture
def api(make_app: MakeApp) -> FlaskClient:
    """Return a client of an application."""
    return make_app().test_client()


@pytest.fixture
def keys_file(tmp_path: Path) -> KeysFile:
    """Return a file with keys of a user and an admin."""
    return KeysFile(tmp_path / "keys")


@pytest.fixture
def stub(redis_url: str, keys: Keys) -> Iterator[StubWorker]:
    """Return a stub worker that answers jobs."""
    stub = StubWorker(redis_url, keys)
    stub.start()
    yield stub
    stub.stop()


@pytest.fixture
def start_api(settings: Settings, tmp_path: Path) -> Iterator[StartApi]:
    """Return a function that starts servers of the test's own pool. Each accepts connections when it is returned."""
    with ExitStack() as stack:

        def start(kind: type[Process] = Process, **changes: Any) -> ApiProcess:
            where = {"redis_url": settings.redis_url, "key_prefix": settings.key_prefix, "pool": settings.pool}
            return stack.enter_context(running_api(tmp_path / "api.log", kind, **where | changes))

        yield start


@pytest.fixture(scope="module")
def shared_api(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    """Return a server with a stub worker, for all tests of a module. The tests change neither."""
    with serving_api(redis_server, tmp_path_factory.mktemp("shared")) as (api, _):
        yield api
