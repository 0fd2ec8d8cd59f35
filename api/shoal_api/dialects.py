"""Dialects: the statuses and bodies with which each protocol of the API tells of an error."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: OpenAI's word for the kind of an error with this status; `invalid_request_error` for any other below 500.
_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


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


#: The dialect of Shoal's own routes.
OWN = Dialect(_own_body)

#: The dialect of each compatible protocol, by the name of its blueprint.
DIALECTS = {
    "openai": Dialect(_openai_body, dict.fromkeys(("invalid_request", "invalid_text", "text_too_long"), 400)),
}
