"""OpenAI: POST /v1/embeddings, GET /v1/models and GET /v1/models/{model}."""

from typing import Any

from flask import Response
from flask_openapi3.models.tag import Tag
from werkzeug.routing import BaseConverter

from shoal.errors import ModelNotFound
from shoal.replies import Reply
from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.model_names import check_model, served_models
from shoal_api.response import base64_rows, rendered
from shoal_api.schema.openai import EmbeddingList, EmbeddingsBody, ModelBody, ModelList, ModelPath, OpenAIError
from shoal_api.token_ids import as_texts
from shoal_api.vector_format import VectorFormat, arrays_of

api = Blueprint(
    "openai", __name__, abp_tags=[Tag(name="OpenAI")], abp_responses={"4XX": OpenAIError, "5XX": OpenAIError}
)


class ModelName(BaseConverter):
    """The rest of a path as a model's name, which may have slashes, also at its beginning if it is a folder."""

    regex = ".+"
    part_isolating = False


api.record(lambda state: state.app.url_map.converters.update(model_name=ModelName))


@api.post("/v1/embeddings", responses={200: EmbeddingList})
async def embeddings(body: EmbeddingsBody) -> Response:
    """Embed texts: one vector of length 1 for each, in order."""
    await check_model(body.model)
    wanted = VectorFormat.of_request()
    reply = await call(body.job(await as_texts("input", body.input)), remedy="split the list")
    return wanted.answer(reply, arrays_of(reply), in_json=lambda: embedding_list(reply, body.encoding_format))


def embedding_list(reply: Reply, encoding_format: str | None, rows: Any = None) -> dict[str, Any]:
    """Return the vectors of a reply, or rows that are made of them, in OpenAI's shape."""
    rows = reply.vectors if rows is None else rows
    if encoding_format == "base64":
        rows = base64_rows(rows)
    num_tokens = sum(reply.tokens)
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": n, "embedding": row} for n, row in enumerate(rows)],
        "model": reply.model,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


@api.get("/v1/models", responses={200: ModelList})
async def models() -> Response:
    """List the models that are served."""
    return rendered({"object": "list", "data": [_about(name) for name in await served_models()]})


@api.get("/v1/models/<model_name:model>", responses={200: ModelBody})
async def model(path: ModelPath) -> Response:
    """Tell that a model is served; an alias is answered with the model that it stands for."""
    await check_model(path.model)
    served = await served_models()
    if not served:
        raise ModelNotFound("no model is served: no worker is ready")
    return rendered(_about(path.model if path.model in served else served[0]))


def _about(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "shoal"}
