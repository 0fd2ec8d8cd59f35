"""The shapes of errors, and the statuses that go with them: one class for each dialect."""

from collections.abc import Callable, Collection, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, RootModel

from shoal_api.schema.responses import ERROR_HEADERS, described

#: HTTP status of each code that a response can have; an error of any other code is a defect of the server, and 500.
STATUS = {
    "invalid_json": 400,
    "malformed_job": 400,
    "unsupported_version": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "path_not_allowed": 403,
    "address_not_allowed": 403,
    "not_found": 404,
    "unknown_index": 404,
    "unknown_job": 404,
    "unknown_file": 404,
    "index_not_found": 404,
    "model_not_found": 404,
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "cancelled": 409,
    "job_not_ended": 409,
    "paused": 409,
    "index_busy": 409,
    "folder_busy": 409,
    "too_many_changes": 409,
    "index_mismatch": 409,
    "model_mismatch": 409,
    "too_large": 413,
    "invalid_request": 422,
    "invalid_text": 422,
    "text_too_long": 422,
    "bad_document": 422,
    "file_error": 422,
    "overloaded": 429,
    "rate_limited": 429,
    "internal": 500,
    "poisoned": 500,
    "index_corrupt": 500,
    "unsupported": 501,
    "missing_extra": 501,
    "not_ready": 503,
    "unavailable": 503,
    "expired": 504,
    "timeout": 504,
    "disk_full": 507,
}

#: Codes that most compatible protocols answer with 400, where Shoal's own routes answer 422.
BAD_REQUEST = dict.fromkeys(("invalid_request", "invalid_text", "text_too_long"), 400)

#: The status of a request that the model does not support. Not 501: clients of these protocols repeat a request after a
#: status of 500 and above, which would be in vain.
UNSUPPORTED = {"unsupported": 400}

#: Text Embeddings Inference's word for the kind of an error with this status; `Validation` for any other.
_TEI_KINDS = {424: "Backend", 429: "Overloaded", 503: "Unhealthy"}

#: Fields that only clients of Text Embeddings Inference send to Shoal's own POST /embed, by which they are recognised.
#: `options` also comes from clients of Hugging Face's other services, such as Weaviate.
_TEI_FIELDS = frozenset(("truncation_direction", "options"))


class ErrorShape(BaseModel):
    """The errors of one dialect. Its JSON schema is made once: to make it for every route took a tenth of the start."""

    model_config = described(description="An error", answer_headers=ERROR_HEADERS)

    #: The statuses of codes that differ from `STATUS`.
    statuses: ClassVar[Mapping[str, int]] = MappingProxyType({})

    @classmethod
    def told(cls, code: str, message: str, status: int) -> dict[str, Any]:
        """Return the body of an error; by default it is one field with the message."""
        return {name: message for name in cls.model_fields}

    @classmethod
    def for_body(cls, field_names: Collection[str]) -> "type[ErrorShape]":
        """Return the dialect in which a request is answered whose body has these fields."""
        return cls

    @classmethod
    def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the JSON schema that pydantic makes with these options; do not change it."""
        return _made(super().model_json_schema, *args, **options)


@cache
def _made(make: Callable[..., dict[str, Any]], *args: Any, **options: Any) -> dict[str, Any]:
    return make(*args, **options)


class ErrorDetail(BaseModel):
    """An error, for a program and for a person."""

    code: str = Field(description="A stable word, to decide by", json_schema_extra={"enum": list(STATUS)})
    message: str = Field(description="A sentence for a person; may change")


class ErrorBody(ErrorShape):
    """The body of every response with an error."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"error": {"code": "invalid_request", "message": "inputs is missing: it is required"}}
        }
    )
    error: ErrorDetail

    @classmethod
    def told(cls, code: str, message: str, status: int) -> dict[str, Any]:
        """Return the body of an error."""
        return {"error": {"code": code, "message": message}}


class TeiError(ErrorShape):
    """The body of a response with an error."""

    error: str
    error_type: str = Field(description="One of Validation, Empty, Overloaded, Backend and Unhealthy")

    statuses = {
        **dict.fromkeys(("internal", "poisoned", "unsupported"), 424),
        **dict.fromkeys(("expired", "timeout"), 503),
    }

    @classmethod
    def told(cls, code: str, message: str, status: int) -> dict[str, Any]:
        """Return the body of an error."""
        kind = "Empty" if (code, status) == ("invalid_request", 400) else _TEI_KINDS.get(status, "Validation")
        return {"error": message, "error_type": kind}


class OwnOrTeiError(RootModel[ErrorBody | TeiError]):
    """The body of a response with an error: of the second shape to a body of Text Embeddings Inference's clients."""

    model_config = ErrorShape.model_config

    @classmethod
    def for_body(cls, field_names: Collection[str]) -> type[ErrorShape]:
        """Return the dialect of a body of POST /embed with these fields."""
        return TeiError if is_tei_body(field_names) else ErrorBody


def is_tei_body(field_names: Collection[str]) -> bool:
    """Return True if a body of POST /embed with these fields is one of Text Embeddings Inference's clients."""
    return not _TEI_FIELDS.isdisjoint(field_names)
