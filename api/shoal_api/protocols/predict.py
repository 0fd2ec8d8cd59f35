"""POST /predict with a `text`: its vector or its tokens' vectors. With `inputs`, Text Embeddings Inference answers."""

from typing import Literal

from flask import Response
from pydantic import BaseModel, ConfigDict, Field

from shoal.contract.jobs import Job
from shoal.contract.options import Options
from shoal.operations import Embed
from shoal_api.answers.vector_format import VectorFormat, arrays_of
from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import Texts
from shoal_api.schema.errors import ErrorBody
from shoal_api.schema.requests import as_list
from shoal_api.schema.responses import IN_ANY_FORMAT

#: What a vector is for.
Per = Literal["vector", "tokens"]


class PredictBody(Body):
    """Texts to embed."""

    model_config = ConfigDict(json_schema_extra={"example": {"text": "a text"}})
    text: Texts = Field(description="One text or several")

    def job(self, output: Per) -> Job:
        """Return the job that does it; vectors of tokens are as the model makes them."""
        return Embed(as_list(self.text), Options(output=output, normalize=output == "vector"))


class PredictQuery(BaseModel):
    """The vectors that are wanted."""

    output: Per = Field("vector", description="One vector for each text, or for each token")


class Predictions(BaseModel):
    """One vector for each text; or with `output=tokens`, for each text a list of one vector for each token."""

    model_config = IN_ANY_FORMAT
    embeddings: list[list[float]] | None = Field(None, description="Without `output=tokens`")
    ys: list[list[list[float]]] | None = Field(None, description="With `output=tokens`")


api = Blueprint("predict", __name__, "Predictions", ErrorBody)


@api.post("/predict", responses={200: Predictions})
async def predict(query: PredictQuery, body: PredictBody) -> Response:
    """Embed texts: one vector of length 1 for each, in order; with output `tokens` one for each token."""
    wanted = VectorFormat.of_request()
    reply = await call(body.job(query.output), remedy="split the list")
    if query.output == "tokens":
        return wanted.answer(reply, arrays_of(reply), in_json=lambda: {"ys": reply.rows_by_text()})
    return wanted.answer(reply, arrays_of(reply), in_json=lambda: {"embeddings": reply.vectors})
