"""Fixtures for the tests of the HTTP front end: applications on a real Redis, and a stub worker."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from api_stub import MakeApp, StubWorker
from conftest import PATIENCE_S
from flask import Flask
from flask.testing import FlaskClient
from queues import queue_of, set_limits

from shoal import Client
from shoal.keys import Keys
from shoal.long_jobs.long_jobs import LongJobs
from shoal.queue.lane import LaneLimits
from shoal.settings import Settings
from shoal_api.app import create_app
from shoal_api.context import Context
from shoal_api.pool_watch import PoolWatch

#: The settings of what a lane holds.
LANE_SETTINGS = {"max_backlog", "max_backlog_texts", "max_backlog_mb", "max_result_mb"}


@pytest.fixture
def settings(redis_url: str, keys: Keys, tmp_path: Path) -> Settings:
    """Return settings of an application in the test's own pool."""
    home = str(tmp_path / "home")
    return Settings(redis_url, keys.prefix, keys.pool, request_timeout_s=PATIENCE_S, home=home)


@pytest.fixture
def make_app(settings: Settings) -> Iterator[MakeApp]:
    """Return a function that makes applications, with other settings where they are given."""
    connected: list[Client | LongJobs | PoolWatch] = []

    def make(**changes: Any) -> Flask:
        changed = replace(settings, **changes)
        client = Client.from_settings(changed)
        connected.append(client)
        if LANE_SETTINGS & changes.keys():  # workers with the same settings announce them
            set_limits(queue_of(client), LaneLimits.from_settings(changed))
        app = create_app(changed, client)
        connected.extend([Context.of(app).pool_watch, Context.of(app).long_jobs])
        Context.of(app).pool.max_age_s = 0.0  # for tests that look at each change
        return app

    yield make
    for part in reversed(connected):
        part.close()


@pytest.fixture
def api(make_app: MakeApp) -> FlaskClient:
    """Return a client of an application."""
    return make_app().test_client()


@pytest.fixture
def stub(redis_url: str, keys: Keys) -> Iterator[StubWorker]:
    """Return a stub worker at work."""
    stub = StubWorker(redis_url, keys)
    stub.start()
    yield stub
    stub.stop()
