"""All clients with the methods of `shoal.Client`, so that the same tests run against each client."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
from api_stub import close_app
from werkzeug.serving import make_server

from shoal import AsyncClient, AsyncHandle, AsyncIndexHandle, Client, HttpClient
from shoal.contract.jobs import Job
from shoal.contract.replies import Reply
from shoal.settings import Settings
from shoal_api.app import create_app

#: A client of any kind, with the methods of `shoal.Client` and further options.
AnyClient = Any

#: Makes a client, with the given settings of `shoal.Client`.
MakeClient = Callable[..., AnyClient]


class Awaiting:
    """An asynchronous client or one of its handles. Each method runs its coroutine in a loop to its end."""

    def __init__(self, asynchronous: Any, loop: asyncio.AbstractEventLoop):
        self.asynchronous = asynchronous
        self._loop = loop

    def run(self, steps: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of a coroutine that uses the client."""
        return asyncio.run_coroutine_threadsafe(steps, self._loop).result()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.asynchronous, name)
        if not callable(found):
            return found

        @wraps(found)
        def call(*args: Any, **options: Any) -> Any:
            result = found(*args, **options)
            if asyncio.iscoroutine(result):
                result = self.run(result)
            if isinstance(result, AsyncGenerator):
                return self._each(result)
            return Awaiting(result, self._loop) if isinstance(result, AsyncHandle | AsyncIndexHandle) else result

        return call

    def _each(self, stream: AsyncGenerator[Any]) -> Iterator[Any]:
        async def next_one() -> Any:
            return await anext(stream, None)

        try:
            while (one := self.run(next_one())) is not None:
                yield one
        finally:
            self.run(stream.aclose())


class Awaited(Awaiting):
    """An `AsyncClient` for tests without an event loop: its loop runs in a thread."""

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(AsyncClient(*args, **settings), asyncio.new_event_loop())
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def end(self) -> None:
        """Close the client and its event loop."""
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class OverHttp(HttpClient):
    """An `HttpClient` that repeats no request, and an API for it, made with the settings of `shoal.Client`."""

    def __init__(self, redis_url: str, *, key_prefix: str, pool: str, timeout_s: float, **options: Any):
        settings = Settings(redis_url, key_prefix, pool, request_timeout_s=timeout_s)
        self._app = create_app(settings)
        self._server = make_server("127.0.0.1", 0, self._app, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        super().__init__(f"http://127.0.0.1:{self._server.server_port}", timeout_s=timeout_s + 5, **options)

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


#: Each kind of client by its name. All take the URL of Redis and the settings of `shoal.Client`.
KINDS: dict[str, MakeClient] = {"Client": Client, "AsyncClient": Awaited, "HttpClient": OverHttp}


def bulk(client: AnyClient, source: Any, out: Path, **options: Any) -> Any:
    """Return the handle of a bulk embedding into the folder. An API ignores the folder and chooses one itself."""
    return client.bulk(source, **options) if isinstance(client, OverHttp) else client.bulk(source, out, **options)


def embed_together(client: AnyClient, texts: Sequence[str]) -> list[Any]:
    """Embed all texts at the same time, and return the vector or the error of each."""

    def outcome(text: str) -> Any:
        try:
            return client.embed(text)
        except Exception as error:
            return error

    with ThreadPoolExecutor(16) as threads:
        return list(threads.map(outcome, texts))


def end(client: AnyClient) -> None:
    """Close the client for good."""
    getattr(client, "end", client.close)()


def embed_one(client: AnyClient, text: str) -> np.ndarray:
    """Return the vector of a single text."""
    found = client.embed(text)
    assert isinstance(found, np.ndarray)
    return found
