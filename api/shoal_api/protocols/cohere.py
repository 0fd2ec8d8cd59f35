"""Cohere: POST /v2/embed and /v1/embed, POST /v2/rerank and /v1/rerank."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flask import Response
from flask_openapi3.models.tag import Tag
from numpy.typing import NDArray

from shoal.errors import InvalidRequest
from shoal.replies import Reply
from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.model_names import check_model, prompt_for
from shoal_api.number_type import convert
from shoal_api.ranking import rank
from shoal_api.response import base64_rows, cost_headers, rendered
from shoal_api.schema.cohere import (
    CohereBody,
    CohereEmbeddings,
    CohereError,
    CohereFieldsBody,
    CohereFloats,
    CohereRanking,
    CohereRerankBody,
)

api = Blueprint(
    "cohere", __name__, abp_tags=[Tag(name="Cohere")], abp_responses={"4XX": CohereError, "5XX": CohereError}
)


@api.post("/", responses={200: CohereEmbeddings})
@api.post("/v2/embed", responses={200: CohereEmbeddings})
async def embed(body: CohereBody) -> Response:
    """Embed texts: one vector of length 1 for each, in order, in each of the formats that are asked for."""
    return await _by_type(body, body.embedding_types or ["float"], version="2")


@api.post("/v1/embed", responses={200: CohereFloats})
async def embed_v1(body: CohereBody) -> Response:
    """Embed texts: lists of numbers, or by format if `embedding_types` names some."""
    if body.embedding_types:
        return await _by_type(body, body.embedding_types, version="1")
    reply = await _call(body)
    answer = {"response_type": "embeddings_floats", "embeddings": reply.vectors}
    return rendered(answer | _about(body, reply, "1"), headers=cost_headers(reply))


@api.post("/v2/rerank", responses={200: CohereRanking})
async def rerank(body: CohereRerankBody) -> Response:
    """Score documents for a query, best first."""
    return await _ranking(body, version="2")


@api.post("/v1/rerank", responses={200: CohereRanking})
async def rerank_v1(body: CohereFieldsBody) -> Response:
    """Score documents for a query by some of their fields, best first."""
    return await _ranking(body, version="1")


def rerank_meta(reply: Reply, version: str) -> dict[str, Any]:
    """Return what Cohere tells about a rerank."""
    return {
        "api_version": {"version": version, "is_experimental": False},
        "billed_units": {"search_units": 1},
        "tokens": {"input_tokens": sum(reply.tokens)},
    }


async def _ranking(body: CohereRerankBody, version: str) -> Response:
    reply, found = await rank(body)
    answer = {"id": reply.id, "results": found, "meta": rerank_meta(reply, version)}
    return rendered(answer, headers=cost_headers(reply))


def formatted(vectors: NDArray[np.float32], name: str) -> Any:
    """Return the vectors, float32 `[texts, dimension]`, in the format of that name."""
    return _FORMATS[name](vectors)


async def _by_type(body: CohereBody, types: Sequence[str], version: str) -> Response:
    reply = await _call(body)
    assert reply.vectors is not None
    embeddings = {name: formatted(reply.vectors, name) for name in dict.fromkeys(types)}
    answer = {"response_type": "embeddings_by_type", "embeddings": embeddings}
    return rendered(answer | _about(body, reply, version), headers=cost_headers(reply))


async def _call(body: CohereBody) -> Reply:
    await check_model(body.model)
    return await call(body.job(await prompt_for(body.input_type)), remedy="split the list")


def _about(body: CohereBody, reply: Reply, version: str) -> dict[str, Any]:
    num_tokens = sum(reply.tokens)
    meta = {
        "api_version": {"version": version},
        "billed_units": {"input_tokens": num_tokens},
        "tokens": {"input_tokens": num_tokens},
    }
    return {"id": reply.id, "texts": body.texts, "meta": meta}


def _uint8(vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the int8 numbers plus 128."""
    return convert(vectors, "int8")["embeddings"].view(np.uint8) ^ np.uint8(128)


def _bits(vectors: NDArray[np.float32], number_type: str) -> NDArray[Any]:
    if vectors.shape[1] % 8:
        raise InvalidRequest(f"the vectors have {vectors.shape[1]} numbers, and bits take a multiple of 8 of them")
    return convert(vectors, number_type)["embeddings"]


#: Makes each format of the vectors, float32 `[texts, dimension]`.
_FORMATS: dict[str, Callable[[NDArray[np.float32]], Any]] = {
    "float": lambda vectors: vectors,
    "int8": lambda vectors: convert(vectors, "int8")["embeddings"],
    "uint8": _uint8,
    "ubinary": lambda vectors: _bits(vectors, "ubinary"),
    "binary": lambda vectors: _bits(vectors, "binary"),
    "base64": base64_rows,
}
