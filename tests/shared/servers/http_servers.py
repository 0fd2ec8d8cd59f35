"""Servers for the tests of `HttpClient`, each on its own port: applications, and made-up answers."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import Any, NamedTuple

from flask import Flask

#: A function that serves an application on its own port until the test ends, and returns the URL.
Listen = Callable[[Flask], str]


class Canned(NamedTuple):
    """A made-up answer. An answer without a status breaks the connection."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012


class CannedServer(ThreadingHTTPServer):
    """A server that sends the answers of a list, by default one answer, and repeats the last of them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = [Canned()]
        #: The path and the headers of each request so far.
        self.requests: list[tuple[str, dict[str, str]]] = []
        #: The method and the body of each request.
        self.bodies: list[tuple[str, bytes]] = []
        #: The clients' addresses.
        self.clients: set[str] = set()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def next_answer(self) -> Canned:
        """Return the next answer."""
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients that disconnect are expected."""


class _Handler(BaseHTTPRequestHandler):
    server: CannedServer

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.bodies.append((self.command, body))
        self.server.requests.append((self.path, dict(self.headers)))
        self.server.clients.add(self.client_address[0])
        status, answer, headers = self.server.next_answer()
        if not status:
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(answer))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_DELETE = _answer

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log."""


def listens(port: int) -> bool:
    """Return True if something accepts connections at the port on loopback."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def running(server: BaseServer) -> Iterator[None]:
    """Serve until the end of the `with`."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
