"""The client over HTTP beside servers that never end: a call takes `timeout_s`, however slowly an answer comes."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from conftest import PATIENCE_S

from shoal import HttpClient
from shoal.errors import Timeout

#: Pieces that a slow server sends or takes, one each 10 ms, before it gives up: far more than there is time for.
MAX_PIECES = 3_000

#: A text that takes a slow server several seconds, and does not fit into the buffers of sockets.
TEXT = "a" * 2**25

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/msgpack\r\nContent-Length: 1000000\r\n\r\n"


class SlowServer:
    """A server of one connection, which `step` serves piece by piece until the client has gone."""

    def __init__(self, start: bytes, step: Callable[[socket.socket], int]):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._start, self._step = start, step
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        #: The bytes so far of all pieces.
        self.num_bytes = 0
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def join(self) -> None:
        """Wait until the client has gone; one that was given no time to connect never comes."""
        with suppress(OSError):
            socket.create_connection(self._listener.getsockname()).close()
        self.thread.join(PATIENCE_S)

    def _serve(self) -> None:
        with self._listener, self._listener.accept()[0] as connection:
            try:
                connection.sendall(self._start)
                for _ in range(MAX_PIECES):
                    if not (num_bytes := self._step(connection)):
                        return
                    self.num_bytes += num_bytes
                    threading.Event().wait(0.01)
            except OSError:
                return


@pytest.fixture
def serve() -> Iterator[Callable[..., SlowServer]]:
    """Return a function that starts a slow server; the client must have gone at the end."""
    servers: list[SlowServer] = []

    def start(start: bytes, step: Callable[[socket.socket], int]) -> SlowServer:
        servers.append(SlowServer(start, step))
        return servers[-1]

    yield start
    for server in servers:
        server.join()
        assert not server.thread.is_alive()


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-Slow: 1\r\n"),
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
        (HEAD, b"a"),
    ],
    ids=["headers", "interim answers", "body"],
)
def test_an_answer_that_trickles_is_given_up(serve: Callable[..., SlowServer], start: bytes, piece: bytes) -> None:
    server = serve(start, lambda connection: connection.send(piece))
    with HttpClient(server.url, timeout_s=0.3) as http, pytest.raises(Timeout, match=r"no answer within 0\.3 s"):
        http.embed("a")
    server.join()
    assert server.num_bytes < MAX_PIECES * len(piece)


def test_a_server_that_reads_slowly_is_given_up(serve: Callable[..., SlowServer]) -> None:
    server = serve(b"", lambda connection: len(connection.recv(2**16)))
    with HttpClient(server.url, timeout_s=0.3) as http, pytest.raises(Timeout, match=r"no answer within 0\.3 s"):
        http.embed(TEXT)
    server.join()
    assert server.num_bytes < len(TEXT)
