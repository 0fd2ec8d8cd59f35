"""POST /score: scores of texts for a query."""

from flask import Response

from shoal_api.answers.response import cost_headers, rendered
from shoal_api.description import Blueprint
from shoal_api.enqueue import PREFERENCE_APPLIED, call, prefers_async, submit
from shoal_api.schema.errors import ErrorBody
from shoal_api.schema.requests import ScoreBody
from shoal_api.schema.responses import Scores

api = Blueprint("score", __name__, "wait for the answer", ErrorBody)


@api.post("/score", responses={200: Scores})
async def score(body: ScoreBody) -> Response:
    """Score texts for a query, in the order of the texts."""
    job = body.job()
    if prefers_async():
        return await submit(job, body.lane, headers=PREFERENCE_APPLIED)
    reply = await call(job, "split the list", body.lane)
    return rendered({"scores": reply.scores}, headers=cost_headers(reply))
