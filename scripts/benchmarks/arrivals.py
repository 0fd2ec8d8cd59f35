"""A load generator that sends at times of its own, whatever the server does.

wrk sends a request when the one before is answered, so a slow answer keeps later requests from being sent and their
waiting from being seen. Here requests arrive as in a Poisson process, and latency counts from the time at which a
request was due. The generator is one thread on one processor; it reports how late it sent and its processor time.
"""

import gc
import select
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.errors import NotReady

#: Connections that may be open at once: more requests than that under way wait, and their waiting counts.
MAX_CONNECTIONS = 1_000

#: Longest wait for the last answers.
LAST_ANSWERS_S = 60.0

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Order:
    """Requests to send to one address, for so many seconds.

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

    def requests(self) -> list[bytes]:
        """Return the HTTP requests, one for each line of the file of bodies."""
        head = f"POST {self.path} HTTP/1.1\r\nhost: {self.host}\r\ncontent-type: application/json\r\n".encode()
        bodies = Path(self.bodies).read_bytes().splitlines()
        return [head + b"content-length: %d\r\n\r\n%s" % (len(body), body) for body in bodies]

    def arrivals(self) -> Iterator[float]:
        """Yield the seconds after the start at which requests are due; only the first one without a rate."""
        if self.rate is None:
            yield 0.0
            return
        random, due_s = np.random.default_rng(self.seed), 0.0
        while (due_s := due_s + float(random.exponential(1 / self.rate))) < self.seconds:
            yield due_s


@dataclass(frozen=True, slots=True)
class Found:
    """The results of an order: percentiles of lateness and of latencies, of all and of each window, in milliseconds."""

    requests_per_s: float
    num_requests: int
    num_failed: int
    cpu_s: float
    late_ms: dict[str, float]
    all_ms: dict[str, float]
    windows_ms: list[dict[str, float]]


@dataclass(slots=True, eq=False)
class Connection:
    """A connection and the request that is under way on it."""

    socket: socket.socket
    due_s: float = 0.0
    received: bytearray = field(default_factory=bytearray)

    def receive(self) -> int | None:
        """Read the bytes that have come; return the status once the answer is complete, 0 if it never will be."""
        data = self.socket.recv(1 << 20)
        self.received += data
        head, end, body = self.received.partition(b"\r\n\r\n")
        if data and (not end or len(body) < int(head.lower().partition(b"content-length:")[2].split(None, 1)[0])):
            return None
        self.received.clear()
        return int(head.split(b" ", 2)[1]) if data else 0


class Generator:
    """The sender of an order, which notes the latency of each answer."""

    def __init__(self, order: Order):
        self.order = order
        self._due_s: list[float] = []
        self._latencies_s: list[float] = []
        self._lateness_s: list[float] = []
        self._num_failed = 0
        self._requests = order.requests()
        self._num_sent = order.seed * 4_001
        self._poll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._idle = [self._connect() for _ in range(order.connections)]
        self._arrivals = order.arrivals()
        self._next_s: float | None = next(self._arrivals, None)

    def run(self) -> Found:
        """Send everything and return the results."""
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
        self._num_failed += len(self._connections) - len(self._idle)
        for connection in list(self._connections.values()):
            self._close(connection)
        self._poll.close()
        gc.enable()
        return self._found(time.process_time() - cpu_s)

    def _may_send(self) -> bool:
        return bool(self._idle) or (self.order.rate is not None and len(self._connections) < MAX_CONNECTIONS)

    def _send_due(self, now: float) -> None:
        while self._next_s is not None and self._next_s <= now and self._may_send():
            connection = self._idle.pop() if self._idle else self._connect()
            connection.due_s = self._next_s if self.order.rate else now
            request = self._requests[self._num_sent % len(self._requests)]
            if connection.socket.send(request) != len(request):
                raise NotReady("a request did not fit the socket's buffer: send shorter texts")
            self._lateness_s.append(now - connection.due_s)
            self._num_sent += 1
            if self.order.rate:
                self._next_s = next(self._arrivals, None)
            else:
                self._next_s = now if now < self.order.seconds else None

    def _receive(self, start: float) -> None:
        for descriptor, _ in self._poll.poll(0):
            connection = self._connections[descriptor]
            if connection in self._idle:  # the server closed a connection that was idle for a while
                self._idle.remove(connection)
                self._close(connection)
            elif (status := connection.receive()) is not None:
                self._due_s.append(connection.due_s)
                self._latencies_s.append(time.perf_counter() - start - connection.due_s)
                self._num_failed += status != 200
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

    def _found(self, cpu_s: float) -> Found:
        num_in_time = int((np.add(self._due_s, self._latencies_s) <= self.order.seconds).sum())
        windows = windows_ms(self._due_s, self._latencies_s, self.order.window_s)
        percentiles = percentiles_ms(self._lateness_s), percentiles_ms(self._latencies_s)
        rate = num_in_time / self.order.seconds
        return Found(rate, len(self._due_s), self._num_failed, cpu_s, *percentiles, windows)


def generate(order: Order) -> Found:
    """Send an order and return the results."""
    return Generator(order).run()


def percentiles_ms(times_s: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    """Return the percentiles of the times in milliseconds, each the least of the times with so many at or below it."""
    if not len(times_s):
        return {}
    found = np.percentile(times_s, PERCENTILES, method="inverted_cdf") * 1_000
    return {f"p{percent} ms": float(value) for percent, value in zip(PERCENTILES, found, strict=True)}


def windows_ms(due_s: Sequence[float], latencies_s: Sequence[float], window_s: float) -> list[dict[str, float]]:
    """Return the percentiles of the requests that were due in each window, one window after the other."""
    windows = np.floor_divide(due_s, window_s).astype(int)
    latencies = np.array(latencies_s)
    return [percentiles_ms(latencies[windows == n]) for n in range(windows.max(initial=-1) + 1)]
