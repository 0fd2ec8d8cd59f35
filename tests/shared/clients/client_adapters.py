"""The clients with one surface, so that the same tests run against each of them."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from werkzeug.serving import make_server

from shoal import AsyncClient, AsyncHandle, AsyncIndexHandle, AsyncLongHandle, Client, HttpClient
from shoal.contract.jobs import Job
from shoal.contract.replies import Reply
from shoal.settings import Settings
from shoal_api.app import close_app, create_app


class AnyHandle(Protocol):
    """A submitted job."""

    @property
    def id(self) -> str:
        """Return the job's id."""

    def result(self, timeout_s: float | None = None) -> Reply:
        """Return the job's reply."""

    def status(self) -> str:
        """Return the job's status."""

    def cancel(self) -> str:
        """Cancel the job."""


class AnyClient(Protocol):
    """The methods that all clients have."""

    def embed(self, texts: str | Iterable[str], **options: Any) -> Any:
        """Return vectors."""

    def search(
        self, queries: str | Iterable[str] = (), k: int = 5, index: str = "default", **options: Any
    ) -> list[Any]:
        """Return hits."""

    def find(self, queries: str | Iterable[str] = (), k: int = 5, index: str = "default", **options: Any) -> Reply:
        """Return the reply to a search."""

    def rerank(self, query: str, texts: Iterable[str], *, raw_scores: bool = False, **options: Any) -> Any:
        """Return scores."""

    def embed_stream(self, texts: Iterable[str], *, window: int = 64, lane: str = "bulk", **options: Any) -> Any:
        """Return a generator of vectors."""

    def submit(self, op: str, texts: str | Iterable[str], **options: Any) -> AnyHandle:
        """Put a job."""

    def put(self, job: Job, lane: str = "interactive", client: str = "", idempotency_key: str | None = None) -> str:
        """Put a job, and return its id."""

    def job(self, job_id: str) -> AnyHandle:
        """Return the handle of a job."""

    def call(self, job: Job, *, lane: str = "interactive", timeout_s: float | None = None, client: str = "") -> Reply:
        """Return the reply to a job."""

    @property
    def bulk(self) -> Callable[..., Any]:
        """Submit a long job; see `bulk` below."""

    def index(self, name: str) -> Any:
        """Return the handle of an index."""

    def long_job(self, job_id: str) -> Any:
        """Return the handle of a long job."""

    def close(self) -> None:
        """Close the client."""


