"""A load generator that sends at times of its own, whatever the server does.

wrk sends a request when the one before is answered, so a slow answer keeps later requests from being sent and their
waiting from being seen. Here requests arrive as in a Poisson process, and latency counts from the time at which a
request was due. The generator runs on one processor; it reports how late it sent and its processor time.
"""

import asyncio
import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from select import select
from selectors import EpollSelector, SelectorKey
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from benchmarks import wrk

#: Most connections at a time. Requests beyond them wait for a connection, and their latency includes that wait.
MAX_CONNECTIONS = 1_000

#: Longest wait for the last answers.
LAST_ANSWERS_S = 60.0

PERCENTILES = (50, 90, 99)

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Found:
    """The seconds after the start at which each request was due, was sent and was answered, and the cost of it all."""

    due_s: Times
    sent_s: Times
    answered_s: Times
    num_failed: int
    cpu_s: float


class PreciseSelector(EpollSelector):
    """An epoll that waits for microseconds, as select does, where epoll alone waits for milliseconds."""

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Return the sockets that are ready within the timeout in seconds."""
        select([self], [], [], timeout)
        return super().select(0)


def generate(
    url: str,
    bodies: Sequence[bytes],
    seconds: float,
    rate: float | None = None,
    connections: int = 64,
    seed: int = 1,
    source: str | None = None,
) -> Found:
    """Send the bodies to one address for `seconds`.

    With a `rate`, requests a second, the times of arrival are random; without one, each of the connections sends its
    next request as soon as its last one is answered, which finds the server's capacity under this generator. A
    `source` is the address that the connections come from.
    """
    gc.freeze()
    clients, cpu_s = Clients(url, bodies, seconds, seed, source), time.process_time()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(PreciseSelector())) as runner:
        runner.run(clients.run(rate, connections, seed))
    due_s, sent_s, answered_s = np.array(clients.times_s).reshape(-1, 3).T
    return Found(due_s, sent_s, answered_s, clients.num_failed, time.process_time() - cpu_s)


class Clients:
    """Tasks with a connection each, which send what is due one request after the other."""

    def __init__(self, url: str, bodies: Sequence[bytes], seconds: float, seed: int, source: str | None = None):
        address, first = urlsplit(url), seed * wrk.STRIDE % len(bodies)
        head = f"POST {address.path} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n".encode()
        requests = [head + b"content-length: %d\r\n\r\n%s" % (len(body), body) for body in bodies]
        self._requests: Iterator[bytes] = cycle([*requests[first:], *requests[:first]])
        self._host, self._port, self._seconds = address.hostname, address.port, seconds
        self._source = (source, 0) if source else None
        self.times_s: list[tuple[float, float, float]] = []
        self.num_failed = 0

    async def run(self, rate: float | None, connections: int, seed: int) -> None:
        """Send everything, and wait for the answers."""
        self._started = time.perf_counter()
        self._due: asyncio.Queue[float | None] | None = asyncio.Queue() if rate else None
        clients = [asyncio.create_task(self._client()) for _ in range(connections)]
        if rate and self._due:
            gaps_s = np.random.default_rng(seed).exponential(1 / rate, int(2 * rate * self._seconds) + 10)
            due_s = np.cumsum(gaps_s)
            for number, due in enumerate(due_s[due_s < self._seconds].tolist(), 1):
                await asyncio.sleep(due - self._now_s())
                if number - len(self.times_s) > len(clients) < MAX_CONNECTIONS:
                    clients.append(asyncio.create_task(self._client()))
                self._due.put_nowait(due)
            for _ in clients:
                self._due.put_nowait(None)
        _, unfinished = await asyncio.wait(clients, timeout=self._seconds - self._now_s() + LAST_ANSWERS_S)
        self.num_failed += len(unfinished)
        for client in unfinished:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    def _now_s(self) -> float:
        return time.perf_counter() - self._started

    async def _next_due_s(self) -> float | None:
        if self._due:
            return await self._due.get()
        return now_s if (now_s := self._now_s()) < self._seconds else None

    async def _client(self) -> None:
        reader: asyncio.StreamReader | None = None
        writer: asyncio.StreamWriter | None = None
        try:
            while (due_s := await self._next_due_s()) is not None:
                sent_s, status = self._now_s(), b""
                try:
                    if not reader or not writer or reader.at_eof():  # it is new, or the server closed what was idle
                        if writer:
                            writer.close()
                        reader, writer = await asyncio.open_connection(self._host, self._port, local_addr=self._source)
                    writer.write(next(self._requests))
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    await reader.readexactly(int(head.partition(b"content-length:")[2].split(None, 1)[0]))
                    status = head.split(b" ", 2)[1]
                except (OSError, asyncio.IncompleteReadError):
                    reader = None
                self.num_failed += status != b"200"
                self.times_s.append((due_s, sent_s, self._now_s()))
        finally:
            if writer:
                writer.close()


def percentiles_ms(times_s: Times) -> dict[str, float]:
    """Return percentiles of the times in milliseconds; each is one of the times, without interpolation."""
    if not len(times_s):
        return {}
    found = np.percentile(times_s, PERCENTILES, method="inverted_cdf") * 1_000
    return {f"p{percent} ms": float(value) for percent, value in zip(PERCENTILES, found, strict=True)}
