"""OpenAI: POST /v1/embeddings, GET /v1/models and GET /v1/models/{model}."""

from base64 import b64encode
from typing import Any

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.tag import Tag

from shoal.errors import ModelNotFound
from shoal_api.enqueue import call
from shoal_api.response import cost_headers, rendered
from shoal_api.schema.openai import EmbeddingList, EmbeddingsBody, ModelBody, ModelList, ModelPath, OpenAIError
from shoal_api.served_model import check_model, served_models

api = APIBlueprint(
    "openai", __name__, abp_tags=[Tag(name="OpenAI")], abp_responses={"4XX": OpenAIError, "5XX": OpenAIError}
)


@api.post("/v1/embeddings", responses={200: EmbeddingList})
def embeddings(body: EmbeddingsBody) -> Response:
    """Embed texts: one vector of length 1 for each, in order."""
    check_model(body.model)
    reply = call(body.job(), remedy="split the list")
    assert reply.vectors is not None
    rows: Any = reply.vectors
    if body.encoding_format == "base64":
        rows = [b64encode(row).decode() for row in reply.vectors.astype("<f4", copy=False)]
    num_tokens = sum(reply.tokens)
    return rendered(
        {
            "object": "list",
            "data": [{"object": "embedding", "index": n, "embedding": row} for n, row in enumerate(rows)],
            "model": reply.model,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        },
        headers=cost_headers(reply),
    )


@api.get("/v1/models", responses={200: ModelList})
def models() -> Response:
    """List the models that are served."""
    return rendered({"object": "list", "data": [_about(name) for name in served_models()]})


@api.get("/v1/models/<path:model>", responses={200: ModelBody})
def model(path: ModelPath) -> Response:
    """Tell that a model is served; an alias is answered with the model that it stands for."""
    check_model(path.model)
    served = served_models()
    if not served:
        raise ModelNotFound("no model is served: no worker is ready")
    return rendered(_about(path.model if path.model in served else served[0]))


def _about(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "shoal"}
