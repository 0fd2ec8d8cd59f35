"""The objects that all views share."""

from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Self, cast

from flask import Flask
from flask.globals import app_ctx

from shoal.client.redis.client import Client
from shoal.long_jobs.long_jobs import LongJobs
from shoal.settings import Settings
from shoal_api.access.access_control import AccessControl
from shoal_api.pool_state import PoolReader
from shoal_api.pool_watch import PoolWatch
from shoal_api.protocol_paths import ProtocolPaths
from shoal_api.server.disconnects import Disconnects
from shoal_api.server.metrics import Metrics
from shoal_api.upload_store import UploadStore

if TYPE_CHECKING:
    from shoal.spans import Tracer

_KEY = "shoal"


@dataclass(frozen=True, slots=True)
class Context:
    """The parts that one application shares between its requests; `stopping` is set once its server is to stop."""

    settings: Settings
    client: Client
    metrics: Metrics
    access: AccessControl
    pool: PoolReader
    disconnects: Disconnects
    paths: ProtocolPaths
    long_jobs: LongJobs
    uploads: UploadStore
    pool_watch: PoolWatch
    stopping: Event
    tracer: "Tracer | None" = None

    def attach(self, app: Flask) -> None:
        """Make this the context of `app`."""
        app.extensions[_KEY] = self

    @classmethod
    def of(cls, app: Flask) -> Self:
        """Return the context of `app`."""
        return cast(Self, app.extensions[_KEY])


def context() -> Context:
    """Return the context of the application that handles the current request."""
    return Context.of(app_ctx.app)
