"""A load generator that sends at times of its own, whatever the server does: `python -m benchmarks.arrivals`.

wrk sends a request when the one before is answered, so a slow answer keeps later requests from being sent and their
waiting from being seen. Here requests arrive as in a Poisson process, and latency counts from the time at which a
request was due. What to send comes as JSON on standard input, what was found goes as JSON to standard output. The
generator is one thread on one processor; it tells how late it sent and how much processor time it took.
"""

import gc
import json
import select
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Connections that may be open at once: more requests than that under way wait, and their waiting counts.
MAX_CONNECTIONS = 1_000

#: How long to wait for the last answers.
LAST_ANSWERS_S = 60.0

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Order:
    """What to send, and how.

    With a `rate`, requests a second, the times of arrival are random; without one, each of the connections sends its
    next request as soon as its last one is answered, which finds the server's capacity under this generator.
    """

    host: str
    port: int
    path: str
    bodies: str
    seconds: float
    connections: int = 64
    rate: float | None = None
    window_s: float = 60.0
    seed: int = 7


@dataclass(slots=True, eq=False)
class Connection:
    """A connection and the request that is under way on it."""

    socket: socket.socket
    due_s: float = 0.0
    received: bytearray = field(default_factory=bytearray)

    def receive(self) -> int | None:
        """Reads what has come; the status once the answer is all there."""
        self.received += self.socket.recv(1 << 20) or b"HTTP/1.1 000 closed\r\ncontent-length: 0\r\n\r\n"
        head, end, body = self.received.partition(b"\r\n\r\n")
        if not end or len(body) < _content_length(head):
            return None
        self.received.clear()
        return int(head.split(b" ", 2)[1])


class Generator:
    """Sends an order and notes what came of it."""

    def __init__(self, order: Order):
        self.order = order
        self.due_s: list[float] = []
        self.latencies_s: list[float] = []
        self.lateness_s: list[float] = []
        self.num_failed = 0
        self._requests = [_request(order, body) for body in Path(order.bodies).read_bytes().splitlines()]
        self._num_sent = order.seed * 4_001
        self._poll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._idle = [self._connect() for _ in range(order.connections)]
        self._arrivals = iter(_arrivals(order))
        self._next_s: float | None = next(self._arrivals, None)

    def run(self) -> dict[str, Any]:
        """Sends everything, and what was found."""
        gc.disable()
        cpu_s, start = time.process_time(), time.perf_counter()
        while (now := time.perf_counter() - start) < self.order.seconds + LAST_ANSWERS_S:
            self._send_due(now)
            if self._next_s is None and len(self._idle) == len(self._connections):
                break
            # select waits for microseconds, epoll alone for milliseconds.
            until = self._next_s if self._next_s is not None and self._may_send() else now + 1
            if select.select([self._poll], [], [], max(0.0, until - now))[0]:
                self._receive(start)
        self.num_failed += len(self._connections) - len(self._idle)
        for connection in self._connections.values():
            connection.socket.close()
        return self._found(time.process_time() - cpu_s)

    def _may_send(self) -> bool:
        return bool(self._idle) or (self.order.rate is not None and len(self._connections) < MAX_CONNECTIONS)

    def _send_due(self, now: float) -> None:
        while self._next_s is not None and self._next_s <= now and self._may_send():
            connection = self._idle.pop() if self._idle else self._connect()
            connection.due_s = self._next_s if self.order.rate else now
            request = self._requests[self._num_sent % len(self._requests)]
            if connection.socket.send(request) != len(request):
                sys.exit("a request did not fit the socket's buffer: send shorter texts")
            self.lateness_s.append(now - connection.due_s)
            self._num_sent += 1
            self._next_s = next(self._arrivals, None) if self.order.rate else self._again(now)

    def _again(self, now: float) -> float | None:
        return now if now < self.order.seconds else None

    def _receive(self, start: float) -> None:
        for descriptor, _ in self._poll.poll(0):
            connection = self._connections[descriptor]
            if connection in self._idle:  # the server closed what it had not heard from for a while
                self._idle.remove(connection)
                self._close(connection)
                continue
            status = connection.receive()
            if status is None:
                continue
            now = time.perf_counter() - start
            self.due_s.append(connection.due_s)
            self.latencies_s.append(now - connection.due_s)
            self.num_failed += status != 200
            if not status:
                self._close(connection)
            self._idle.append(connection if status else self._connect())

    def _close(self, connection: Connection) -> None:
        del self._connections[connection.socket.fileno()]
        connection.socket.close()

    def _connect(self) -> Connection:
        connection = Connection(socket.create_connection((self.order.host, self.order.port)))
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[connection.socket.fileno()] = connection
        self._poll.register(connection.socket, select.EPOLLIN)
        return connection

    def _found(self, cpu_s: float) -> dict[str, Any]:
        num_in_time = int((np.add(self.due_s, self.latencies_s) <= self.order.seconds).sum())
        return {
            "requests/s": num_in_time / self.order.seconds,
            "num_requests": len(self.due_s),
            "num_failed": self.num_failed,
            "cpu_s": cpu_s,
            "late": percentiles_ms(self.lateness_s),
            "all": percentiles_ms(self.latencies_s),
            "windows": windows_ms(self.due_s, self.latencies_s, self.order.window_s),
        }


def percentiles_ms(times_s: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    """The percentiles of the times in milliseconds, each the least of the times with so many at or below it."""
    if not len(times_s):
        return {}
    found = np.percentile(times_s, PERCENTILES, method="inverted_cdf") * 1_000
    return {f"p{percent} ms": float(value) for percent, value in zip(PERCENTILES, found, strict=True)}


def windows_ms(due_s: Sequence[float], latencies_s: Sequence[float], window_s: float) -> list[dict[str, float]]:
    """The percentiles of the requests that were due in each window, one window after the other."""
    windows = np.floor_divide(due_s, window_s).astype(int)
    latencies = np.array(latencies_s)
    return [percentiles_ms(latencies[windows == n]) for n in range(windows.max(initial=-1) + 1)]


def _arrivals(order: Order) -> Sequence[float]:
    if order.rate is None:
        return [0.0]  # the others follow from the answers
    random = np.random.default_rng(order.seed)
    gaps = random.exponential(1 / order.rate, int(order.rate * order.seconds * 1.5) + 100)
    times = np.cumsum(gaps)
    return list(times[times < order.seconds])


def _request(order: Order, body: bytes) -> bytes:
    head = f"POST {order.path} HTTP/1.1\r\nhost: {order.host}\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n%s" % (len(body), body)


def _content_length(head: bytes | bytearray) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    sys.exit("an answer without content-length: this generator reads no other")


if __name__ == "__main__":
    json.dump(Generator(Order(**json.load(sys.stdin))).run(), sys.stdout)
