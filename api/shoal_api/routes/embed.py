"""POST /embed: vectors of texts."""

from flask import Response

from shoal.errors import InvalidRequest
from shoal_api.answers.number_type import NUMBER_TYPES
from shoal_api.answers.response import result_fields, with_tei_headers
from shoal_api.answers.vector_format import VectorFormat, arrays_of
from shoal_api.description import Blueprint
from shoal_api.enqueue import PREFERENCE_APPLIED, call, prefers_async, submit
from shoal_api.request import json_request
from shoal_api.schema.errors import OwnOrTeiError, is_tei_body
from shoal_api.schema.requests import EmbedBody
from shoal_api.schema.responses import Embeddings
from shoal_api.token_ids import as_texts

api = Blueprint("embed", __name__, "wait for the answer", OwnOrTeiError)


@api.post("/embed", responses={200: Embeddings})
async def embed(body: EmbedBody) -> Response:
    """Embed texts: one vector for each, in order."""
    wanted = None if prefers_async() else VectorFormat.of_request()
    job = body.job(await as_texts("inputs", body.inputs))
    if wanted is None:
        _check_default(body.output_dtype)
        return await submit(job, body.lane, headers=PREFERENCE_APPLIED)
    reply = await call(job, "split the list, or stream it with `shoal embed` or Client.embed_stream", body.lane)
    fields = result_fields(reply) if body.answer == "result" else None
    response = wanted.answer(reply, arrays_of(reply, body.output_dtype), fields=fields)
    return with_tei_headers(response, reply, job) if is_tei_body(json_request().field_names) else response


def _check_default(number_type: str) -> None:
    """Raise InvalidRequest for another number type than the default: a submitted job's is chosen when it is read."""
    if number_type != NUMBER_TYPES[0]:
        raise InvalidRequest(
            f'output_dtype "{number_type}" does not go with Prefer: respond-async: fetch the result with '
            f"?output_dtype={number_type}"
        )
