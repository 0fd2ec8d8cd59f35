"""Requests: their body, a JSON object or a msgpack map, and what access control found out about them."""

import json
import re
import time
from collections.abc import Collection, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, NoReturn, cast

import orjson
from flask import Request
from flask.globals import request_ctx
from werkzeug.exceptions import RequestEntityTooLarge

from shoal import wire
from shoal.errors import InvalidJson, InvalidRequest, InvalidText, MalformedJob, ShoalError, TooLarge
from shoal.excerpt import excerpt
from shoal.operations import MAX_VALUES

#: A body that is too large is read and discarded up to this many times the limit; then the connection is closed.
MAX_DISCARDED = 8

#: Most opening brackets and braces in a body, those within texts included. Reading 32 MiB of empty objects would take
#: 1.5 GB and some seconds, in which the process answers no other request.
MAX_BRACKETS = 500_000

#: Most names of fields in a body; a part of a text that looks like a name counts too. Reading the 3 million names that
#: fit into 32 MiB would take some seconds.
MAX_NAMES = 500_000

#: Largest body that is read and dropped if nothing has read it.
MAX_DROPPED_BYTES = 2**20

_NAME = re.compile(rb'"\s*:')

#: Content types of bodies that are msgpack.
MSGPACK_TYPES = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")

#: Most digits of a content length that are looked at: more would still be over every limit, and slow to convert.
MAX_LENGTH_DIGITS = 18


