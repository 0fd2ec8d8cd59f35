"""Bodies of requests: how strictly they are checked, and the bounds of each kind of field."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shoal.contract.checks import MAX_NAME_CHARS, MAX_NUMBER, MAX_VALUE_CHARS, check_known
from shoal.contract.options import MAX_CHUNK_TOKENS, MAX_DIMENSIONS


class Body(BaseModel):
    """A JSON object. Its values are not converted to other types, and unknown fields are refused."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def check_fields(cls, values: Any) -> Any:
        """Return the values; raise InvalidRequest for an unknown field, unless it is null."""
        if isinstance(values, dict) and (unknown := values.keys() - cls.model_fields.keys()):
            values = {name: value for name, value in values.items() if value is not None or name not in unknown}
            check_known("field", values, cls.model_fields)
        return values


def example(**fields: Any) -> ConfigDict:
    """Return a body's configuration, with an example for OpenAPI's description."""
    return ConfigDict(json_schema_extra={"example": fields})


#: The name of a field, a prompt, an index, a version, a job or a model.
Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]

#: A path or a URL.
Path = Annotated[str, Field(max_length=MAX_VALUE_CHARS)]

# These shapes do not limit texts, because the limits are settings: `check_texts` checks them, for clients of Redis too.
# The check of a list stops at its first error, because the errors of all items of a large list would fill the memory.

#: A text for the model.
Text = str

#: Several texts.
TextList = Annotated[list[Text], Field(fail_fast=True)]

#: One text, or several.
Texts = Text | TextList

#: The token ids of a text.
Ids = Annotated[list[int], Field(fail_fast=True)]

#: The token ids of several texts.
IdLists = Annotated[list[Ids], Field(fail_fast=True)]

Dimensions = Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)]

#: The dimension to which vectors are cut, in most protocols.
ShortenedTo = Annotated[
    Dimensions | None, Field(description="Keep this many numbers of each vector, and normalise again")
]

ChunkTokens = Annotated[int, Field(ge=1, le=MAX_CHUNK_TOKENS)]
ChunkOverlap = Annotated[int, Field(ge=0, le=MAX_CHUNK_TOKENS)]

#: The number of best items to return. It may exceed the number of items.
TopN = Annotated[int, Field(ge=1, le=2**31 - 1)]

#: A time in Unix seconds.
UnixTime = Annotated[float, Field(ge=0, le=MAX_NUMBER, allow_inf_nan=False)]

#: vLLM's limit on the tokens of a text. Only -1 is accepted, which means the model's own limit.
TruncateTo = Annotated[Literal[-1] | None, Field(description="Texts that are too long are cut, as for null")]

#: A field that clients of other services send, and that changes no answer.
Ignored = Annotated[Any, Field(description="Ignored")]
