"""The shapes of Jina's rerank requests and responses."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shoal_api.schema.errors import ErrorShape
from shoal_api.schema.rerank import RankedDocument, RerankBody
from shoal_api.schema.responses import WITH_COST


class JinaRerankBody(RerankBody):
    """A query, and documents to score for it."""

    model_config = ConfigDict(json_schema_extra={"example": {"query": "a storm", "documents": ["rain", "market"]}})
    return_documents: bool = Field(True, description="Answer the documents too")


class JinaRanking(BaseModel):
    """The documents, best first, with the fields of Cohere's older route too."""

    model_config = WITH_COST
    object: Literal["list"]
    id: str
    model: str
    results: list[RankedDocument]
    usage: dict[str, int] = Field(description="The tokens of the query with each document")
    meta: dict[str, Any]


class JinaError(ErrorShape):
    """The body of a response with an error."""

    detail: str