class JsonRequest(Request):
    """A request whose body is a msgpack map under the content types of msgpack, and a JSON object under any other."""

    #: The client: the name of its API key or its address, once access control has let the request in.
    client_name = ""

    #: True if the request may do what is for operators: its key is an admin's, or none is needed.
    is_admin = False

    #: True if the body is a file, which the view reads piece by piece.
    is_upload = False

    #: True while the request waits for its body.
    is_receiving = False

    #: True once the body is read. A further read could wait for ever: a server may not notice the end of a body.
    is_read = False

    #: Seconds that the request waited for a thread. They count as a part of the wait for its answer.
    waited_s = 0.0

    #: Bytes of an upload that had arrived at `progressed_s`.
    num_uploaded_bytes = 0

    #: True once the Accept header was read to choose the format of the response.
    is_negotiated = False

    #: The names of the fields of the body, once it was read.
    field_names: Collection[str] = ()

    #: The number of texts of its job.
    num_texts = 0

    #: The body, once it was read.
    _body: dict[str, Any] | None = None

    #: Headers that the response gets from the rate limit of the request's key.
    rate_headers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        #: When the request started, or when it arrived if it waited. For an upload, `progressed_s` is when its last
        #: piece came.
        self.started_s = self.progressed_s = time.perf_counter()

    def get_json(self, *args: Any, **kwargs: Any) -> Any:
        """Return the body as a dict, which is read at the first call; an upload has an empty one.

        Raises InvalidJson, InvalidText for half of a surrogate pair, InvalidRequest for JSON that is no object, and
        TooLarge for JSON of more than `MAX_BRACKETS` or `MAX_NAMES`, or msgpack of more than `MAX_VALUES` values.
        """
        if self.is_upload:
            return {}
        if self._body is not None:
            return self._body
        self.is_receiving = self.is_read = True
        data = self._read()
        self.is_receiving = False
        try:
            body = self._parse(data)
        except (orjson.JSONDecodeError, MalformedJob) as error:
            if self.content_length is None and len(data) == self.max_content_length:
                self.is_receiving = True
                self.discard((MAX_DISCARDED - 1) * len(data))
                raise RequestEntityTooLarge from None  # werkzeug cuts a chunked body at the limit without an error
            self._check_encoding()
            raise _parse_error(data, error) from None
        if not isinstance(body, dict):
            raise InvalidRequest(f"the body is a JSON {_json_type(body)}: send an object with named fields")
        self._body, self.field_names = body, frozenset(body)
        return body

    def _check_encoding(self) -> None:
        """Raise InvalidJson if the body is said to be compressed."""
        encoding = self.environ.get("HTTP_CONTENT_ENCODING", "identity")
        if encoding.lower() not in ("", "identity"):
            raise InvalidJson(f"the body has Content-Encoding {excerpt(encoding)}: send it without, as plain JSON")

    def _parse(self, data: bytes) -> Any:
        kind = self.environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
        if kind in MSGPACK_TYPES:
            return wire.unpack(data, MAX_VALUES)
        if (num_brackets := data.count(b"[") + data.count(b"{")) > MAX_BRACKETS:
            raise TooLarge(
                f"the body has {num_brackets:,} opening brackets and braces, those in texts included, and may have "
                f"{MAX_BRACKETS:,}: split the list"
            )
        if data.count(b":") > MAX_NAMES and any(islice(_NAME.finditer(data), MAX_NAMES, None)):
            raise TooLarge(
                f"the body has over {MAX_NAMES:,} names of fields, quotation marks before a colon in texts included: "
                "split the list"
            )
        return orjson.loads(data)

    def _read(self) -> bytes:
        """Read the body: directly where the server bounds it, as werkzeug's bounds take a fifth of a request's time."""
        size, max_bytes = self.environ.get("CONTENT_LENGTH", "")[:MAX_LENGTH_DIGITS], self.max_content_length
        if not size.isdecimal() or "HTTP_TRANSFER_ENCODING" in self.environ or max_bytes is None:
            return self.get_data(cache=False)
        if int(size) > max_bytes:
            self.discard(min(int(size), MAX_DISCARDED * max_bytes))
            raise RequestEntityTooLarge
        if not self.environ.get("wsgi.input_terminated"):
            return self.get_data(cache=False)
        data = bytes(self.environ["wsgi.input"].read())
        if len(data) != int(size):
            raise InvalidRequest(
                f"the body has {len(data):,} bytes, but Content-Length says {int(size):,}: send all of it"
            )
        return data

    def num_unread_bytes(self) -> int:
        """Return the size of a small body that nothing has read, which is to be discarded before the response, else 0.

        The server would close the connection on them, and the kernel then resets it: a client that sends its body after
        the headers, as most do, could lose the response. One with an Expect header sends no body that is not asked for.
        """
        size = self.environ.get("CONTENT_LENGTH")
        if not size or self.is_read or "HTTP_EXPECT" in self.environ:
            return 0
        is_known = "HTTP_TRANSFER_ENCODING" not in self.environ and size.isdecimal() and len(size) <= MAX_LENGTH_DIGITS
        return int(size) if is_known and int(size) <= MAX_DROPPED_BYTES else 0

    def discard(self, size_bytes: int) -> None:
        """Read and drop so much of a body that is refused: many clients read no response before they sent all."""
        self.is_receiving = self.is_read = True
        while size_bytes > 0 and (chunk := self.environ["wsgi.input"].read(min(size_bytes, 2**20))):
            size_bytes -= len(chunk)
        self.is_receiving = False


def json_request() -> JsonRequest:
    """Return the current request."""
    return cast(JsonRequest, request_ctx.request)


def _parse_error(data: bytes, error: orjson.JSONDecodeError | MalformedJob) -> ShoalError:
    if isinstance(error, MalformedJob):
        return InvalidJson(f"the body cannot be read: {error}")
    place = f"line {error.lineno} column {error.colno}"
    if _is_json_with_surrogate(data):
        return InvalidText(
            f"the body has half of a surrogate pair at {place}, which UTF-8 cannot hold: remove or replace it"
        )
    if error.msg.startswith("str is not valid UTF-8"):
        return InvalidJson("the body is not UTF-8: send JSON in that encoding")
    return InvalidJson(f"the body is not JSON ({error.msg} at {place}): send an object with named fields")


def _is_json_with_surrogate(data: bytes) -> bool:
    """Return true for a body that is JSON but for half of a surrogate pair, which orjson reports as a syntax error."""
    try:
        json.dumps(json.loads(data, parse_constant=_refuse), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):
        return False
    return False


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _json_type(value: Any) -> str:
    words = {str: "string", list: "array", bool: "boolean", type(None): "null"}
    return words.get(type(value), "number")
