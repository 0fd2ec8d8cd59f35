"""The objects that all views share."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from flask import Flask
from flask.globals import app_ctx

from shoal.client.redis.async_client import AsyncClient
from shoal.long_jobs.long_jobs import LongJobs
from shoal.settings import Settings
from shoal_api.access.access_control import AccessControl
from shoal_api.long_jobs.upload_store import UploadStore
from shoal_api.metrics.metrics import Metrics
from shoal_api.protocol_paths import ProtocolPaths
from shoal_api.request import json_request
from shoal_api.server.async_flask import run_in
from shoal_api.viewers.pool_state import PoolReader

if TYPE_CHECKING:
    from shoal.process.spans import Tracer

#: Where an application has the context of its own pool, and the contexts of all.
_OWN, _ALL = "shoal", "shoal.pools"

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    """The parts that the requests for one pool share; `stopping` is set once the server is to stop."""

    settings: Settings
    client: AsyncClient
    metrics: Metrics
    access: AccessControl
    pool: PoolReader
    paths: ProtocolPaths
    long_jobs: LongJobs
    uploads: UploadStore
    stopping: Event
    threads: ThreadPoolExecutor
    tracer: "Tracer | None" = None

    async def in_thread(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Return the result of a function that blocks, from one of the threads for views."""
        return await run_in(self.threads, partial(function, *args, **named))

    @classmethod
    def of(cls, app: Flask) -> Self:
        """Return the context of the own pool of `app`."""
        found: Self = app.extensions[_OWN]
        return found

    @classmethod
    def all_of(cls, app: Flask) -> Mapping[str, Self]:
        """Return the contexts of `app` by the names of their pools, its own first."""
        found: Mapping[str, Self] = app.extensions[_ALL]
        return found


def attach(app: Flask, contexts: Mapping[str, Context]) -> None:
    """Give an application the contexts of its pools, by the names of these; the first one is its own."""
    app.extensions[_OWN], app.extensions[_ALL] = next(iter(contexts.values())), contexts


#: What Flask's proxy of the current application looks up.
_CURRENT: Any = app_ctx.__wrapped__  # type: ignore[attr-defined]


def context() -> Context:
    """Return the context of the pool that answers the current request."""
    app, pool = _CURRENT.get().app, json_request().pool
    return Context.all_of(app)[pool] if pool else Context.of(app)


def contexts() -> list[Context]:
    """Return the contexts of the pools that may answer the current request: one, once a pool is chosen."""
    return [context()] if json_request().pool else list(Context.all_of(_CURRENT.get().app).values())
