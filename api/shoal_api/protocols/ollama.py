"""Ollama: /api/embed, /api/embeddings, and the routes by which its clients find models."""

import time
from datetime import UTC, datetime
from typing import Any

from flask import Response

from shoal import __version__
from shoal.contract.excerpt import excerpt
from shoal.contract.options import Options
from shoal.contract.replies import Reply
from shoal.errors import InvalidRequest, ModelNotFound
from shoal_api.answers.response import json_response
from shoal_api.blueprint import Blueprint
from shoal_api.context import context
from shoal_api.enqueue import answer_vectors
from shoal_api.protocols.model_routing import known_names, model_heartbeat, route_to_model, served_models
from shoal_api.request import json_request
from shoal_api.schema.body import Body, Dimensions, Ignored, Name, Text, Texts, example
from shoal_api.schema.error_statuses import BAD_REQUEST, one_field
from shoal_api.schema.responses import ProtocolFacts, ProtocolVectors


class OllamaEmbedBody(Body):
    """Texts to embed."""

    model_config = example(model="sentence-transformers/all-MiniLM-L6-v2", input=["a text"])
    model: Name
    input: Texts
    truncate: bool | None = None
    dimensions: Dimensions | None = None
    options: Ignored = None
    keep_alive: Ignored = None


class OllamaPromptBody(Body):
    """A text to embed."""

    model_config = example(model="sentence-transformers/all-MiniLM-L6-v2", prompt="a text")
    model: Name
    prompt: Text
    options: Ignored = None
    keep_alive: Ignored = None


class OllamaModelBody(Body):
    """The name of a model."""

    model_config = example(model="sentence-transformers/all-MiniLM-L6-v2")
    model: Name | None = None
    name: Name | None = None  # older name of `model`

    def asked(self) -> str:
        """Return the name of the model; raises InvalidRequest without one."""
        if name := self.model or self.name:
            return name
        raise InvalidRequest("model is missing: send model, or its older name `name`")


class OllamaShowBody(OllamaModelBody):
    """A model to describe."""

    verbose: Ignored = None
    system: Ignored = None
    template: Ignored = None
    options: Ignored = None


class OllamaPullBody(OllamaModelBody):
    """A model to pull. Only a served model can be pulled, and nothing is loaded."""

    stream: bool | None = None
    insecure: Ignored = None


api = Blueprint("ollama", __name__, "Ollama", one_field("OllamaError", "error", BAD_REQUEST))

#: Shown as the time of each model's last change, because the real time is not known.
_NEVER = datetime.fromtimestamp(0, UTC).isoformat()


@api.post("/api/embed", responses={200: ProtocolVectors})
async def embed(body: OllamaEmbedBody) -> Response:
    """Embed texts: one vector of length 1 for each, in order."""
    await route_to_model(body.model)
    dimensions, known = body.dimensions, await context().pool.dimension()
    if dimensions and 0 < known <= dimensions:
        dimensions = None
    options = Options(truncate=body.truncate is not False, dimensions=dimensions)

    def in_json(reply: Reply) -> dict[str, Any]:
        spent_ns = int((time.perf_counter() - json_request().started_s) * 1e9)
        cost = {"total_duration": spent_ns, "load_duration": 0, "prompt_eval_count": sum(reply.tokens)}
        return {"model": reply.model, "embeddings": reply.vectors, **cost}

    return await answer_vectors(body.input, options, in_json)


@api.post("/api/embeddings", responses={200: ProtocolVectors})
async def embeddings(body: OllamaPromptBody) -> Response:
    """Embed one text."""
    await route_to_model(body.model)

    def in_json(reply: Reply) -> dict[str, Any]:
        assert reply.vectors is not None
        return {"embedding": reply.vectors[0]}

    return await answer_vectors(body.prompt, Options(), in_json, remedy="cut the text")


@api.get("/api/tags", responses={200: ProtocolFacts})
async def tags() -> Response:
    """List the served model under each of its names, aliases included."""
    return json_response({"models": [await _about(name) for name in await known_names()]})


@api.get("/api/ps", responses={200: ProtocolFacts})
async def running() -> Response:
    """List the models in memory, which are the served models."""
    return json_response({"models": [await _about(name) for name in await served_models()]})


@api.post("/api/show", responses={200: ProtocolFacts})
async def show(body: OllamaShowBody) -> Response:
    """Describe a model."""
    await route_to_model(name := body.asked())
    model = await model_heartbeat(name)
    if model is None:
        raise ModelNotFound(f"no ready worker serves {excerpt(name)}: wait for one")
    sizes = {"embedding_length": model.get("dimension"), "context_length": model.get("max_tokens")}
    info = {"general.architecture": "bert", **{f"bert.{size}": value for size, value in sizes.items()}}
    about = {"details": _details(model), "model_info": info, "capabilities": ["embedding"], "modified_at": _NEVER}
    return json_response(about)


@api.post("/api/pull", responses={200: ProtocolFacts})
async def pull(body: OllamaPullBody) -> Response:
    """Confirm that a model is served, because clients ask before they use it. No other model can be pulled."""
    await route_to_model(body.asked())
    kind = "application/json" if body.stream is False else "application/x-ndjson"
    return json_response({"status": "success"}, media_type=kind)


@api.get("/api/version", responses={200: ProtocolFacts})
async def version() -> Response:
    """Return the version of Shoal."""
    return json_response({"version": __version__})


async def _about(name: str) -> dict[str, Any]:
    model = await model_heartbeat(name) or {}
    return {
        "name": name,
        "model": name,
        "modified_at": _NEVER,
        "size": 0,
        "digest": model.get("digest") or "",
        "details": _details(model),
    }


def _details(model: Any) -> dict[str, Any]:
    about = {"format": "shoal", "family": "bert", "families": ["bert"], "parameter_size": ""}
    return about | {"quantization_level": str(model.get("precision", ""))}
