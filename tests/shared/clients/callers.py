"""A load of clients that note the outcome of every request, for tests that stop and restart a server under it."""

import json
import select
import socket
import threading
import time
from collections import Counter
from random import Random
from types import TracebackType
from typing import Self

from conftest import PATIENCE_S


class Callers:
    """Threads that send one request after the other, until the server refuses connections or they are told to stop.

    `outcomes` counts the status codes of answers, and `lost`: requests that were sent and never answered. Connections
    are kept, or, with `keeps` false, made for each request. Between two requests a caller thinks for up to `think_s`.
    """

    def __init__(self, port: int, num_callers: int, *, keeps: bool = True, think_s: float = 0.0):
        self.port = port
        self.outcomes: Counter[str] = Counter()
        self.losses: list[str] = []
        self._keeps = keeps
        self._think_s = think_s
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._ask_on, args=(n,)) for n in range(num_callers)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self.join()

    def join(self) -> None:
        """Wait until all have ended: they were stopped, or the server refused a connection."""
        for thread in self._threads:
            thread.join()

    @property
    def num_answered(self) -> int:
        """The number of requests that were answered so far."""
        return self.outcomes["200"]

    def _ask_on(self, n: int) -> None:
        random, num_asked = Random(n), 0
        connection: socket.socket | None = None
        while not self._stopped.is_set():
            if connection is None or _has_ended(connection):
                connection = _connected(self.port, connection)
            if connection is None:
                return
            num_asked += 1
            outcome, stays = _ask(connection, f"caller {n} asks {num_asked}")
            self.outcomes[outcome if outcome.isdecimal() else "lost"] += 1
            if not outcome.isdecimal():
                self.losses.append(outcome)
            if not (stays and self._keeps):
                connection.close()
                connection = None
            if self._think_s:
                self._stopped.wait(random.random() * self._think_s)
        if connection:
            connection.close()


def _connected(port: int, old: socket.socket | None) -> socket.socket | None:
    """Return a new connection in place of an old one; None if the server refuses it."""
    if old:
        old.close()
    try:
        return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    except ConnectionRefusedError:
        return None


def _has_ended(connection: socket.socket) -> bool:
    """Return True if the server has closed a connection on which nothing was asked."""
    return bool(select.select([connection], [], [], 0)[0])


def _ask(connection: socket.socket, text: str) -> tuple[str, bool]:
    """Send one request; return the status of its response or the error, and true if the connection stays open."""
    body = json.dumps({"inputs": text}).encode()
    asked_at = time.monotonic()
    try:
        head = f"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        return _answer(connection)
    except OSError as error:
        return f"{type(error).__name__} after {time.monotonic() - asked_at:.4f} s", False


def _answer(connection: socket.socket) -> tuple[str, bool]:
    data = b""
    while b"\r\n\r\n" not in data:
        if not (chunk := connection.recv(65_536)):
            raise ConnectionResetError("closed without an answer")
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    while len(body) < int(headers["content-length"]):
        if not (chunk := connection.recv(65_536)):
            raise ConnectionResetError("closed within an answer")
        body += chunk
    return lines[0].split()[1], headers.get("connection") != "close"
