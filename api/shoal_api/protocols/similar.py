"""POST /similar: the items of the default index that are similar to a text, as lines to read."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flask import Response
from flask_openapi3.models.tag import Tag

from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.response import cost_headers, rendered
from shoal_api.schema.responses import ERRORS
from shoal_api.schema.similar import SimilarBody, SimilarItems

api = Blueprint("similar", __name__, abp_tags=[Tag(name="Similar items")], abp_responses=ERRORS)


@api.post("/similar", responses={200: SimilarItems})
async def similar(body: SimilarBody) -> Response:
    """Find the items of the default index that are most similar to a text, best first."""
    reply = await call(body.job(), remedy="shorten the text")
    assert reply.hits is not None
    return rendered({"text": [_line(hit) for hit in reply.hits[0]]}, headers=cost_headers(reply))


def _line(hit: Mapping[str, Any]) -> str:
    """Return a line that names the text, the id and the score, with the fewest digits of a 32-bit float."""
    score = np.format_float_positional(np.float32(hit["score"]), trim="0")
    return f"Item:{hit['text']} (index: {hit['id']} score:{score})"
