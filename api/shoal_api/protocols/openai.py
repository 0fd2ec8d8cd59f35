"""OpenAI: POST /v1/embeddings, GET /v1/models and GET /v1/models/{model}."""

from typing import Any, Literal

from flask import Response
from pydantic import BaseModel
from werkzeug.routing import BaseConverter

from shoal.contract.excerpt import excerpt
from shoal.contract.replies import Reply
from shoal.errors import ModelNotFound
from shoal_api.answers.response import json_response
from shoal_api.answers.vector_format import base64_rows
from shoal_api.blueprint import Blueprint
from shoal_api.enqueue import answer_vectors, as_texts
from shoal_api.protocols.model_routing import model_heartbeat, options_for, route_to_model, served_models
from shoal_api.schema.body import Body, Ignored, Name, ShortenedTo, TruncateTo, example
from shoal_api.schema.error_statuses import BAD_REQUEST, UNSUPPORTED, ErrorShape
from shoal_api.schema.requests import TextsOrIds
from shoal_api.schema.responses import ProtocolFacts, ProtocolVectors


class EmbeddingsBody(Body):
    """Texts to embed."""

    model_config = example(input=["a text", "another text"])
    input: TextsOrIds
    model: Name | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: ShortenedTo = None
    truncate_prompt_tokens: TruncateTo = None
    drop_params: Ignored = None
    user: Ignored = None


class ModelPath(BaseModel):
    """The part of a route that names a model."""

    model: Name


#: OpenAI's words for the kinds of errors, keyed by status. Any other error below 500 is an `invalid_request_error`.
_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class OpenAIError(ErrorShape):
    """The body of a response with an error. `detail` is the message again: Voyage's and Jina's clients read it."""

    detail: str
    error: dict[str, str | None]

    statuses = BAD_REQUEST | UNSUPPORTED

    @classmethod
    def error_body(cls, code: str, message: str, status: int) -> dict[str, Any]:
        """Return the body of an error."""
        kind = "server_error" if status >= 500 else _KINDS.get(status, "invalid_request_error")
        error = {"message": message, "type": kind, "param": None, "code": code}
        return {"detail": message, "error": error}


api = Blueprint("openai", __name__, "OpenAI", OpenAIError)


class ModelName(BaseConverter):
    """The rest of a path as a model's name. The name may contain slashes, and begins with one if it is a folder."""

    regex = ".+"
    part_isolating = False


api.record(lambda state: state.app.url_map.converters.update(model_name=ModelName))


@api.post("/v1/embeddings", responses={200: ProtocolVectors})
async def embeddings(body: EmbeddingsBody) -> Response:
    """Embed texts: one vector of length 1 for each, in order."""
    options = await options_for(body.model, dimensions=body.dimensions)
    texts = await as_texts("input", body.input)
    return await answer_vectors(texts, options, lambda reply: embedding_list(reply, body.encoding_format))


def embedding_list(
    reply: Reply, encoding_format: str | None, rows: Any = None, name: str = "embedding"
) -> dict[str, Any]:
    """Return the vectors of a reply, or other `rows`, in OpenAI's shape. Each item has its row under `name`."""
    rows = reply.vectors if rows is None else rows
    if encoding_format == "base64":
        rows = base64_rows(rows)
    return {
        "id": reply.id,
        "object": "list",
        "data": [{"object": "embedding", "index": n, name: row} for n, row in enumerate(rows)],
        "model": reply.model,
        "usage": usage(reply),
    }


def usage(reply: Reply) -> dict[str, int]:
    """Return the number of tokens that the model read for a reply, in OpenAI's shape."""
    num_tokens = sum(reply.tokens)
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


@api.get("/v1/models", responses={200: ProtocolFacts})
async def models() -> Response:
    """List the models that are served."""
    return json_response({"object": "list", "data": [await _about(name) for name in await served_models()]})


@api.get("/v1/models/<model_name:model>", responses={200: ProtocolFacts})
async def model(path: ModelPath) -> Response:
    """Describe a served model. An alias is answered with the name of its model."""
    await route_to_model(path.model)
    served = await served_models()
    if not served:
        raise ModelNotFound(f"no ready worker serves {excerpt(path.model)}: wait for one")
    return json_response(await _about(path.model if path.model in served else served[0]))


async def _about(name: str) -> dict[str, Any]:
    heartbeat = await model_heartbeat(name) or {}
    dimensions = {part: heartbeat.get(part) for part in ("dimension", "matryoshka_dimensions")}
    about = {"id": name, "object": "model", "created": 0, "owned_by": "shoal", **dimensions}
    return about | {"type": "base", "capabilities": {}}
