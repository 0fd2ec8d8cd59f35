"""The shapes of documents that are added to an index, and deleted from it, while it is served."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from shoal_api.schema.body import Body
from shoal_api.schema.bounds import DOCUMENTS
from shoal_api.schema.responses import described

_ID = Annotated[Any, WithJsonSchema({"type": "string", "minLength": 1}), DOCUMENTS]

#: A document, which the writer of an index checks as all clients do.
_DOCUMENT = WithJsonSchema(
    {
        "title": "Document",
        "type": "object",
        "required": ["id", "text"],
        "properties": {
            "id": {"type": "string", "minLength": 1, "description": "Id by which it is replaced and deleted"},
            "text": {"type": "string", "minLength": 1, "description": "Text to embed and to search"},
        },
        "additionalProperties": True,
        "description": "Its other fields, none of them `score`, are any values of JSON and come back with a hit",
    }
)


class DocumentsBody(Body):
    """Documents to add to an index."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"documents": [{"id": "storm-7", "text": "Storm closes ports in Brittany", "topic": "weather"}]}
        }
    )
    documents: Annotated[list[Annotated[Any, _DOCUMENT, DOCUMENTS]], DOCUMENTS] = Field(
        min_length=1,
        description="At most 1,000; with their vectors, at most 1 MiB: some 600 short ones of 384 dimensions",
    )


class IdsBody(Body):
    """Ids of documents to delete from an index."""

    model_config = ConfigDict(json_schema_extra={"example": {"ids": ["storm-7"]}})
    ids: Annotated[list[_ID], DOCUMENTS] = Field(
        min_length=1, description="At most 1,000; an id that no document has is no error"
    )


class DocumentsWritten(BaseModel):
    """Documents that were added, or deleted."""

    model_config = described(example={"index": "news", "num": 1, "position": "7-482091736550318624"})
    index: str
    num: int = Field(description="Number of documents, or of ids")
    position: str = Field(description="Place of the change among all of the index; workers tell up to which they are")
