"""A load generator that sends at times of its own, whatever the server does.

wrk sends a request when the one before is answered, so a slow answer keeps later requests from being sent and their
waiting from being seen. Here requests arrive as in a Poisson process, and latency counts from the time at which a
request was due. The generator runs on one processor; it reports how late it sent and its processor time.
"""

import asyncio
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from select import select
from selectors import EpollSelector, SelectorKey
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from shoal.bench.trial import STRIDE

#: Connections that may be open at once: more requests than that under way wait, and their waiting counts.
MAX_CONNECTIONS = 1_000

#: Longest wait for the last answers.
LAST_ANSWERS_S = 60.0

PERCENTILES = (50, 90, 99)

Times = NDArray[np.float64]

#: A connection to the server.
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Found:
    """The results of a load: percentiles of lateness and of latencies, of all and of each window, in milliseconds."""

    requests_per_s: float
    num_requests: int
    num_failed: int
    cpu_s: float
    late_ms: dict[str, float]
    all_ms: dict[str, float]
    windows_ms: list[dict[str, float]]


class PreciseSelector(EpollSelector):
    """An epoll that waits for microseconds, as select does, where epoll alone waits for milliseconds."""

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Return the sockets that are ready within the timeout in seconds."""
        select([self], [], [], timeout)
        return super().select(0)


@dataclass
class Generator:
    """The clients of one load; `times_s` has when each request was due, was sent and was answered."""

    url: str
    bodies: Sequence[bytes]
    seconds: float
    rate: float | None
    seed: int
    times_s: list[tuple[float, float, float]] = field(default_factory=list)
    num_failed: int = 0

    async def run(self, connections: int) -> None:
        """Send everything, and wait for the answers."""
        url, first = urlsplit(self.url), self.seed * STRIDE % len(self.bodies)
        self._connect = partial(asyncio.open_connection, url.hostname, url.port)
        head = f"POST {url.path} HTTP/1.1\r\nhost: {url.netloc}\r\ncontent-type: application/json\r\n".encode()
        bodies = [*self.bodies[first:], *self.bodies[:first]]
        self._requests = cycle([head + b"content-length: %d\r\n\r\n%s" % (len(body), body) for body in bodies])
        self._started = time.perf_counter()
        self._due: asyncio.Queue[float | None] = asyncio.Queue()
        clients = [asyncio.create_task(self._client()) for _ in range(connections)]
        if self.rate:
            gaps_s = np.random.default_rng(self.seed).exponential(1 / self.rate, int(2 * self.rate * self.seconds) + 10)
            arrivals = np.cumsum(gaps_s)
            for num_due, due_s in enumerate(arrivals[arrivals < self.seconds].tolist(), 1):
                await asyncio.sleep(due_s - self._now_s())
                if num_due - len(self.times_s) > len(clients) < MAX_CONNECTIONS:
                    clients.append(asyncio.create_task(self._client()))
                self._due.put_nowait(due_s)
            for _ in clients:
                self._due.put_nowait(None)
        _, unfinished = await asyncio.wait(clients, timeout=self.seconds - self._now_s() + LAST_ANSWERS_S)
        self.num_failed += len(unfinished)
        for client in unfinished:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    def _now_s(self) -> float:
        return time.perf_counter() - self._started

    async def _client(self) -> None:
        """Send requests as they are due, or without a rate one after the other, on one connection."""
        streams: Streams | None = None
        try:
            while (due_s := await self._next_due_s()) is not None:
                sent_s = self._now_s()
                try:
                    if not streams or streams[0].at_eof():  # the server closes connections that were idle for a while
                        _close(streams)
                        streams = await self._connect()
                    status = await self._status(streams)
                except (OSError, asyncio.IncompleteReadError):
                    _close(streams)
                    streams, status = None, 0
                self.num_failed += status != 200
                self.times_s.append((due_s, sent_s, self._now_s()))
        finally:
            _close(streams)

    async def _next_due_s(self) -> float | None:
        if self.rate:
            return await self._due.get()
        return now_s if (now_s := self._now_s()) < self.seconds else None

    async def _status(self, streams: Streams) -> int:
        """Send the next request; return the status once the answer is complete."""
        reader, writer = streams
        writer.write(next(self._requests))
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(None, 1)[0]))
        return int(head.split(b" ", 2)[1])


def _close(streams: Streams | None) -> None:
    if streams:
        streams[1].close()


def generate(
    url: str,
    bodies: Sequence[bytes],
    seconds: float,
    rate: float | None = None,
    connections: int = 64,
    window_s: float = 60.0,
    seed: int = 1,
) -> Found:
    """Send the bodies to one address for so many seconds.

    With a `rate`, requests a second, the times of arrival are random; without one, each of the connections sends its
    next request as soon as its last one is answered, which finds the server's capacity under this generator.
    """
    gc.freeze()
    generator, cpu_s = Generator(url, bodies, seconds, rate, seed), time.process_time()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(PreciseSelector())) as runner:
        runner.run(generator.run(connections))
    due_s, sent_s, answered_s = np.array(generator.times_s).reshape(-1, 3).T
    return Found(
        requests_per_s=int((answered_s <= seconds).sum()) / seconds,
        num_requests=len(due_s),
        num_failed=generator.num_failed,
        cpu_s=time.process_time() - cpu_s,
        late_ms=percentiles_ms(sent_s - due_s),
        all_ms=percentiles_ms(answered_s - due_s),
        windows_ms=windows_ms(due_s, answered_s - due_s, window_s),
    )


def percentiles_ms(times_s: Times) -> dict[str, float]:
    """Return the percentiles of the times in milliseconds, each the least of the times with so many at or below it."""
    if not len(times_s):
        return {}
    found = np.percentile(times_s, PERCENTILES, method="inverted_cdf") * 1_000
    return {f"p{percent} ms": float(value) for percent, value in zip(PERCENTILES, found, strict=True)}


def windows_ms(due_s: Times, latencies_s: Times, window_s: float) -> list[dict[str, float]]:
    """Return the percentiles of the requests that were due in each window, one window after the other."""
    windows = np.floor_divide(due_s, window_s).astype(int)
    return [percentiles_ms(latencies_s[windows == n]) for n in range(windows.max(initial=-1) + 1)]
