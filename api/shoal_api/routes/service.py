"""GET /health, /ready, /info and /metrics: the state of the service, its models and indexes, and its measurements."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from flask import Response
from prometheus_client import CONTENT_TYPE_LATEST

from shoal import __version__
from shoal.contract.excerpt import excerpt
from shoal.errors import NotReady, ShoalError
from shoal.operations.search import MAX_K
from shoal_api.access.access_control import MAX_CONNECTIONS
from shoal_api.answers.response import WholeResponse, json_response
from shoal_api.blueprint import Blueprint
from shoal_api.context import context
from shoal_api.pool.pool_snapshot import PoolSnapshot
from shoal_api.request import json_request
from shoal_api.schema.error_statuses import ErrorBody
from shoal_api.schema.requests import ReadyQuery
from shoal_api.schema.responses import DocumentedAnswer, Info, Ready

api = Blueprint("service", __name__, "service", ErrorBody)

_MODEL_FIELDS = (
    *("model", "digest", "fingerprint", "dimension", "matryoshka_dimensions", "max_tokens", "outputs"),
    *("engine", "precision"),
)
_WORKER_FIELDS = ("state", *_MODEL_FIELDS, "threads", "host", "pid", "clock_offset_s", "clock_error_s")

#: Text Embeddings Inference's words for number formats.
_DTYPES = {"bf16": "bfloat16", "int8": "int8"}

_LIMITS = (
    "max_request_bytes",
    "max_response_mb",
    "max_text_chars",
    "max_job_texts",
    "max_backlog",
    "max_backlog_texts",
    "max_backlog_mb",
    "request_timeout_s",
    "max_reply_mb",
    "max_result_mb",
    "result_ttl_s",
    "max_upload_mb",
    "max_uploads_mb",
    "max_results_mb",
    "max_long_jobs_per_client",
)


@api.get("/health", responses={200: DocumentedAnswer})
async def health() -> Response:
    """Check that this process answers, without asking any other process."""
    return json_response({"status": "ok"})


@api.get("/ready", responses={200: Ready})
async def ready(query: ReadyQuery) -> Response:
    """Check that requests will be answered: Redis answers, and a ready worker serves the index that is asked for.

    Without `index`, every index that the API's own settings name must be served.
    """
    return json_response({"status": "ready", "workers": await num_ready(query.index)})


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


@api.get("/info", responses={200: Info})
async def info() -> Response:
    """Describe the service: its model, indexes, workers and limits."""
    return json_response(await describe())


async def is_sparse() -> bool:
    """Return True if the model of the ready workers makes only sparse vectors."""
    outputs = next(iter((await context().pool.read()).ready.values()), {}).get("outputs", [])
    return "sparse" in outputs and "vector" not in outputs


async def describe() -> dict[str, Any]:
    """Return a description of the service, with the fields that clients of Text Embeddings Inference read."""
    pool, settings = await context().pool.read(), context().settings
    first: Mapping[str, Any] = next(iter(pool.ready.values()), {})
    model = first.get("model") or ""
    max_vectors = settings.max_response_mb * 2**20 // (4 * max(1, await context().pool.dimension()))
    return {
        "version": __version__,
        **{name: first.get(name) for name in _MODEL_FIELDS},
        "prompts": first.get("prompts", []),
        "reranker": first.get("reranker"),
        "indexes": pool.indexes,
        "limits": {"max_k": MAX_K, **{name: getattr(settings, name) for name in _LIMITS}},
        "workers": [
            {"id": worker_id, **{name: about.get(name) for name in _WORKER_FIELDS}}
            for worker_id, about in pool.workers.items()
        ],
        "workers_alive": len(pool.workers),
        # Fields of Text Embeddings Inference. Its fields about a build are null, because Shoal has no build.
        "model_id": model,
        "served_model_name": model,
        "model_dtype": _DTYPES.get(str(first.get("precision")), "float32"),
        "model_type": {"embedding": {"pooling": "splade" if await is_sparse() else first.get("pooling", "mean")}},
        "max_concurrent_requests": settings.api_processes * MAX_CONNECTIONS,
        "max_input_length": first.get("max_tokens"),
        "max_batch_tokens": settings.max_batch_tokens,
        "max_client_batch_size": min(settings.max_backlog_texts, max_vectors),
        "auto_truncate": True,
        **dict.fromkeys(("model_sha", "max_batch_requests", "tokenization_workers", "sha", "docker_label")),
    }


@api.get("/metrics", responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
async def metrics() -> Response:
    """Report metrics for Prometheus."""
    pool, memory, queue = None, None, context().client.queue
    with suppress(ShoalError):
        pool = await PoolSnapshot.take(queue)
        memory = await queue.commands.execute("INFO", "memory")  # the API's Redis user may lack the permission
    text = await context().in_thread(context().metrics.render, pool, memory, not json_request().pool)
    return WholeResponse(text, content_type=CONTENT_TYPE_LATEST)
