"""POST /embed, /search and /score: vectors of texts, the documents nearest to queries, and scores of texts."""

from flask import Response

from shoal.contract.options import ROW_OUTPUTS
from shoal_api.answers.response import cost_headers, json_response, result_fields, search_fields, with_tei_headers
from shoal_api.answers.vector_format import accepted_type, output_response, output_type, vectors_response
from shoal_api.blueprint import Blueprint
from shoal_api.enqueue import FINGERPRINT, as_texts, call
from shoal_api.request import json_request
from shoal_api.schema.error_statuses import TEI_FIELDS, ErrorBody, OwnOrTeiError
from shoal_api.schema.requests import EmbedBody, ScoreBody, SearchBody, embed_job, rerank_job, search_job
from shoal_api.schema.responses import Embeddings, Scores, SearchResults

embed_api = Blueprint("embed", __name__, "wait for the answer", OwnOrTeiError)
api = Blueprint("inference", __name__, "wait for the answer", ErrorBody)


@embed_api.post("/embed", responses={200: Embeddings}, openapi_extensions={"x-headers": [FINGERPRINT]})
async def embed(body: EmbedBody) -> Response:
    """Embed texts: one vector for each, in order, or other outputs of the model."""
    has_rows = body.output in ROW_OUTPUTS
    media_type = accepted_type() if has_rows else output_type(body.output_dtype)
    job = embed_job(body, await as_texts("inputs", body.inputs))
    reply = await call(job, "split the list, or stream it with `shoal embed` or Client.embed_stream", body.lane)
    fields = result_fields(reply) if body.answer == "result" else None
    if has_rows:
        response = vectors_response(reply, media_type, body.output_dtype, fields=fields)
    else:
        is_list = isinstance(body.output, list)
        response = output_response(reply, media_type, {} if is_list and fields is None else fields)
    is_of_tei = not TEI_FIELDS.isdisjoint(json_request().field_names)
    return with_tei_headers(response, reply, job) if is_of_tei else response


@api.post("/search", responses={200: SearchResults}, openapi_extensions={"x-headers": [FINGERPRINT]})
async def search(body: SearchBody) -> Response:
    """Find the best documents for each query, best first."""
    reply = await call(search_job(body), lane=body.lane)
    return json_response(search_fields(reply), headers=cost_headers(reply))


@api.post("/score", responses={200: Scores}, openapi_extensions={"x-headers": [FINGERPRINT]})
async def score(body: ScoreBody) -> Response:
    """Score texts for a query, in the order of the texts."""
    reply = await call(rerank_job(body, body.inputs), lane=body.lane)
    return json_response({"scores": reply.scores}, headers=cost_headers(reply))
