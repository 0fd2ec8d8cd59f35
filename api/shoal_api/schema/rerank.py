"""The shapes of rerank requests with `documents`, which several protocols share."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from shoal.contract.excerpt import excerpt
from shoal.contract.jobs import Job
from shoal.errors import InvalidRequest
from shoal.operations import Rerank
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import TEXT, TEXTS, Name, Text, TopN

Documents = Annotated[list[Text | Annotated[dict[str, Any], TEXT]], Field(fail_fast=True), TEXTS]


class RerankBody(Body):
    """A query, and documents to score for it."""

    query: Text = Field(description="The text that the documents are scored for")
    documents: Documents = Field(description="Texts, or objects with a `text`")
    model: Name | None = Field(None, description="The served reranker, or an alias of it; null: the served one")
    top_n: TopN | None = Field(None, description="Answer this many of the best; null: all")
    return_documents: bool = Field(False, description="Answer the documents too")

    def job(self) -> Job:
        """Return the job that does it; raises InvalidRequest for a document without a text."""
        return Rerank(self._texts(("text",)), query=self.query)

    def document(self, number: int) -> Any:
        """Return the document of that number as it is answered: an object."""
        document = self.documents[number]
        return {"text": document} if isinstance(document, str) else document

    def _texts(self, fields: Sequence[str]) -> list[str]:
        """Return the text of each document: of an object, the values of the fields, a line each."""
        return [
            document if isinstance(document, str) else "\n".join(_value(n, document, name) for name in fields)
            for n, document in enumerate(self.documents)
        ]


class RankedDocument(BaseModel):
    """The place of a document in the request, and its score from 0 to 1."""

    index: int
    relevance_score: float
    document: dict[str, Any] | None = Field(None, description="The document, if it is asked for")


def _value(number: int, document: dict[str, Any], name: str) -> str:
    if not isinstance(value := document.get(name), str):
        words = excerpt(value) if name in document else "missing"
        raise InvalidRequest(f"documents[{number}].{excerpt(name)[1:-1]} is {words}: it takes a string")
    return value
