"""POST /json_embed/, /orjson_embed/ and /raw_embed/: vectors in a format that the path names."""

from flask import Response
from pydantic import BaseModel, ConfigDict, Field

from shoal.contract.jobs import Job
from shoal.operations import Embed
from shoal_api.answers.vector_format import RAW, VectorFormat, arrays_of
from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.model_names import check_model
from shoal_api.schema import headers
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import Name, Texts
from shoal_api.schema.errors import ErrorBody
from shoal_api.schema.requests import as_list
from shoal_api.schema.responses import IN_ANY_FORMAT


class NamedModelBody(Body):
    """Texts to embed with a model that is named."""

    model_config = ConfigDict(json_schema_extra={"example": {"input": ["a text", "another text"]}})
    input: Texts = Field(description="One text or several")
    model_name: Name | None = Field(None, description="The served model, or an alias of it; null: the served one")

    def job(self) -> Job:
        """Return the job that does it."""
        return Embed(as_list(self.input))


class NamedModelVectors(BaseModel):
    """The model, and one vector for each text."""

    model_config = IN_ANY_FORMAT
    model_name: str
    embedding: list[list[float]]


api = Blueprint("wire_formats", __name__, "Wire formats", ErrorBody)

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
