"""The application in the event loop of its server: what the server passes on, counts, and ends."""

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from api_stub import StubWorker, vector_of
from conftest import PATIENCE_S, free_port, wait_until
from process import Process

from shoal.settings import Settings
from shoal_api.access import api_keys
from shoal_api.access.access_control import MAX_LASTING

pytest_plugins = ["api_fixtures"]
pytestmark = pytest.mark.usefixtures("stub")

#: Texts whose vectors of four numbers make an answer of over 1 MiB.
MANY = ["a"] * 25_000


class Server:
    """`shoal api`, and requests to it."""

    def __init__(self, port: int):
        self.port = port

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """Send one request, and return the status and the body of its response."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read()

    def send(self, path: str, body: Any) -> socket.socket:
        """Return a connection on which a request was sent, and whose kernel keeps little of a response."""
        connection, data = socket.socket(), json.dumps(body).encode()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(PATIENCE_S)
        connection.connect(("127.0.0.1", self.port))
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        return connection

    def listens(self) -> bool:
        """Return True if the server takes connections."""
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except ConnectionRefusedError:
            return False
        return True


StartServer = Callable[..., Server]


@pytest.fixture
def start_server(settings: Settings, tmp_path: Path) -> Iterator[StartServer]:
    """Return a function that starts a server on a free port."""
    with ExitStack() as stack:

        def start(**changes: Any) -> Server:
            port = free_port()
            where = {"redis_url": settings.redis_url, "key_prefix": settings.key_prefix, "pool": settings.pool}
            stack.enter_context(Process(tmp_path / "log", "api", "--port", port, **where | changes))
            wait_until(Server(port).listens)
            return Server(port)

        yield start


def test_a_header_with_an_underscore_does_not_pass_for_another(start_server: StartServer, tmp_path: Path) -> None:
    key = api_keys.add(tmp_path / "keys", "web", "user", "")
    server = start_server(api_keys_file=tmp_path / "keys")
    assert server.ask("POST", "/embed", {"inputs": "a"}, **{"X-API-Key": key})[0] == 200
    assert server.ask("POST", "/embed", {"inputs": "a"}, **{"X_API_Key": key})[0] == 401


def test_paths_are_read_as_utf_8(start_server: StartServer) -> None:
    server = start_server()
    for path in ("/v1/jobs/%C3%A9", "/v1/jobs/%FF%FE", "/v1/jobs/%00", "//v1/jobs/a", "/v1/jobs/a%2Fb"):
        status, body = server.ask("GET", path)
        assert (status, list(json.loads(body))) == (404, ["error"]), path


def test_large_answers_that_are_not_read_count_until_their_clients_go(
    start_server: StartServer, stub: StubWorker
) -> None:
    """With as many numbers as the worker announces, each counts for 225 MB of 1,140 MB: a client may have two."""
    server = start_server(receive_timeout_s=3_600)
    stub.announce(dimension=900)
    large = {"inputs": MANY}
    with ExitStack() as stack:
        for _ in range(2):
            connection = stack.enter_context(closing(server.send("/embed", large)))
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        time.sleep(0.3)  # longer than a client that reads would count
        assert server.ask("POST", "/embed", large)[0] == 429
        assert server.ask("POST", "/embed", {"inputs": "a"})[0] == 200
    wait_until(lambda: server.ask("POST", "/embed", large)[0] == 200)


def test_a_large_answer_that_is_read_is_whole(start_server: StartServer) -> None:
    status, body = start_server().ask("POST", "/embed", {"inputs": MANY}, Accept="application/octet-stream")
    assert (status, body) == (200, vector_of("a").tobytes() * len(MANY))


def test_clients_that_leave_give_up_their_jobs_though_a_thousand_wait(
    start_server: StartServer, stub: StubWorker
) -> None:
    server = start_server()
    stub.pause()
    connections = [server.send("/embed", {"inputs": f"text {n}"}) for n in range(1_000)]
    wait_until(lambda: stub.queue.backlog()["interactive"] == 1_000)
    for connection in connections:
        connection.close()
    wait_until(lambda: stub.queue.backlog()["interactive"] == 0)
    stub.resume()
    assert server.ask("POST", "/embed", {"inputs": "a"})[0] == 200


def test_uploads_that_trickle_hold_up_no_other_view(start_server: StartServer) -> None:
    server = start_server(receive_timeout_s=3_600)
    head = b"POST /v1/bulk?name=a.txt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx"
    with ExitStack() as stack:
        for _ in range(MAX_LASTING):
            upload = stack.enter_context(closing(socket.create_connection(("127.0.0.1", server.port))))
            upload.sendall(head)
        for path in ("/v1/jobs", "/metrics", "/info", "/", "/v1/pool"):
            assert server.ask("GET", path)[0] == 200, path
        assert server.ask("POST", "/v1/bulk?name=a.txt", {})[0] == 429


def test_bodies_of_requests_that_are_let_in_unseen_are_not_kept(start_server: StartServer, tmp_path: Path) -> None:
    api_keys.add(tmp_path / "keys", "web", "user", "")
    server = start_server(api_keys_file=tmp_path / "keys")
    head = "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\n\r\n"
    for method, path in (("OPTIONS", "/embed"), ("GET", "/health"), ("POST", "/embed")):
        with closing(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)) as connection:
            connection.sendall(head.format(method=method, path=path).encode())
            assert connection.recv(65_536).startswith(b"HTTP/1.1 ")  # at once: it waits for no body


def test_a_header_that_is_no_ascii_is_there_all_the_same(start_server: StartServer) -> None:
    server = start_server()
    body = json.dumps({"op": "embed", "inputs": ["a"]}).encode()
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nIdempotency-Key: k\xfc\r\n"
    for others in ("", "Accept: */*\r\nAccept: */*\r\n"):
        with closing(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)) as connection:
            connection.sendall((head + others + "\r\n").encode("latin-1") + body)
            assert connection.recv(65_536).startswith(b"HTTP/1.1 422 "), others


def test_requests_whose_clients_go_are_counted(start_server: StartServer, stub: StubWorker) -> None:
    server = start_server()
    stub.pause()
    server_side = server.send("/embed", {"inputs": "a"})
    wait_until(lambda: stub.queue.backlog()["interactive"] == 1)
    server_side.close()
    wait_until(lambda: stub.queue.backlog()["interactive"] == 0)
    line = b'shoal_http_request_seconds_count{method="POST",route="/embed",status="499"} 1.0'
    wait_until(lambda: line in server.ask("GET", "/metrics")[1])
    stub.resume()
