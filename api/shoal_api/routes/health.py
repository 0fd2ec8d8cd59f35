"""GET /health and GET /ready: the liveness of the process, and the readiness of the service."""

from collections import Counter

from flask import Response

from shoal.contract.excerpt import excerpt
from shoal.errors import NotReady
from shoal_api.answers.response import rendered
from shoal_api.context import context
from shoal_api.description import Blueprint
from shoal_api.schema.errors import ErrorBody
from shoal_api.schema.requests import ReadyQuery
from shoal_api.schema.responses import Health, Ready

api = Blueprint("health", __name__, "service", ErrorBody)


@api.get("/health", responses={200: Health})
async def health() -> Response:
    """Tell that the process answers; asks no other process."""
    return rendered({"status": "ok"})


@api.get("/ready", responses={200: Ready})
async def ready(query: ReadyQuery) -> Response:
    """Tell that requests will be answered: Redis answers, and a ready worker serves the index that is asked for.

    Without `index`, every index that the API's own settings name must be served.
    """
    return rendered({"status": "ready", "workers": await num_ready(query.index)})


async def num_ready(index: str | None = None) -> int:
    """Return the number of ready workers; raise NotReady if requests would not be answered."""
    if context().stopping.is_set():
        raise NotReady("this server was told to stop: ask another one")
    pool = await context().pool.read()
    if pool.lane_fault:
        raise NotReady(pool.lane_fault)
    if not pool.workers:
        raise NotReady("no worker is alive: start one with `shoal worker`")
    if not pool.ready:
        found = Counter(str(about.get("state", "unknown")) for about in pool.workers.values())
        states = ", ".join(f"{count} {state}" for state, count in sorted(found.items()))
        raise NotReady(f"none of the {len(pool.workers)} workers alive is ready ({states}): wait, or see their logs")
    wanted = [index] if index else sorted(context().settings.index_folders())
    if missing := [name for name in wanted if name not in pool.indexes]:
        raise NotReady(f"no ready worker serves the index {', '.join(map(excerpt, missing))}: start one that does")
    return len(pool.ready)
