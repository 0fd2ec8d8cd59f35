"""The shapes and HTTP statuses of errors. Each dialect has a class: Shoal's own, and one for each other protocol."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model

from shoal_api.schema.responses import ERROR_HEADERS, described

#: Codes of errors, keyed by the HTTP status of their response.
_CODES = {
    400: ("invalid_json", "malformed_job", "unsupported_version"),
    401: ("unauthorized",),
    403: ("forbidden", "path_not_allowed"),
    404: ("not_found", "unknown_index", "unknown_job", "unknown_file", "index_not_found", "model_not_found"),
    405: ("method_not_allowed",),
    406: ("not_acceptable",),
    409: (
        *("cancelled", "job_not_ended"),
        *("index_busy", "folder_busy", "too_many_changes", "index_mismatch", "model_mismatch"),
    ),
    413: ("too_large",),
    422: ("invalid_request", "invalid_text", "text_too_long", "bad_document", "file_error"),
    429: ("overloaded", "rate_limited"),
    500: ("internal", "poisoned", "index_corrupt"),
    501: ("unsupported", "missing_extra"),
    503: ("not_ready", "unavailable"),
    504: ("expired", "timeout"),
    507: ("disk_full",),
}

#: HTTP status of each code that a response can have. Any other code is a defect of the server, with the status 500.
STATUS = {code: status for status, codes in _CODES.items() for code in codes}

#: Codes with the status 400 in most compatible protocols. In Shoal's own routes they have the status 422.
BAD_REQUEST = dict.fromkeys(("invalid_request", "invalid_text", "text_too_long"), 400)

#: The status of a request that the model does not support. It is not 501, because clients of these protocols would
#: repeat the request in vain after a status of 500 or above.
UNSUPPORTED = {"unsupported": 400}

#: Text Embeddings Inference's words for the kinds of errors, keyed by status. Any other error is a `Validation`.
_TEI_KINDS = {424: "Backend", 429: "Overloaded", 503: "Unhealthy"}

#: Fields by which Shoal's own POST /embed recognises clients of Text Embeddings Inference, so that it answers as they
#: expect. `options` also comes from clients of Hugging Face's other services, such as Weaviate.
TEI_FIELDS = frozenset(("truncation_direction", "options"))


class ErrorShape(BaseModel):
    """The shape of the errors of one dialect."""

    model_config = described(description="An error", answer_headers=ERROR_HEADERS)

    #: For each code whose status in this dialect differs from `STATUS`, the status in this dialect.
    statuses: ClassVar[Mapping[str, int]] = MappingProxyType({})

    @classmethod
    def error_body(cls, code: str, message: str, status: int) -> dict[str, Any]:
        """Return the body of an error."""
        return {name: message for name in cls.model_fields}

    @classmethod
    def for_body(cls, field_names: Collection[str]) -> "type[ErrorShape]":
        """Return the dialect for the answer to a request whose body has these fields."""
        return cls


def one_field(name: str, field: str, statuses: Mapping[str, int] | None = None) -> type[ErrorShape]:
    """Return a dialect with this name. Its errors consist of one field with the message."""
    fields: dict[str, Any] = {field: (str, ...)}
    shape = create_model(name, __base__=ErrorShape, __doc__="The body of a response with an error.", **fields)
    shape.statuses = statuses or {}
    return shape


class ErrorDetail(BaseModel):
    """An error, for a program and for a person."""

    code: str = Field(description="A stable word, for programs", json_schema_extra={"enum": list(STATUS)})
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
    def error_body(cls, code: str, message: str, status: int) -> dict[str, Any]:
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
    def error_body(cls, code: str, message: str, status: int) -> dict[str, Any]:
        """Return the body of an error."""
        kind = "Empty" if (code, status) == ("invalid_request", 400) else _TEI_KINDS.get(status, "Validation")
        return {"error": message, "error_type": kind}


class OwnOrTeiError(RootModel[ErrorBody | TeiError]):
    """The body of a response with an error. Clients of Text Embeddings Inference get the second shape."""

    model_config = ErrorShape.model_config

    @classmethod
    def for_body(cls, field_names: Collection[str]) -> type[ErrorShape]:
        """Return the dialect of a body of POST /embed with these fields."""
        return ErrorBody if TEI_FIELDS.isdisjoint(field_names) else TeiError
