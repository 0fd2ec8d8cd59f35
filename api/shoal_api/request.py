"""Requests: the body, a JSON object or a msgpack map, and the facts that access control records."""

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, BinaryIO

import orjson
from flask import Request
from flask.globals import request_ctx
from werkzeug.exceptions import RequestEntityTooLarge

from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidJson, InvalidRequest, InvalidText, MalformedJob, ShoalError, TooLarge
from shoal.operations import MAX_VALUES

#: Key of the body in a request's environment. Only Shoal's own server sets it, not a WSGI server.
BODY = "shoal.body"

#: At most this many digits of a content length are read. A longer number exceeds every limit, and is slow to convert.
MAX_LENGTH_DIGITS = 18

#: Size of the pieces in which the API reads an upload or a file.
PIECE_BYTES = 2**16

#: A refused body is read and discarded up to this many times the limit; then the connection is closed.
MAX_DISCARDED = 8

#: Largest number of field names in a body. A part of a text that looks like a name counts too. Parsing 200,000 objects
#: with one name each would keep the process from answering other requests for 0.7 s.
MAX_NAMES = 131_072

_NAME = re.compile(rb'"\s*:')

#: Content types of bodies in msgpack.
MSGPACK_TYPES = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")


class WsgiBody:
    """The body of a request to a WSGI server, where reading blocks. `num_bytes` is None if the size is not known."""

    def __init__(self, source: BinaryIO, num_bytes: int | None):
        self._source = source
        self._num_left = sys.maxsize if num_bytes is None else num_bytes

    async def __call__(self) -> bytes:
        """Return the whole body."""
        return b"".join([piece async for piece in self])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._num_left and (piece := await asyncio.to_thread(self._source.read, min(self._num_left, 2**20))):
            self._num_left -= len(piece)
            yield piece


