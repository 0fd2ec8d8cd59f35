"""POST /json_embed/, /orjson_embed/ and /raw_embed/: vectors in a format that the path names."""

from flask import Response
from flask_openapi3.models.tag import Tag

from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.model_names import check_model
from shoal_api.schema import headers
from shoal_api.schema.responses import ERRORS
from shoal_api.schema.wire_formats import NamedModelBody, NamedModelVectors
from shoal_api.vector_format import RAW, VectorFormat, arrays_of

api = Blueprint("wire_formats", __name__, abp_tags=[Tag(name="Wire formats")], abp_responses=ERRORS)

_BYTES = {"content": {RAW: {"schema": {"type": "string", "format": "binary"}}}, "headers": headers.VECTORS}


@api.post("/json_embed/", responses={200: NamedModelVectors})
async def json_embed(body: NamedModelBody) -> Response:
    """Embed texts: one vector of length 1 for each, in order."""
    return await _in_format(body, VectorFormat.of_request())


@api.post("/orjson_embed/", responses={200: NamedModelVectors})
async def orjson_embed(body: NamedModelBody) -> Response:
    """Embed texts: one vector of length 1 for each, in order."""
    return await _in_format(body, VectorFormat.of_request())


@api.post("/raw_embed/", responses={200: _BYTES})
async def raw_embed(body: NamedModelBody) -> Response:
    """Embed texts: their vectors as little-endian 32-bit floats, one after the other, whatever is accepted."""
    return await _in_format(body, VectorFormat(RAW))


async def _in_format(body: NamedModelBody, wanted: VectorFormat) -> Response:
    await check_model(body.model_name)
    reply = await call(body.job(), remedy="split the list")
    return wanted.answer(
        reply, arrays_of(reply), in_json=lambda: {"model_name": reply.model, "embedding": reply.vectors}
    )
