"""The objects that all views share."""

from collections.abc import Callable
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
from shoal_api.server.async_flask import run_in
from shoal_api.viewers.pool_state import PoolReader

if TYPE_CHECKING:
    from shoal.process.spans import Tracer

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    """The parts that one application shares between its requests; `stopping` is set once its server is to stop."""

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
        """Return the context of `app`."""
        found: Self = app.extensions["shoal"]
        return found


#: What Flask's proxy of the current application looks up.
_CURRENT: Any = app_ctx.__wrapped__  # type: ignore[attr-defined]


def context() -> Context:
    """Return the context of the application that handles the current request."""
    return Context.of(_CURRENT.get().app)
