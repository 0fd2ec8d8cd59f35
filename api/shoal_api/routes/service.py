"""What the service says of itself: whether it lives and is ready, what it serves, and its metrics."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.tag import Tag
from prometheus_client import CONTENT_TYPE_LATEST

from shoal import __version__
from shoal.errors import NotReady
from shoal.excerpt import excerpt
from shoal.jobs import MAX_K
from shoal.settings import Settings
from shoal_api.context import context
from shoal_api.response import WholeResponse, rendered
from shoal_api.schema import ERRORS, Health, Indexes, Info, Links, Ready, ReadyQuery

api = APIBlueprint("service", __name__, abp_tags=[Tag(name="service")], abp_responses=ERRORS)

_OF_MODEL = ("model", "digest", "dimension", "max_tokens", "engine", "precision")
_OF_WORKER = ("state", *_OF_MODEL, "threads", "host", "pid")
_LIMITS = (
    "max_request_bytes",
    "max_request_texts",
    "max_text_chars",
    "max_job_texts",
    "max_backlog",
    "max_backlog_texts",
    "max_backlog_mb",
    "request_timeout_s",
    "result_ttl_s",
)

Workers = Mapping[str, Mapping[str, Any]]


@api.get("/health", responses={200: Health})
def health() -> Response:
    """Whether the process lives, and the threads that it cannot do without; asks nobody else."""
    _check_threads()
    return rendered({"status": "ok"})


@api.get("/ready", responses={200: Ready})
def ready(query: ReadyQuery) -> Response:
    """Whether requests will be answered: Redis answers, and a worker is at work with the index that is asked for.

    Without one, all indexes are asked for that the API's own settings name.
    """
    _check_threads()
    if context().stopping.is_set():
        raise NotReady("this server was told to stop: ask another one")
    workers = context().client.pool.workers()
    if not workers:
        raise NotReady("no worker is alive: start one with `shoal worker`")
    serving = _ready(workers)
    if not serving:
        states = _states(workers)
        raise NotReady(f"none of the {len(workers)} workers alive is ready ({states}): wait, or see their logs")
    wanted = [query.index] if query.index else sorted(context().settings.index_folders())
    if missing := [name for name in wanted if name not in _indexes(serving)]:
        raise NotReady(f"no ready worker serves the index {', '.join(map(excerpt, missing))}: start one with it")
    return rendered({"status": "ready", "workers": len(serving)})


@api.get("/info", responses={200: Info})
def info() -> Response:
    """What is served, by whom, and within which limits."""
    workers = context().client.pool.workers()
    serving = _ready(workers)
    first = next(iter(serving.values()), {})
    return rendered(
        {
            "version": __version__,
            **{name: first.get(name) for name in _OF_MODEL},
            "prompts": first.get("prompts", []),
            "indexes": _indexes(serving),
            "limits": _limits(context().settings),
            "workers": [{"id": worker_id, **_brief(about)} for worker_id, about in workers.items()],
            "workers_alive": len(workers),
        }
    )


@api.get("/v1/indexes", responses={200: Indexes})
def indexes() -> Response:
    """The indexes that are served."""
    found = _indexes(context().client.pool.ready())
    return rendered({"indexes": [{"name": name, **about} for name, about in found.items()]})


@api.get("/metrics", responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
def metrics() -> Response:
    """Metrics for Prometheus."""
    return WholeResponse(context().metrics.render(), content_type=CONTENT_TYPE_LATEST)


@api.get("/", responses={200: Links})
def root() -> Response:
    """Where to go from here."""
    links = {"docs": "/docs", "openapi": "/openapi.json", "info": "/info"}
    return rendered({"name": "shoal", "version": __version__, **links})


def _check_threads() -> None:
    """Raises NotReady if a thread is dead without which no reply arrives."""
    if not context().client.is_alive():
        raise NotReady("a thread that moves jobs and replies is dead: start this server again")


def _states(workers: Workers) -> str:
    """How many workers there are in each state."""
    states = Counter(str(about.get("state", "unknown")) for about in workers.values())
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))


def _ready(workers: Workers) -> Workers:
    return {worker_id: about for worker_id, about in workers.items() if about.get("state") == "ready"}


def _indexes(workers: Workers) -> dict[str, Any]:
    """Every index that some worker serves, by name, in order of the names."""
    found = {name: about for worker in workers.values() for name, about in worker.get("indexes", {}).items()}
    return dict(sorted(found.items()))


def _brief(about: Mapping[str, Any]) -> dict[str, Any]:
    return {name: about.get(name) for name in _OF_WORKER}


def _limits(settings: Settings) -> dict[str, Any]:
    values = asdict(settings)
    return {"max_k": MAX_K, **{name: values[name] for name in _LIMITS}}
