"""GET /info: model, limits and workers."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flask import Response

from shoal import __version__
from shoal.operations.search import MAX_K
from shoal.settings import Settings
from shoal_api.access.access_control import MAX_CONNECTIONS
from shoal_api.answers.response import rendered
from shoal_api.context import context
from shoal_api.description import Blueprint
from shoal_api.schema.errors import ErrorBody
from shoal_api.schema.responses import Info

api = Blueprint("info", __name__, "service", ErrorBody)

_MODEL_FIELDS = ("model", "digest", "dimension", "max_tokens", "engine", "precision")
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


@api.get("/info", responses={200: Info})
async def info() -> Response:
    """Tell the model, the indexes, the workers and the limits of the service."""
    return rendered(await describe())


async def describe() -> dict[str, Any]:
    """Return the description of the service, with the fields that clients of Text Embeddings Inference read."""
    pool, settings = await context().pool.read(), context().settings
    first = next(iter(pool.ready.values()), {})
    return {
        "version": __version__,
        **{name: first.get(name) for name in _MODEL_FIELDS},
        "prompts": first.get("prompts", []),
        "reranker": first.get("reranker"),
        "indexes": pool.indexes,
        "limits": _limits(settings),
        "workers": [
            {"id": worker_id, **{name: about.get(name) for name in _WORKER_FIELDS}}
            for worker_id, about in pool.workers.items()
        ],
        "workers_alive": len(pool.workers),
        **await _tei_fields(first, settings),
    }


async def _tei_fields(worker: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the fields of Text Embeddings Inference; the fields of a build are null, as Shoal has no build."""
    model = worker.get("model")
    max_vectors = settings.max_response_mb * 2**20 // (4 * max(1, await context().pool.dimension()))
    return {
        "model_id": model or "",
        "served_model_name": model or "",
        "model_sha": None,
        "model_dtype": _DTYPES.get(str(worker.get("precision")), "float32"),
        "model_type": {"embedding": {"pooling": worker.get("pooling", "mean")}},
        "max_concurrent_requests": settings.api_processes * MAX_CONNECTIONS,
        "max_input_length": worker.get("max_tokens"),
        "max_batch_tokens": settings.max_batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": min(settings.max_backlog_texts, max_vectors),
        "auto_truncate": True,
        "tokenization_workers": None,
        "sha": None,
        "docker_label": None,
    }


def _limits(settings: Settings) -> dict[str, Any]:
    values = asdict(settings)
    return {"max_k": MAX_K, **{name: values[name] for name in _LIMITS}}
