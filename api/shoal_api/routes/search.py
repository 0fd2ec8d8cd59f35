"""POST /search: the documents nearest to queries."""

from flask import Response

from shoal_api.answers.response import cost_headers, rendered, search_fields
from shoal_api.description import Blueprint
from shoal_api.enqueue import PREFERENCE_APPLIED, call, prefers_async, submit
from shoal_api.schema.errors import ErrorBody
from shoal_api.schema.requests import SearchBody
from shoal_api.schema.responses import SearchResults

api = Blueprint("search", __name__, "wait for the answer", ErrorBody)


@api.post("/search", responses={200: SearchResults})
async def search(body: SearchBody) -> Response:
    """Find the best documents for each query, best first."""
    job = body.job()
    if prefers_async():
        return await submit(job, body.lane, headers=PREFERENCE_APPLIED)
    reply = await call(job, "split the list", body.lane)
    return rendered(search_fields(reply), headers=cost_headers(reply))
