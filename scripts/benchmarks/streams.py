"""Clients that have many texts embedded: the vectors that each gets in a second."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection

from benchmarks.formats import BATCHES, FORMATS, SLOWEST
from shoal import AsyncClient, Client, HttpClient
from shoal.bench.trial import Row

#: Most unanswered calls, requests or jobs at a time, where more than one is allowed.
WINDOW = 8

#: Gets the vectors of all texts.
Stream = Callable[[Sequence[str]], object]


@contextmanager
def streams(connection: HTTPConnection, url: str, redis_url: str) -> Iterator[Mapping[tuple[str, str], Stream]]:
    """Yield the clients by their case and the words for them."""

    def by_format(name: str, size: int, texts: Sequence[str]) -> None:
        for part in parts(texts, size):
            FORMATS[name].decode(FORMATS[name].ask(connection, part))

    with Client(redis_url) as client, HttpClient(url) as http, asyncio.Runner() as runner:
        async_client = AsyncClient(redis_url)

        def by_calls(asked: Client | HttpClient, size: int, texts: Sequence[str]) -> None:
            for part in parts(texts, size):
                asked.embed(part)

        def by_awaits(window: int, size: int, texts: Sequence[str]) -> None:
            runner.run(_await_all(async_client, parts(texts, size), window))

        def by_async_stream(texts: Sequence[str]) -> None:
            runner.run(_drain(async_client, texts))

        found: dict[tuple[str, str], Stream] = {}
        for size in BATCHES:
            found |= {
                (f"{size} texts a call", name): partial(way, size)
                for name, way in {
                    f"HTTP, {SLOWEST}": partial(by_format, SLOWEST),
                    "HTTP, raw": partial(by_format, "raw"),
                    "`HttpClient`": partial(by_calls, http),
                    "`Client`": partial(by_calls, client),
                    "`AsyncClient`": partial(by_awaits, 1),
                    f"`AsyncClient`, {WINDOW} calls at a time": partial(by_awaits, WINDOW),
                }.items()
            }
        found["stream", "`HttpClient`"] = lambda texts: list(http.embed_stream(texts, window=WINDOW))
        found["stream", "`Client`"] = lambda texts: list(client.embed_stream(texts, window=WINDOW))
        found["stream", "`AsyncClient`"] = by_async_stream
        yield found
        runner.run(async_client.close())


def parts(texts: Sequence[str], size: int) -> list[Sequence[str]]:
    """Return the texts in parts of that size."""
    return [texts[n : n + size] for n in range(0, len(texts), size)]


async def _await_all(client: AsyncClient, calls: Sequence[Sequence[str]], window: int) -> None:
    """Let `window` tasks take the calls one after the other."""
    waiting = iter(calls)

    async def take() -> None:
        for texts in waiting:
            await client.embed(texts)

    async with asyncio.TaskGroup() as group:
        for _ in range(window):
            group.create_task(take())


async def _drain(client: AsyncClient, texts: Sequence[str]) -> None:
    async for _ in client.embed_stream(texts, window=WINDOW):
        pass


def measure(
    scenario: str, clients: Mapping[tuple[str, str], Stream], take: Callable[[], Sequence[str]], num_rounds: int
) -> list[Row]:
    """Return the vectors that each client gets in a second in each round.

    `take` returns the texts of a client's turn. Each round takes the clients in another order, after one to warm up.
    """
    order = random.Random(0)
    found: dict[tuple[str, str], list[float]] = {key: [] for key in clients}
    for _ in range(num_rounds + 1):
        for key in order.sample(list(clients), len(clients)):
            texts = take()
            started_s = time.perf_counter()
            clients[key](texts)
            found[key].append(len(texts) / (time.perf_counter() - started_s))
    return [Row(scenario, case, name, {"vectors/s": rates[1:]}) for (case, name), rates in found.items()]
