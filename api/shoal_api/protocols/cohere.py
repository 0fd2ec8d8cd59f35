"""Cohere: POST /v2/embed and /v1/embed, POST /v2/rerank and /v1/rerank."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import numpy as np
from flask import Response
from numpy.typing import NDArray
from pydantic import Field

from shoal.errors import InvalidRequest
from shoal.operations import Embed
from shoal_api.answers.response import cost_headers, json_response
from shoal_api.answers.vector_format import base64_rows, convert
from shoal_api.blueprint import Blueprint
from shoal_api.enqueue import call
from shoal_api.protocols.model_routing import options_for
from shoal_api.protocols.rerank import RerankBody, rank, ranking
from shoal_api.schema.body import Body, Ignored, Name, ShortenedTo, Text, TextList, example
from shoal_api.schema.error_statuses import BAD_REQUEST, UNSUPPORTED, one_field
from shoal_api.schema.responses import ProtocolAnswer

Format = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
InputType = Literal["search_document", "search_query", "classification", "clustering"]


class CohereContent(Body):
    """A part of an input. Cohere also takes images."""

    type: Literal["text"]
    text: Text


class CohereInput(Body):
    """The parts of a text."""

    content: Annotated[list[CohereContent], Field(fail_fast=True, min_length=1)]


class CohereBody(Body):
    """Texts to embed."""

    model_config = example(texts=["a text"], input_type="search_document")
    texts: TextList | None = None
    inputs: Annotated[list[CohereInput], Field(fail_fast=True)] | None = None
    model: Name | None = None
    input_type: InputType | None = None
    embedding_types: Annotated[list[Format], Field(fail_fast=True, max_length=16)] | None = None
    truncate: Literal["NONE", "START", "END"] | None = "END"
    output_dimension: ShortenedTo = None
    priority: Ignored = None


class CohereRerankBody(RerankBody):
    """A query, and documents to score for it."""

    max_tokens_per_doc: Ignored = None
    priority: Ignored = None


class CohereFieldsBody(CohereRerankBody):
    """A query, and documents to score for it. A document may have several fields."""

    rank_fields: Annotated[list[Name], Field(fail_fast=True, min_length=1, max_length=100)] | None = None
    max_chunks_per_doc: Ignored = None
    overlap_tokens: Ignored = None


api = Blueprint("cohere", __name__, "Cohere", one_field("CohereError", "message", BAD_REQUEST | UNSUPPORTED))


@api.post("/", operation_id="cohereEmbedAtRoot", responses={200: ProtocolAnswer})
@api.post("/v2/embed", responses={200: ProtocolAnswer})
async def embed(body: CohereBody) -> Response:
    """Embed texts: one vector of length 1 for each, in order, in each format that is asked for."""
    return await _embed(body, body.embedding_types or ["float"], version="2")


@api.post("/v1/embed", responses={200: ProtocolAnswer})
async def embed_v1(body: CohereBody) -> Response:
    """Embed texts: one vector for each, in order, in each format of `embedding_types` if it is given."""
    return await _embed(body, body.embedding_types, version="1")


@api.post("/v2/rerank", responses={200: ProtocolAnswer})
async def rerank(body: CohereRerankBody) -> Response:
    """Score documents for a query, best first."""
    return ranking(*await rank(body), version="2")


@api.post("/v1/rerank", responses={200: ProtocolAnswer})
async def rerank_v1(body: CohereFieldsBody) -> Response:
    """Score documents for a query by some of their fields, best first."""
    fields = dict.fromkeys(body.rank_fields or ["text"])  # repeated fields could make the texts larger than the body
    return ranking(*await rank(body, list(fields)))


def formatted(vectors: NDArray[np.float32], name: Format) -> Any:
    """Return the vectors, float32 `[texts, dimension]`, in the format with this name."""
    if name == "float":
        return vectors
    if name == "base64":
        return base64_rows(vectors)
    if name in ("binary", "ubinary") and vectors.shape[1] % 8:
        raise InvalidRequest(f"the vectors have {vectors.shape[1]} numbers, and bits take a multiple of 8 of them")
    if name == "uint8":  # the int8 numbers plus 128
        return convert(vectors, "int8")["embeddings"].view(np.uint8) ^ np.uint8(128)
    return convert(vectors, name)["embeddings"]


async def _embed(body: CohereBody, types: Sequence[Format] | None, version: str) -> Response:
    texts = body.texts or ["\n".join(part.text for part in item.content) for item in body.inputs or ()]
    if (body.texts is None) == (body.inputs is None):
        raise InvalidRequest("a request has either texts or inputs: send one of the two")
    more = {"truncation_side": "left" if body.truncate == "START" else "right", "dimensions": body.output_dimension}
    options = await options_for(body.model, body.input_type, body.truncate != "NONE", **more)
    reply = await call(Embed(texts, options))
    assert reply.vectors is not None
    kind, embeddings = "embeddings_floats", cast(Any, reply.vectors)
    if types:
        kind = "embeddings_by_type"
        embeddings = {name: formatted(reply.vectors, name) for name in dict.fromkeys(types)}
    cost = {"input_tokens": sum(reply.tokens)}
    meta = {"api_version": {"version": version}, "billed_units": cost, "tokens": cost}
    answer = {"response_type": kind, "embeddings": embeddings, "id": reply.id, "texts": texts, "meta": meta}
    return json_response(answer, headers=cost_headers(reply))
