"""What a request says: its body as JSON, and whether it wants to wait."""

import json
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import orjson
from flask import Request, request
from werkzeug.exceptions import RequestEntityTooLarge

from shoal.errors import InvalidJson, InvalidRequest, InvalidText, ShoalError

#: How many times the largest body is taken in, and thrown away, before a caller who sends more is cut off.
MAX_DISCARDED = 8


class JsonRequest(Request):
    """A request whose body is a JSON object, whatever its content type says."""

    #: Whose it is, once it was let in.
    caller = ""

    #: Whether its body is being waited for.
    is_arriving = False

    #: What its response has to say of the rate of its key.
    rate_headers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.started_s = time.perf_counter()

    def get_json(self, *args: Any, **kwargs: Any) -> Any:
        """The body as a dict.

        Raises InvalidJson, InvalidText for half of a surrogate pair, and InvalidRequest for JSON that is no object.
        """
        self.is_arriving = True
        data = self._read()
        self.is_arriving = False
        try:
            body = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            if self.content_length is None and len(data) == self.max_content_length:
                self.is_arriving = True
                self._discard((MAX_DISCARDED - 1) * len(data))
                raise RequestEntityTooLarge from None  # werkzeug cuts a chunked body at the limit and says nothing
            raise _explained(data, error) from None
        if not isinstance(body, dict):
            raise InvalidRequest(f"the body is a JSON {_kind(body)}: send an object with named fields")
        return body

    def _read(self) -> bytes:
        """The body: from the server itself where that bounds it, as werkzeug's bounds take a fifth of a request."""
        size, max_bytes = self.environ.get("CONTENT_LENGTH", ""), self.max_content_length
        if not size.isdecimal() or "HTTP_TRANSFER_ENCODING" in self.environ or max_bytes is None:
            return self.get_data(cache=False)
        if int(size) > max_bytes:
            self._discard(min(int(size), MAX_DISCARDED * max_bytes))
            raise RequestEntityTooLarge
        if not self.environ.get("wsgi.input_terminated"):
            return self.get_data(cache=False)
        data = bytes(self.environ["wsgi.input"].read())
        if len(data) != int(size):
            raise InvalidRequest(f"the body ended early: it has not the {size} bytes that were announced")
        return data

    def _discard(self, size_bytes: int) -> None:
        """Takes so much of a body in that is too large: many callers read no answer before they have sent all."""
        while size_bytes > 0 and (chunk := self.environ["wsgi.input"].read(min(size_bytes, 2**20))):
            size_bytes -= len(chunk)


def wants_async() -> bool:
    """Whether the current request has `Prefer: respond-async` (RFC 7240)."""
    header = request.environ.get("HTTP_PREFER")
    if header is None:
        return False
    return any(part.partition(";")[0].strip().lower() == "respond-async" for part in header.split(","))


def _explained(data: bytes, error: orjson.JSONDecodeError) -> ShoalError:
    place = f"line {error.lineno} column {error.colno}"
    if _is_json_with_surrogate(data):
        return InvalidText(
            f"the body has half of a surrogate pair at {place}, which UTF-8 cannot hold: remove or replace it"
        )
    return InvalidJson(f"the body is not JSON ({error.msg} at {place}): send an object with named fields")


def _is_json_with_surrogate(data: bytes) -> bool:
    try:
        json.dumps(json.loads(data, parse_constant=_refuse), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):
        return False
    return False


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _kind(value: Any) -> str:
    words = {str: "string", list: "array", bool: "boolean", type(None): "null"}
    return words.get(type(value), "number")
