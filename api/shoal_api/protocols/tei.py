"""Text Embeddings Inference: /embed, /embed_all, /similarity, /rerank, /tokenize, /decode, POST /, and others.

At the root, POST /embed, GET /info and GET /health are Shoal's own, which take and answer what its clients need.
"""

from typing import Any, NoReturn

import numpy as np
from flask import Response
from flask_openapi3.models.tag import Tag
from werkzeug.exceptions import BadRequest

from shoal.errors import Unsupported
from shoal.tokenizer_job import check_tokenizer_request
from shoal_api import validation
from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.ranking import ranked
from shoal_api.request import json_request
from shoal_api.response import cost_headers, rendered, with_tei_headers
from shoal_api.routes import health as own_health
from shoal_api.routes import info as own_info
from shoal_api.schema.responses import Info, Ready
from shoal_api.schema.tei import (
    DecodeBody,
    Similarities,
    SimilarityBody,
    TeiEmbedBody,
    TeiError,
    TeiPieces,
    TeiRanks,
    TeiRerankBody,
    TeiTexts,
    TeiTokensBody,
    TeiTokenVectors,
    TeiVectors,
    TokenizeBody,
    VectorsOrScores,
)
from shoal_api.token_ids import as_texts
from shoal_api.vector_format import VectorFormat, arrays_of

api = Blueprint(
    "tei",
    __name__,
    abp_tags=[Tag(name="Text Embeddings Inference")],
    abp_responses={"4XX": TeiError, "5XX": TeiError},
)

_ANY_SHAPE = [
    {"$ref": f"#/components/schemas/{shape.__name__}"} for shape in (TeiEmbedBody, SimilarityBody, TeiRerankBody)
]

#: The body of POST /, for the description.
_ANY_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"oneOf": _ANY_SHAPE}}}}
}


@api.post("/embed", responses={200: TeiVectors})
async def embed(body: TeiEmbedBody) -> Response:
    """Embed texts: one vector for each, in order."""
    return await _vectors(body)


@api.post("/embed_all", responses={200: TeiTokenVectors})
async def embed_all(body: TeiTokensBody) -> Response:
    """Embed the tokens of texts: one vector for each token, as the model makes it."""
    return await _vectors(body)


@api.post("/similarity", responses={200: Similarities})
async def similarity(body: SimilarityBody) -> Response:
    """Compare a text with others: the cosine of each, in order."""
    return await _similarities(body)


@api.post("/", responses={200: VectorsOrScores}, openapi_extensions=_ANY_BODY)
async def embed_or_score() -> Response:
    """Embed texts, compare them if `inputs` is an object, or score them if there is a `query`."""
    body = json_request().get_json()
    if "query" in body and "inputs" not in body:
        return await _ranks(validation.checked(TeiRerankBody, body))
    if isinstance(body.get("inputs"), dict):
        return await _similarities(validation.checked(SimilarityBody, body))
    return await _vectors(validation.checked(TeiEmbedBody, body))


@api.post("/tokenize", responses={200: TeiPieces})
async def tokenize(body: TokenizeBody) -> Response:
    """Tell the tokens of texts, which are not cut."""
    _refuse_empty("inputs", body.inputs)
    job = body.job()
    check_tokenizer_request("characters", sum(map(len, job.texts)))
    return rendered((await call(job, remedy="split the list")).pieces)


@api.post("/decode", responses={200: TeiTexts})
async def decode(body: DecodeBody) -> Response:
    """Tell the text that ids of tokens stand for."""
    _refuse_empty("ids", body.ids)
    check_tokenizer_request("ids", body.num_ids())
    return rendered((await call(body.job(), remedy="split the list")).decoded)


@api.post("/embed_sparse", responses={424: TeiError})
async def embed_sparse() -> NoReturn:
    """Refuse: the model makes dense vectors."""
    raise Unsupported("the served model makes no sparse vectors: use /embed")


@api.post("/predict", responses={424: TeiError})
async def predict() -> NoReturn:
    """Refuse: the model is no classifier."""
    raise Unsupported("the served model is no classifier: it makes vectors, by /embed")


@api.post("/rerank", responses={200: TeiRanks, 424: TeiError})
@api.post("/v1/rerank", operation_id="teiRerankV1", responses={200: TeiRanks, 424: TeiError})
@api.post("/v2/rerank", operation_id="teiRerankV2", responses={200: TeiRanks, 424: TeiError})
async def rerank(body: TeiRerankBody) -> Response:
    """Score texts for a query, best first."""
    return await _ranks(body)


@api.get("/info", responses={200: Info})
async def info() -> Response:
    """Tell the model, the workers and the limits of the service."""
    return rendered(await own_info.describe())


@api.get("/health", responses={200: Ready})
async def health() -> Response:
    """Tell that a ready worker will answer requests."""
    return rendered({"status": "ready", "workers": await own_health.num_ready()})


async def _vectors(body: TeiEmbedBody | TeiTokensBody) -> Response:
    _refuse_empty("inputs", body.inputs)
    wanted = VectorFormat.of_request()
    job = body.job(await as_texts("inputs", body.inputs))
    reply = await call(job, remedy="split the list")
    return with_tei_headers(wanted.answer(reply, arrays_of(reply)), reply, job)


async def _similarities(body: SimilarityBody) -> Response:
    _refuse_empty("inputs.sentences", body.inputs.sentences)
    job = body.job()
    reply = await call(job, remedy="split the list")
    assert reply.vectors is not None
    first, *others = reply.vectors
    return with_tei_headers(rendered(np.array(others) @ first, headers=cost_headers(reply)), reply, job)


async def _ranks(body: TeiRerankBody) -> Response:
    _refuse_empty("texts", body.texts)
    job = body.job()
    reply = await call(job, remedy="split the list")
    ranks = ranked(reply, "score", {"text": body.texts.__getitem__} if body.return_text else {})
    return with_tei_headers(rendered(ranks, headers=cost_headers(reply)), reply, job)


def _refuse_empty(name: str, items: Any) -> None:
    """Raise BadRequest for an empty list, which this protocol tells from other wrong values."""
    if items == []:
        raise BadRequest(f"{name} is an empty list: send at least one item")