class JsonRequest(Request):
    """A request whose body is a msgpack map if its content type is one of `MSGPACK_TYPES`, and else a JSON object."""

    #: The client: the name of its API key or its address, once access control has let the request in.
    client_name = ""

    #: The name of the pool that answers, from the path or from the model's name; empty for the API's own pool.
    pool = ""

    #: True if another pool that serves the same model may answer: there are several, and the request names none.
    may_change_pool = False

    #: True if the request may use the routes for operators: its key has the role admin, or no key is needed.
    is_admin = False

    #: True if the body is a file, which the view reads piece by piece.
    is_upload = False

    #: True once the reading of the body has begun. A body can be read only once.
    is_read = False

    #: Bytes of an upload that have arrived.
    num_uploaded_bytes = 0

    #: True while access control counts the request as under way.
    is_counted = False

    #: Bytes in memory that access control counts for the request: its body, and a large response.
    num_held_bytes = 0

    #: True once the Accept header has been read to choose the format of the response.
    is_negotiated = False

    #: The field names in the body, once the body is read.
    field_names: Collection[str] = ()

    #: The parsed body, once the body is read.
    _body: dict[str, Any] | None = None

    #: Headers that the response gets from the rate limit of the request's key.
    rate_headers: Mapping[str, str] = MappingProxyType({})

    #: The bytes of the body, between their arrival and the parsing.
    _data = b""

    def __init__(self, environ: dict[str, Any], *args: Any, **kwargs: Any):
        super().__init__(environ, *args, **kwargs)
        #: The time when the request began, by `time.perf_counter`.
        self.started_s = time.perf_counter()
        #: The size of the body according to the headers, or None if the headers do not say it.
        self.declared_bytes: int | None = None
        if "HTTP_TRANSFER_ENCODING" not in environ:
            size = environ.get("CONTENT_LENGTH") or "0"
            self.declared_bytes = int(size[:MAX_LENGTH_DIGITS]) if size.isdecimal() else 0
        #: The body, to be read once: whole by a call, or in pieces by `async for`. Granian's body has the same methods.
        self.body: WsgiBody = environ.get(BODY) or WsgiBody(environ["wsgi.input"], self.declared_bytes)

    async def receive(self, count: Callable[[int], None]) -> None:
        """Read the body into memory, unless it is an upload. `count` is first called with the number of bytes."""
        size, most = self.declared_bytes, self.max_content_length or sys.maxsize
        if size == 0 or self.is_upload:
            return
        if size is None:
            kept, num_bytes, self.is_read = [], 0, True
            async for piece in self.body:
                num_bytes += len(piece)
                if num_bytes <= most:
                    count(len(piece))
                    kept.append(piece)
                elif num_bytes > MAX_DISCARDED * most:
                    break
            if num_bytes > most:
                raise RequestEntityTooLarge
            self._data = b"".join(kept)
        elif size > most:
            raise RequestEntityTooLarge
        else:
            count(size)
            self.is_read = True
            self._data = await self.body()
            if len(self._data) != size:
                raise InvalidRequest(
                    f"the body has {len(self._data):,} bytes, but Content-Length says {size:,}: send all of it"
                )

    async def drop(self, num_bytes: int) -> None:
        """Read and drop `num_bytes` of a refused body. Many clients read a response only after sending it all."""
        self.is_read = True
        async for piece in self.body:
            num_bytes -= len(piece)
            if num_bytes <= 0:
                return

    @property
    def is_held_back(self) -> bool:
        """True if the client waits to send the body until the server reads it, and the reading has not begun.

        A WSGI server may ask for the body before it calls the application.
        """
        return BODY in self.environ and "HTTP_EXPECT" in self.environ and not self.is_read

    def get_json(self, *args: Any, **kwargs: Any) -> Any:
        """Return the received body as a dict, which is empty for an upload.

        Raises InvalidJson, InvalidText for half of a surrogate pair, InvalidRequest for JSON that is not an object, and
        TooLarge for more than `MAX_VALUES` values or `MAX_NAMES` names. Otherwise 32 MiB of empty objects or short
        texts could need 1.5 GB and some seconds, during which the process could answer no other request. In JSON, every
        `[`, `{` and `,` is counted, also inside strings.
        """
        if self.is_upload:
            return {}
        if self._body is not None:
            return self._body
        data, self._data = self._data, b""
        kind = self.environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
        try:
            if kind in MSGPACK_TYPES:
                body: Any = wire.unpack(data, MAX_VALUES)
            else:
                if (num_signs := sum(map(data.count, (b"[", b"{", b",")))) > MAX_VALUES:
                    raise TooLarge(
                        f"the body has {num_signs:,} opening brackets, braces and commas, those in texts included, and "
                        f"may have {MAX_VALUES:,}: split the list"
                    )
                if data.count(b":") > MAX_NAMES and any(islice(_NAME.finditer(data), MAX_NAMES, None)):
                    raise TooLarge(
                        f"the body has over {MAX_NAMES:,} names of fields, quotation marks before a colon in texts "
                        "included: split the list"
                    )
                body = orjson.loads(data)
        except (orjson.JSONDecodeError, MalformedJob) as error:
            raise _parse_error(error, self.environ.get("HTTP_CONTENT_ENCODING", "")) from None
        if not isinstance(body, dict):
            words = {str: "string", list: "array", bool: "boolean", type(None): "null"}
            kind = words.get(type(body), "number")
            raise InvalidRequest(f"the body is a JSON {kind}: send an object with named fields")
        self._body, self.field_names = body, frozenset(body)
        return body

    def num_unread_bytes(self) -> int:
        """Return how many bytes of an unread body are read and dropped before the response.

        If the body stayed unread, the server would close the connection, and the kernel would reset it. A client that
        still sends its body could then lose the response.
        """
        if self.is_read or self.is_held_back:
            return 0
        size = sys.maxsize if self.declared_bytes is None else self.declared_bytes
        return min(size, MAX_DISCARDED * (self.max_content_length or 0))


#: The context variable behind Flask's proxy of the current request. The proxy itself is slower.
_CURRENT: Any = request_ctx.__wrapped__  # type: ignore[attr-defined]


def json_request() -> JsonRequest:
    """Return the current request."""
    request: JsonRequest = _CURRENT.get().request
    return request


def _parse_error(error: orjson.JSONDecodeError | MalformedJob, encoding: str) -> ShoalError:
    if encoding.lower() not in ("", "identity"):
        return InvalidJson(f"the body has Content-Encoding {excerpt(encoding)}: send it without, as plain JSON")
    if isinstance(error, MalformedJob):
        return InvalidJson(f"the body cannot be read: {error}")
    place = f"line {error.lineno} column {error.colno}"
    if "surrogate in string" in error.msg:
        return InvalidText(
            f"the body has half of a surrogate pair at {place}, which UTF-8 cannot hold: remove or replace it"
        )
    if error.msg.startswith("str is not valid UTF-8"):
        return InvalidJson("the body is not UTF-8: send JSON in that encoding")
    return InvalidJson(f"the body is not JSON ({error.msg} at {place}): send an object with named fields")
