"""`shoal api` in its own process, and requests to it."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPMessage
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from api_stub import StubWorker
from conftest import PATIENCE_S, RedisServer, free_port, wait_until
from process import Process

from shoal.contract.keys import Keys

#: A function that starts a server on a free port. Its arguments replace settings.
StartApi = Callable[..., "ApiProcess"]


class Answer(NamedTuple):
    """The complete answer to a request."""

    status: int
    body: Any
    headers: HTTPMessage


class ApiProcess:
    """A server, and requests to it."""

    def __init__(self, process: Process, port: int, host: str = "127.0.0.1"):
        self.process = process
        self.port = port
        self._host = host

    @property
    def server(self) -> psutil.Process:
        """The process that answers."""
        (server,) = psutil.Process(self.process.pid).children()
        return server

    def connect(self, source: str = "") -> HTTPConnection:
        """Return a connection that stays open between requests. `source` is the client's address."""
        address = (source, 0) if source else None
        return HTTPConnection(self._host, self.port, timeout=PATIENCE_S, source_address=address)

    def ask(
        self, method: str, path: str, body: Any = None, headers: Any = None, source: str = "", **more: str
    ) -> Answer:
        """Send a request and return its answer. A map, a list or a text is sent as JSON, and JSON is parsed."""
        with closing(self.connect(source)) as connection:
            named = {name.replace("_", "-"): value for name, value in more.items()}
            data = json.dumps(body) if isinstance(body, dict | list | str) else body
            connection.request(method, path, data, (headers or {}) | named)
            response = connection.getresponse()
            answer = response.read()
        is_json = response.headers.get_content_subtype() in ("json", "problem+json")
        return Answer(response.status, json.loads(answer) if is_json else answer, response.headers)

    def send(self, data: bytes = b"") -> socket.socket:
        """Send the data over a new connection, and return the connection."""
        connection = socket.create_connection((self._host, self.port), timeout=PATIENCE_S)
        connection.sendall(data)
        return connection

    def begin(self, num_bytes: int = 1_000, path: str = "/embed") -> socket.socket:
        """Send a request without its body over a new connection, and return the connection."""
        return self.send(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {num_bytes}\r\n\r\n".encode())

    def send_to_slow_reader(self, data: bytes) -> socket.socket:
        """Send the data over a new connection that buffers little of the answer, and return the connection."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(PATIENCE_S)
        connection.connect((self._host, self.port))
        connection.sendall(data)
        return connection

    def listens(self) -> bool:
        """Return True if the server accepts connections."""
        try:
            self.send().close()
        except ConnectionRefusedError:
            return False
        return True


def is_closed(connection: socket.socket) -> bool:
    """Return True if the server closes the connection within its timeout, with or without an answer."""
    try:
        return connection.recv(65_536) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@contextmanager
def running_api(log: Path, kind: type[Process] = Process, **settings: Any) -> Iterator[ApiProcess]:
    """Run a server on a free port during the block. The block begins when the server accepts connections."""
    port = free_port()
    with kind(log, "api", "--port", port, **settings) as process:
        api = ApiProcess(process, port, settings.get("host", "127.0.0.1"))
        wait_until(api.listens)
        yield api


@contextmanager
def serving_api(redis_server: RedisServer, folder: Path, **changes: Any) -> Iterator[tuple[ApiProcess, StubWorker]]:
    """Run a server and a stub worker during the block."""
    keys = Keys("test", f"shared-{free_port()}")
    stub = StubWorker(redis_server.url, keys)
    stub.start()
    settings = {"redis_url": redis_server.url, "key_prefix": keys.prefix, "pool": keys.pool}
    with running_api(folder / "api.log", **settings | changes) as api:
        yield api, stub
    stub.stop()
