"""Bodies that no route reads: the server takes small ones all the same, so that no client loses the response."""

import http.client
import io
import select
import socket
from pathlib import Path

import pytest
from api_stub import MakeApp
from conftest import PATIENCE_S, free_port, wait_until
from process import Process
from service import Service

from shoal.settings import Settings
from shoal_api.access import api_keys
from shoal_api.request import MAX_DROPPED_BYTES

pytest_plugins = ["api_fixtures"]

#: Time in which a server that does not wait for a body would have answered, unless the machine is busy.
SOON_S = 0.1


@pytest.mark.parametrize(
    ("size", "headers", "expected"),
    [
        (20, {}, 20),
        (MAX_DROPPED_BYTES, {}, MAX_DROPPED_BYTES),
        (MAX_DROPPED_BYTES + 1, {}, 0),
        (20, {"Expect": "100-continue"}, 0),
        (20, {"Transfer-Encoding": "chunked"}, 0),
    ],
)
def test_small_bodies_that_come_unasked_are_read(
    make_app: MakeApp, size: int, headers: dict[str, str], expected: int
) -> None:
    body, app = io.BytesIO(b"x" * size), make_app()
    response = app.test_client().post("/nowhere", input_stream=body, content_length=size, headers=headers)
    assert (response.status_code, body.tell()) == (404, expected)


class Endless(io.BytesIO):
    """A body after whose end a read would wait, as on a connection that stays open."""

    def read(self, size: int | None = -1) -> bytes:
        """Return bytes; fail at the end."""
        data = super().read(size)
        assert data, "a read after the end"
        return data


@pytest.mark.parametrize(("size", "status"), [(20, 400), (2_000, 413)])
def test_nothing_is_read_after_the_end_of_a_body_that_is_refused(make_app: MakeApp, size: int, status: int) -> None:
    api = make_app(max_request_bytes=1_000).test_client()
    response = api.post("/embed", input_stream=Endless(b"x" * size), content_length=size)
    assert response.status_code == status


def exchange(connection: socket.socket, method: str, path: str, key: str) -> int:
    """Send a request whose body comes later than an answer would; return the answer's status."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\nContent-Length: 20\r\n\r\n"
    connection.sendall(head.encode())
    select.select([connection], [], [], SOON_S)
    connection.sendall(b"x" * 20)
    response = http.client.HTTPResponse(connection, method=method)
    response.begin()
    response.read()
    return response.status


def test_a_body_after_its_headers_costs_neither_the_response_nor_the_connection(
    settings: Settings, tmp_path: Path
) -> None:
    port, key = free_port(), api_keys.add(tmp_path / "keys", "web", "user", "")
    where = {"redis_url": settings.redis_url, "key_prefix": settings.key_prefix, "pool": settings.pool}
    with Process(tmp_path / "log", "api", "--port", port, **where, api_keys_file=tmp_path / "keys") as api:
        wait_until(Service(api, api, port).listens)
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
            for method, path, secret, status in (
                ("GET", "/health", "", 200),
                ("GET", "/openapi.json", "", 200),
                ("POST", "/embed", "wrong", 401),
                ("OPTIONS", "/embed", "", 200),
                ("DELETE", "/v1/jobs/none", key, 404),
                ("POST", "/nowhere", key, 404),
                ("GET", "/embed", key, 405),
                ("GET", "/v1/dead", key, 403),
                ("GET", "/health", "", 200),
            ):
                assert exchange(connection, method, path, secret) == status, (method, path)
        assert api.terminate() == 0
