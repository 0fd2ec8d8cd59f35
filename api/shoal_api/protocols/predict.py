"""POST /predict with a `text`: its vector, or those of its tokens. With `inputs`, Text Embeddings Inference answers."""

from flask import Response
from flask_openapi3.models.tag import Tag

from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.schema.predict import PredictBody, Predictions, PredictQuery
from shoal_api.schema.responses import ERRORS
from shoal_api.vector_format import VectorFormat, arrays_of

api = Blueprint("predict", __name__, abp_tags=[Tag(name="Predictions")], abp_responses=ERRORS)


@api.post("/predict", responses={200: Predictions})
async def predict(query: PredictQuery, body: PredictBody) -> Response:
    """Embed texts: one vector of length 1 for each, in order; with output `tokens` one for each token."""
    wanted = VectorFormat.of_request()
    reply = await call(body.job(query.output), remedy="split the list")
    if query.output == "tokens":
        return wanted.answer(reply, arrays_of(reply), in_json=lambda: {"ys": reply.rows_by_text()})
    return wanted.answer(reply, arrays_of(reply), in_json=lambda: {"embeddings": reply.vectors})