class Awaited:
    """An `AsyncClient` for tests without an event loop: its loop runs in a thread."""

    def __init__(self, *args: Any, **settings: Any):
        self.client = AsyncClient(*args, **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, steps: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of a coroutine that uses the client."""
        return asyncio.run_coroutine_threadsafe(steps, self._loop).result()

    def embed(self, texts: str | Iterable[str], **options: Any) -> Any:
        """Return vectors."""
        return self.run(self.client.embed(texts, **options))

    def search(
        self, queries: str | Iterable[str] = (), k: int = 5, index: str = "default", **options: Any
    ) -> list[Any]:
        """Return hits."""
        return list(self.run(self.client.search(queries, k, index, **options)))

    def find(self, queries: str | Iterable[str] = (), k: int = 5, index: str = "default", **options: Any) -> Reply:
        """Return the reply to a search."""
        return cast(Reply, self.run(self.client.find(queries, k, index, **options)))

    def rerank(self, query: str, texts: Iterable[str], *, raw_scores: bool = False, **options: Any) -> Any:
        """Return scores."""
        return self.run(self.client.rerank(query, texts, raw_scores=raw_scores, **options))

    def embed_stream(
        self, texts: Iterable[str], *, window: int = 64, lane: str = "bulk", **options: Any
    ) -> Iterator[Any]:
        """Yield vectors."""
        stream = self.client.embed_stream(texts, window=window, lane=lane, **options)

        async def next_vector() -> Any:
            return await anext(stream, None)

        try:
            while (vector := self.run(next_vector())) is not None:
                yield vector
        finally:
            self.run(stream.aclose())

    def submit(self, op: str, texts: str | Iterable[str], **options: Any) -> "AwaitedHandle":
        """Put a job."""
        return AwaitedHandle(self, self.run(self.client.submit(op, texts, **options)))

    def put(self, job: Job, lane: str = "interactive", client: str = "", idempotency_key: str | None = None) -> str:
        """Put a job, and return its id."""
        return str(self.run(self.client.put(job, lane, client, idempotency_key)))

    def job(self, job_id: str) -> "AwaitedHandle":
        """Return the handle of a job."""
        return AwaitedHandle(self, self.client.job(job_id))

    def call(self, job: Job, **options: Any) -> Reply:
        """Return the reply to a job."""
        reply: Reply = self.run(self.client.call(job, **options))
        return reply

    def bulk(self, *args: Any, **options: Any) -> "AwaitedLongHandle":
        """Submit a long job."""
        return AwaitedLongHandle(self, self.run(self.client.bulk(*args, **options)))

    def index(self, name: str) -> "AwaitedLongHandle":
        """Return the handle of an index."""
        return AwaitedLongHandle(self, self.client.index(name))

    def long_job(self, job_id: str) -> "AwaitedLongHandle":
        """Return the handle of a long job."""
        return AwaitedLongHandle(self, self.client.long_job(job_id))

    def close(self) -> None:
        """Close the client; a later call opens it again."""
        self.run(self.client.close())

    def end(self) -> None:
        """Close the client and its event loop."""
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class OverHttp(HttpClient):
    """An `HttpClient` and an API for it, which is made with the settings of `shoal.Client`. It tries nothing again."""

    def __init__(self, redis_url: str, *, key_prefix: str, pool: str, timeout_s: float):
        settings = Settings(redis_url, key_prefix, pool, request_timeout_s=timeout_s)
        self._app = create_app(settings)
        self._server = make_server("127.0.0.1", 0, self._app, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        super().__init__(f"http://127.0.0.1:{self._server.server_port}", timeout_s=timeout_s + 5)

    def ask(self, method: str, path: str, until: float | None = None, **options: Any) -> Any:
        """Send a request once."""
        return super().ask(method, path, until, **options | {"pause": lambda _: True})

    def call(self, job: Job, *, lane: str = "interactive", timeout_s: float | None = None, client: str = "") -> Reply:
        """Return the reply to a job."""
        return self.submit(job.op, job.texts, lane=lane).result(timeout_s)

    def end(self) -> None:
        """Close the client and stop its API."""
        self.close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        close_app(self._app)


class AwaitedHandle:
    """The handle of such a client."""

    def __init__(self, client: Awaited, handle: AsyncHandle):
        self.id = handle.id
        self._client = client
        self._handle = handle

    def result(self, timeout_s: float | None = None) -> Reply:
        """Return the job's reply."""
        reply: Reply = self._client.run(self._handle.result(timeout_s))
        return reply

    def status(self) -> str:
        """Return the job's status."""
        return str(self._client.run(self._handle.status()))

    def cancel(self) -> str:
        """Cancel the job."""
        return str(self._client.run(self._handle.cancel()))


class AwaitedLongHandle:
    """The handle of such a client for a long job or an index, each method of which is a coroutine."""

    def __init__(self, client: Awaited, handle: AsyncLongHandle | AsyncIndexHandle):
        self._client = client
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._handle, name)
        if not iscoroutinefunction(found):
            return found

        def run(*args: Any, **options: Any) -> Any:
            result = self._client.run(found(*args, **options))
            return AwaitedLongHandle(self._client, result) if isinstance(result, AsyncLongHandle) else result

        return run


def bulk(client: AnyClient, source: Any, out: Path, **options: Any) -> Any:
    """Return the handle of a bulk embedding into the folder, which an API chooses by itself."""
    return client.bulk(source, **options) if isinstance(client, OverHttp) else client.bulk(source, out, **options)


def embed_together(client: AnyClient, texts: Sequence[str]) -> list[Any]:
    """Return for each text its vector or its error; all are embedded at the same time."""
    if isinstance(client, Awaited):
        own = client.client

        async def gather() -> list[Any]:
            return await asyncio.gather(*map(own.embed, texts), return_exceptions=True)

        return list(client.run(gather()))

    def outcome(text: str) -> Any:
        try:
            return client.embed(text)
        except Exception as error:
            return error

    with ThreadPoolExecutor(16) as threads:
        return list(threads.map(outcome, texts))


def end(client: AnyClient) -> None:
    """Close the client for good."""
    client.end() if isinstance(client, Awaited | OverHttp) else client.close()


#: Makes a client, with other settings of `shoal.Client` where they are given.
MakeClient = Callable[..., AnyClient]

#: Each kind of client by its name. All are made with the URL of Redis and the settings of `shoal.Client`.
KINDS: dict[str, Callable[..., AnyClient]] = {"Client": Client, "AsyncClient": Awaited, "HttpClient": OverHttp}


def embed_one(client: AnyClient, text: str) -> np.ndarray:
    """Return the vector of a text that is embedded by itself."""
    found = client.embed(text)
    assert isinstance(found, np.ndarray)
    return found
