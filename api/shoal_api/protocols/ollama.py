"""Ollama: /api/embed, /api/embeddings, and the routes by which its clients find models."""

import time
from datetime import UTC, datetime
from typing import Any

from flask import Response
from flask_openapi3.models.tag import Tag

from shoal import __version__
from shoal.errors import ModelNotFound
from shoal_api.context import context
from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.model_names import check_model, describe_model, known_names, served_models
from shoal_api.request import json_request
from shoal_api.response import json_line, rendered, sent
from shoal_api.schema.ollama import (
    OllamaEmbedBody,
    OllamaEmbedding,
    OllamaEmbeddings,
    OllamaError,
    OllamaModels,
    OllamaPromptBody,
    OllamaPullBody,
    OllamaShow,
    OllamaShowBody,
    OllamaStatus,
    OllamaVersion,
)
from shoal_api.vector_format import VectorFormat, arrays_of

api = Blueprint(
    "ollama", __name__, abp_tags=[Tag(name="Ollama")], abp_responses={"4XX": OllamaError, "5XX": OllamaError}
)

#: The time when a model was changed: not known.
_NEVER = datetime.fromtimestamp(0, UTC).isoformat()


@api.post("/api/embed", responses={200: OllamaEmbeddings})
async def embed(body: OllamaEmbedBody) -> Response:
    """Embed texts: one vector of length 1 for each, in order."""
    await check_model(body.model)
    wanted = VectorFormat.of_request()
    reply = await call(body.job(await context().pool.dimension()), remedy="split the list")
    spent_ns = int((time.perf_counter() - json_request().started_s) * 1e9)
    cost = {"total_duration": spent_ns, "load_duration": 0, "prompt_eval_count": sum(reply.tokens)}
    answer = {"model": reply.model, "embeddings": reply.vectors, **cost}
    return wanted.answer(reply, arrays_of(reply), in_json=lambda: answer)


@api.post("/api/embeddings", responses={200: OllamaEmbedding})
async def embeddings(body: OllamaPromptBody) -> Response:
    """Embed one text."""
    await check_model(body.model)
    wanted = VectorFormat.of_request()
    reply = await call(body.job(), remedy="cut the text")
    assert reply.vectors is not None
    row = reply.vectors[0]
    return wanted.answer(reply, arrays_of(reply), in_json=lambda: {"embedding": row})


@api.get("/api/tags", responses={200: OllamaModels})
async def tags() -> Response:
    """List the model that is served under each of its names, the aliases too."""
    return rendered({"models": [await _about(name) for name in known_names(await served_models())]})


@api.get("/api/ps", responses={200: OllamaModels})
async def running() -> Response:
    """List the models that are in memory: those that are served."""
    return rendered({"models": [await _about(name) for name in await served_models()]})


@api.post("/api/show", responses={200: OllamaShow})
async def show(body: OllamaShowBody) -> Response:
    """Tell about a model."""
    await check_model(name := body.asked())
    model = await describe_model(name)
    if model is None:
        raise ModelNotFound("no model is served: no worker is ready")
    sizes = {"embedding_length": model.get("dimension"), "context_length": model.get("max_tokens")}
    info = {"general.architecture": "bert", **{f"bert.{size}": value for size, value in sizes.items()}}
    about = {"details": _details(model), "model_info": info, "capabilities": ["embedding"], "modified_at": _NEVER}
    return rendered(about)


@api.post("/api/pull", responses={200: OllamaStatus})
async def pull(body: OllamaPullBody) -> Response:
    """Tell that a model is there, which clients ask for before they use it; no other can be had."""
    await check_model(body.asked())
    kind = "application/json" if body.stream is False else "application/x-ndjson"
    return sent(json_line({"status": "success"}), kind)


@api.get("/api/version", responses={200: OllamaVersion})
async def version() -> Response:
    """Tell the version of Shoal."""
    return rendered({"version": __version__})


async def _about(name: str) -> dict[str, Any]:
    model = await describe_model(name) or {}
    return {
        "name": name,
        "model": name,
        "modified_at": _NEVER,
        "size": 0,
        "digest": model.get("digest") or "",
        "details": _details(model),
    }


def _details(model: Any) -> dict[str, Any]:
    precision = str(model.get("precision", ""))
    return {
        "format": "shoal",
        "family": "bert",
        "families": ["bert"],
        "parameter_size": "",
        "quantization_level": precision,
    }
