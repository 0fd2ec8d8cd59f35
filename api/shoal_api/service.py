"""What the service says of itself: whether it lives and is ready, what it serves, and its metrics."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.tag import Tag
from prometheus_client import CONTENT_TYPE_LATEST

from shoal import __version__
from shoal.errors import NotReady
from shoal.jobs import MAX_K
from shoal.settings import Settings
from shoal_api.context import context
from shoal_api.response import rendered
from shoal_api.schema import ERRORS, Health, Indexes, Info, Links, Ready

api = APIBlueprint("service", __name__, abp_tags=[Tag(name="service")], abp_responses=ERRORS)

_OF_MODEL = ("model", "digest", "dimension", "max_tokens", "engine", "precision")
_OF_WORKER = ("state", *_OF_MODEL, "threads", "host", "pid")
_LIMITS = (
    "max_request_bytes",
    "max_request_texts",
    "max_text_chars",
    "max_job_texts",
    "max_backlog",
    "request_timeout_s",
    "result_ttl_s",
)

Workers = Mapping[str, Mapping[str, Any]]


@api.get("/health", responses={200: Health})
def health() -> Response:
    """Whether the process lives; touches nothing else."""
    return rendered({"status": "ok"})


@api.get("/ready", responses={200: Ready})
def ready() -> Response:
    """Whether requests will be answered: Redis answers and a worker has its model and indexes open."""
    workers = context().client.pool.workers()
    num_ready = len(_ready(workers))
    if workers and not num_ready:
        raise NotReady(f"none of the {len(workers)} workers alive is ready: wait until one has loaded its model")
    if not workers:
        raise NotReady("no worker is alive: start one with `shoal worker`")
    return rendered({"status": "ready", "workers": num_ready})


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
    return Response(context().metrics.render(), content_type=CONTENT_TYPE_LATEST)


@api.get("/", responses={200: Links})
def root() -> Response:
    """Where to go from here."""
    links = {"docs": "/docs", "openapi": "/openapi.json", "info": "/info"}
    return rendered({"name": "shoal", "version": __version__, **links})


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
