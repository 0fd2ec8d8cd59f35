"""The objects that all views share."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, ParamSpec, TypeVar

from flask.globals import app_ctx

from shoal.client.redis.async_client import AsyncClient
from shoal.long_jobs.long_jobs import LongJobs
from shoal.process.tracing import Tracer
from shoal.settings import Settings
from shoal_api.access.access_control import AccessControl
from shoal_api.long_jobs.upload_store import UploadStore
from shoal_api.metrics.metrics import Metrics
from shoal_api.pool.pool_state import PoolReader
from shoal_api.protocol_paths import ProtocolPaths
from shoal_api.request import json_request
from shoal_api.server.async_flask import run_in

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    """The objects that all requests for one pool share. `stopping` is set once the server is told to stop."""

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
    tracer: Tracer | None

    async def in_thread(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run a blocking function in one of the threads for views, and return its result."""
        return await run_in(self.threads, partial(function, *args, **named))


#: The context variable behind Flask's proxy of the current application.
_CURRENT: Any = app_ctx.__wrapped__  # type: ignore[attr-defined]


def context() -> Context:
    """Return the context of the pool that answers the current request."""
    app, pool = _CURRENT.get().app, json_request().pool
    found: Context = app.contexts[pool] if pool else app.own
    return found


def contexts() -> list[Context]:
    """Return the contexts of the pools that may answer the current request: only one if its pool is already chosen."""
    return [context()] if json_request().pool else all_contexts()


def all_contexts() -> list[Context]:
    """Return the contexts of all pools, the application's own pool first."""
    return list(_CURRENT.get().app.contexts.values())
