"""Fixtures for the tests of `HttpClient`: applications that listen, and servers with made-up answers."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from api_stub import MakeApp
from conftest import PATIENCE_S
from flask import Flask
from http_servers import CannedServer, Listen, running
from werkzeug.serving import make_server

from shoal import HttpClient
from shoal_workers.loop.worker import Worker


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Return a function that serves applications."""
    with ExitStack() as stack:

        def start(app: Flask) -> str:
            server = make_server("127.0.0.1", 0, app, threaded=True)
            stack.enter_context(running(server))
            return f"http://127.0.0.1:{server.server_port}"

        yield start


@pytest.fixture
def canned() -> Iterator[CannedServer]:
    """Return a server with made-up answers."""
    server = CannedServer()
    with running(server):
        yield server


@pytest.fixture
def http(listen: Listen, make_app: MakeApp, serving: Worker) -> Iterator[HttpClient]:
    """Return an `HttpClient` of an application. A worker answers the jobs of its pool."""
    with HttpClient(listen(make_app()), timeout_s=PATIENCE_S) as client:
        yield client
