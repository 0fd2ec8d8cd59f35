"""Dialects: the statuses and bodies with which each protocol of the API tells of an error."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

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

#: OpenAI's word for the kind of an error with this status; `invalid_request_error` for any other below 500.
_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}

#: Text Embeddings Inference's word for the kind of an error with this status; `Validation` for any other.
_TEI_TYPES = {424: "Backend", 429: "Overloaded", 503: "Unhealthy"}

#: Codes that most compatible protocols answer with 400, where Shoal's own routes answer 422.
_BAD_REQUEST = dict.fromkeys(("invalid_request", "invalid_text", "text_too_long"), 400)

#: The status of a request that the model does not support. Not 501: clients of these protocols repeat a request after a
#: status of 500 and above, which would be in vain.
_UNSUPPORTED = {"unsupported": 400}

_TEI_STATUSES = {
    **dict.fromkeys(("internal", "poisoned", "unsupported"), 424),
    **dict.fromkeys(("expired", "timeout"), 503),
}

#: Fields that only clients of Text Embeddings Inference send to Shoal's own POST /embed, by which they are recognised.
#: `options` also comes from clients of Hugging Face's other services, such as Weaviate.
_TEI_FIELDS = frozenset(("truncation_direction", "options"))


@dataclass(frozen=True, slots=True)
class Dialect:
    """The errors of one protocol.

    `body` returns the JSON of an error from its code, message and status. `statuses` has the statuses of codes that
    differ from Shoal's own.
    """

    body: Callable[[str, str, int], dict[str, Any]]
    statuses: Mapping[str, int] = field(default_factory=dict)


def _own_body(code: str, message: str, status: int) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


def _openai_body(code: str, message: str, status: int) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else _OPENAI_TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _tei_body(code: str, message: str, status: int) -> dict[str, Any]:
    kind = "Empty" if (code, status) == ("invalid_request", 400) else _TEI_TYPES.get(status, "Validation")
    return {"error": message, "error_type": kind}


def _sentence_body(name: str) -> Callable[[str, str, int], dict[str, Any]]:
    return lambda code, message, status: {name: message}


#: The dialect of Shoal's own routes.
OWN = Dialect(_own_body)

#: The dialect of each compatible protocol, by the name of its blueprint.
DIALECTS = {
    "openai": Dialect(_openai_body, _BAD_REQUEST),
    "tei": Dialect(_tei_body, _TEI_STATUSES),
    "infinity": Dialect(_openai_body, _BAD_REQUEST | _UNSUPPORTED),
    "ollama": Dialect(_sentence_body("error"), _BAD_REQUEST),
    "cohere": Dialect(_sentence_body("message"), _BAD_REQUEST | _UNSUPPORTED),
    "jina": Dialect(_sentence_body("detail"), _UNSUPPORTED),
    "voyage": Dialect(_sentence_body("detail"), _BAD_REQUEST | _UNSUPPORTED),
    "weaviate": Dialect(_sentence_body("error")),
    **dict.fromkeys(("similar", "predict", "wire_formats"), OWN),
}


def dialect_of(blueprint: str, field_names: Collection[str]) -> Dialect:
    """Return the dialect of a request's route, whose blueprint has that name, and whose body has these fields."""
    if blueprint == "embed" and is_tei_body(field_names):
        return DIALECTS["tei"]
    return DIALECTS.get(blueprint, OWN)


def is_tei_body(field_names: Collection[str]) -> bool:
    """Return True if a body of POST /embed with these fields is one of Text Embeddings Inference's clients."""
    return any(name in field_names for name in _TEI_FIELDS)
