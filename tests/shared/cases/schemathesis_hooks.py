"""Hooks of schemathesis for the tests of the OpenAPI document. schemathesis.toml has the path of this module."""

from typing import Any

import msgpack
import schemathesis
from schemathesis import SerializationContext

#: Content types of msgpack.
MSGPACK_TYPES = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")


def pack(context: SerializationContext, value: Any) -> bytes:
    """Return the value as msgpack. Whole numbers that are too large for msgpack become floats."""
    return bytes(msgpack.packb(value, default=float, unicode_errors="surrogatepass"))


schemathesis.serializer(*MSGPACK_TYPES)(pack)
