"""The shapes of POST /similar."""

from pydantic import BaseModel, ConfigDict, Field

from shoal.errors import InvalidRequest
from shoal.jobs import Job
from shoal.operations import Search
from shoal.search_job import MAX_K
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import Text
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
