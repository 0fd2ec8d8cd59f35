"""POST /similar: the items of the default index that are similar to a text, as lines to read."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flask import Response
from pydantic import BaseModel, ConfigDict, Field

from shoal.contract.jobs import Job
from shoal.errors import InvalidRequest
from shoal.operations import Search
from shoal.operations.search import MAX_K
from shoal_api.answers.response import cost_headers, rendered
from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import Text
from shoal_api.schema.errors import ErrorBody
from shoal_api.schema.responses import WITH_COST


class SimilarBody(Body):
    """A text to find similar ones for in the default index."""

    model_config = ConfigDict(json_schema_extra={"example": {"text": "self driving cars navigation", "num_results": 3}})
    text: Text | None = Field(None, description="The text")
    keywords: Text | None = Field(None, description="Another name of `text`; not read beside it")
    num_results: int = Field(5, ge=1, le=MAX_K, description="Items to find")

    def job(self) -> Job:
        """Return the job that does it; raises InvalidRequest without a text."""
        query = self.keywords if self.text is None else self.text
        if query is None:
            raise InvalidRequest("text is missing: it is required, or keywords in its place")
        return Search([query], k=self.num_results)


class SimilarItems(BaseModel):
    """The items found, best first."""

    model_config = WITH_COST
    text: list[str] = Field(description="`Item:TEXT (index: ID score:SCORE)` for each")


api = Blueprint("similar", __name__, "Similar items", ErrorBody)


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
